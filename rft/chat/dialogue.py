"""What a policy hears and says, as messages in OpenAI's form: the opening before a rollout, the
whole dialogue after it.

    opening, opening_of      an example under a prompt -> what the policy hears first
    messages_of              a trajectory -> the dialogue, for logs and people

The loop (rft/rollouts/loop.py) opens rollouts with it and the log (rft/rollouts/log.py) writes them
down with it, so it knows neither: whoever reads a log loads no loop, no tools and no grader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rft.config import response_format
from rft.types import Example, Message, Opening, Trajectory

if TYPE_CHECKING:
    from rft import config
    from rft.reports import PromptSettings


def opening(example: Example, prompt: PromptSettings) -> list[Message]:
    """The row's messages under the prompt's instruction, which replaces the row's own system
    message."""
    rest = [
        message for message in example.messages if not (prompt.system and message["role"] in ("system", "developer"))
    ]
    return [{"role": "system", "content": prompt.system}, *rest] if prompt.system else rest


def opening_of(example: Example, prompt: PromptSettings, limits: config.Rollout) -> Opening:
    """What a policy hears first. The row's own tools and response_format win over the job's."""
    answer_format = response_format.chosen(example.response_format, limits.response_format)
    return Opening(tuple(opening(example, prompt)), example.tools, answer_format, example.id)


def messages_of(trajectory: Trajectory, example: Example, prompt: PromptSettings) -> list[Message]:
    """The whole dialogue in OpenAI's form, for logs and people."""
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
