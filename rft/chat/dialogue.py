"""A policy's dialogue as messages in OpenAI's form.

    opening, opening_of      an example under a prompt -> what the policy sees first
    messages_of              a trajectory -> the whole dialogue, for logs and people
    scripted_turn            calls and replies that a script made up -> their messages, for the
                             demonstrations and the invented traffic of recipes

The loop (rft/rollouts/loop.py) and the log (rft/rollouts/log.py) both use it, and it imports
neither. So reading a log loads no loop, no tools and no grader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rft.config import response_format
from rft.types import Example, Message, Opening, Trajectory

if TYPE_CHECKING:
    from rft import config
    from rft.reports import PromptSettings


def opening(example: Example, prompt: PromptSettings) -> list[Message]:
    """Return the row's messages. The prompt's instruction replaces the row's own system message."""
    if not prompt.system:
        return list(example.messages)
    rest = [message for message in example.messages if message["role"] not in ("system", "developer")]
    return [{"role": "system", "content": prompt.system}, *rest]


def opening_of(example: Example, prompt: PromptSettings, limits: config.Rollout) -> Opening:
    """Make a rollout's opening. The row's own tools and response_format win over the job's."""
    answer_format = response_format.chosen(example.response_format, limits.response_format)
    return Opening(tuple(opening(example, prompt)), example.tools, answer_format, example.id)


def messages_of(trajectory: Trajectory, example: Example, prompt: PromptSettings) -> list[Message]:
    """Return the whole dialogue, for logs and people."""
    messages = opening(example, prompt)
    for turn in trajectory.turns:
        message: Message = {"role": "assistant", "content": turn.answer}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.submitted is not None:
            message["submitted"] = turn.submitted
        if turn.calls:
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in turn.calls
            ]
        messages.append(message)
        for result in turn.results:
            error = {"is_error": True} if result.is_error or result.failed else {}
            messages.append({"role": "tool", "tool_call_id": result.call_id, "content": result.output, **error})
    return messages


def scripted_turn(number: int, calls: Sequence[tuple[str, Mapping[str, Any]]], replies: Sequence[str]) -> list[Message]:
    """Write turn `number` of a script: the assistant's calls, each a name and arguments, and their
    replies. The call of a terminal tool has no reply.

    Raises ValueError if the numbers of calls and replies differ.
    """
    if len(replies) not in (len(calls), 0):
        raise ValueError(f"{len(calls)} calls and {len(replies)} replies")
    ids = [f"call_{number}_{n}" for n in range(len(calls))]
    # not escaped, because a small policy copies letters, and cannot escape them
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(ids, written, strict=True)
    ]
    answered = [
        {"role": "tool", "tool_call_id": call_id, "content": reply}
        for call_id, reply in zip(ids, replies, strict=False)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": tool_calls}, *answered]
