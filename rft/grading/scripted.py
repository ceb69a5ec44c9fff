"""Play assistant messages that are written down, with the real tools: a cheat of exploits.jsonl, or
the way to a target.

They end as a rollout would: with a message that calls no tool, with the call of a terminal tool, or
with the last message. What tools answer is part of the record, so a grader that looks at what was
done sees it. The grade must be asked for in the same context, by whose trace id servers keep state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from rft.chat import renderer as chat
from rft.errors import InfrastructureError, UserError
from rft.tools.client import ToolClient
from rft.types import RolloutContext, StopReason, ToolResult, Turn

Write = Callable[[str, Sequence[ToolResult]], str]
"""Makes a message of its template and the results of the turn before."""


class Unprobed(Exception):
    """A message calls a tool with `probe: false`, and that was not to happen. Its text is the
    tool's name."""


@dataclass(frozen=True, slots=True)
class Played:
    turns: list[Turn]
    stop: StopReason


async def play(
    tools: ToolClient,
    messages: Sequence[str],
    context: RolloutContext,
    defaults: Mapping[str, Mapping[str, Any]],
    where: str,
    write: Write = lambda template, results: template,
    spare: bool = False,
    slot: AbstractAsyncContextManager[Any] | None = None,
) -> Played:
    """Raises UserError for messages after the end, InfrastructureError for a tool that fails, and
    with `spare` Unprobed. `slot` is held during calls."""
    turns: list[Turn] = []
    for number, template in enumerate(messages):
        text = write(template, turns[-1].results if turns else ())
        try:
            calls = tuple(chat.parse_calls(text, number))
        except chat.ParseError:
            return Played([*turns, Turn(text)], StopReason.parse_error)
        if not calls:
            if number + 1 < len(messages):
                raise UserError(
                    f"{where}: turn {number + 1} calls no tool, which ends a rollout; the turns after it are never "
                    "played. Remove them."
                )
            return Played([*turns, Turn(text)], StopReason.completed)
        unprobed = [call.name for call in calls if not tools.traits(call.name).probe]
        if spare and unprobed:
            raise Unprobed(unprobed[0])
        async with slot or nullcontext():
            results = await tools.call_all(calls, context, defaults)
        if failed := [result.output for result in results if result.failed]:
            raise InfrastructureError(f"{where}: {failed[0]}. It needs working tools.")
        turns.append(Turn(text, calls, results))
        if answer := tools.terminal_answer(turns[-1]):
            turns[-1] = replace(turns[-1], submitted=answer.arguments)
            return Played(turns, StopReason.completed)
    return Played(turns, StopReason.max_turns)


Answer = str | list[str]
"""A target as `Recipe.answer` writes it: a final text, whatever it looks like, or the messages up
to it."""


async def give(
    tools: ToolClient,
    answer: Answer,
    context: RolloutContext,
    defaults: Mapping[str, Mapping[str, Any]],
    where: str,
    slot: AbstractAsyncContextManager[Any] | None = None,
) -> Played:
    if isinstance(answer, str):
        return Played([Turn(answer)], StopReason.completed)
    return await play(tools, answer, context, defaults, where, slot=slot)


def called(answer: Answer) -> list[str]:
    """List the tools that giving the answer calls."""
    messages = [] if isinstance(answer, str) else answer
    return [call.name for message in messages for call in chat.parse_calls(message)]


__all__ = ["Answer", "Played", "Unprobed", "Write", "called", "give", "play"]
