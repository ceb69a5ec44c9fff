"""A policy that says what a test tells it to, in Hermes form, without tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rft.chat.formats import HERMES
from rft.types import Opening, Reading, Sampled, ToolCall, ToolResult

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "%s"}}\n</tool_call>'


@dataclass(frozen=True)
class ScriptedTurn:
    text: str
    ended: bool = True
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    context_ids: tuple[int, ...] | None = None
    takes_s: float = 0.0
    """Seconds until the turn is there, of the policy's own sampling."""
    reading: Reading | None = None
    fails: Exception | None = None


@dataclass
class ScriptedDialogue:
    turns: tuple[str | ScriptedTurn, ...]
    key: str
    room: int
    results: list[list[str]]
    prompt_ids: tuple[int, ...] = ()
    number: int = 0
    closed: bool = False

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        turn = self.turns[min(self.number, len(self.turns) - 1)]
        self.number += 1
        one = turn if isinstance(turn, ScriptedTurn) else ScriptedTurn(turn)
        if one.fails is not None:
            raise one.fails
        takes_s = min(one.takes_s, deadline_s)  # cut there, as a policy that is sampled in this process
        if takes_s:
            await asyncio.sleep(takes_s)
        text = one.text.replace("{key}", self.key)
        reading = one.reading or HERMES.read(text, self.number - 1)
        return Sampled(
            text, reading, one.ids, one.logprobs, one.ended and takes_s == one.takes_s, one.context_ids, takes_s
        )

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        self.results.append([result.output for result in results])
        return () if len(self.results) <= self.room else None

    def close(self) -> None:
        self.closed = True


@dataclass
class Scripted:
    """Says the given turns to every example; `{key}` is the key that was asked for. `choose` may
    script each rollout by its number."""

    turns: tuple[str | ScriptedTurn, ...]
    room: int = 100
    blocks: bool = False
    choose: Callable[[int], tuple[str | ScriptedTurn, ...]] | None = None
    results: list[list[str]] = field(default_factory=list)
    opened: int = 0

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        """It has room for all."""

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[ScriptedDialogue]:
        start, self.opened = self.opened, self.opened + len(openings)
        return [
            ScriptedDialogue(
                self.choose(start + n) if self.choose else self.turns,
                str(one.messages[-1]["content"]).split()[-1].rstrip("?"),
                self.room,
                self.results,
            )
            for n, one in enumerate(openings)
        ]


def scripted(*turns: str | ScriptedTurn, room: int = 100) -> Scripted:
    return Scripted(turns, room)


__all__ = ["CALL", "Scripted", "ScriptedDialogue", "ScriptedTurn", "scripted"]
