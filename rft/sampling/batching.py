"""Brings the turns of many rollouts together, because a model decodes cheaply only side by side.

Each rollout is a coroutine that asks for its next turn when it is ready. A turn then waits here:

    barrier   until every open dialogue waits; then all speak until the last turn ends. Which rows
              speak together depends on what was said, never on how long a tool took: equal runs
              give equal bytes (deterministic mode)
    free      until the next token: a turn joins between two tokens, and leaves when it ends

In both modes a turn that ended is handed over at once, and its tools answer while the others still
speak. This works because decoding is done by a thread other than the event loop's: the one that
computes for it (rft/rollouts/loop_thread.py). If there is no such thread, free mode starts one, and
the barrier blocks the loop.

Only one side touches the session at a time: the event loop uses it only while the other thread
rests between two tokens. The exception is `append`, which may come at any time.

The session ends a turn at its deadline, measured in the row's own sampling time: at the barrier no
other clock could interrupt the turn. All other time of a turn (waiting for the barrier or a slot,
the others' tokens) is reported as `Sampled.queued_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol, TypeVar

from rft.rollouts.loop_thread import computed, is_in_loop_thread
from rft.types import Sampled, ToolCall, ToolResult

T = TypeVar("T")

HELD_S = 0.01
"""How long a turn that ended may wait for others, to be handed over with them. A thread switch
takes 0.4 ms while the event loop is busy, and a small model takes 3 ms per token."""


class Session(Protocol):
    """Rows decoded side by side, one per dialogue; rft/sampling/engine.py documents the calls."""

    pending: list[list[int]]

    @property
    def speaking(self) -> bool: ...
    def seatable(self, rows: Sequence[int]) -> list[int]: ...
    def begin(self, row: int, max_new: int, deadline_s: float) -> None: ...
    def advance(self) -> list[int]: ...
    def take_turn(self, row: int) -> Sampled: ...
    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...] | None: ...
    def close(self, row: int) -> None: ...


class Batch:
    """All dialogues of a session, and the turns that they wait for."""

    def __init__(self, session: Session, barrier: bool):
        self.session, self.barrier = session, barrier
        self.open = set(range(len(session.pending)))
        self._waiting: dict[int, tuple[int, float, asyncio.Future[Sampled]]] = {}
        self._begun: set[int] = set()  # waiting rows that the session knows
        self._left: list[int] = []  # closed rows that the session still knows
        self._decoding = False
        self._called = False  # asks the thread to rest after this token

    def dialogues(self) -> list[Row]:
        return [Row(self, row, tuple(ids)) for row, ids in enumerate(self.session.pending)]

    async def turn(self, row: int, max_new: int, deadline_s: float) -> Sampled:
        asked = time.monotonic()
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting[row] = (max_new, deadline_s, future)
        self._start()
        try:
            sampled = await future
        finally:
            self._waiting.pop(row, None)
        return replace(sampled, queued_s=max(0.0, time.monotonic() - asked - sampled.seconds))

    def leave(self, row: int) -> None:
        if row in self.open:
            self.open.remove(row)
            self._left.append(row)
            self._called = True
            if self._waiting:
                self._start()

    def _start(self) -> None:
        self._called = True
        if not self._decoding and self._may_speak():
            self._decoding = True
            self._task = asyncio.ensure_future(self._decode())

    def _may_speak(self) -> bool:
        """Tell whether the waiting rows may speak now."""
        return not self.barrier or set(self._waiting) == self.open

    async def _decode(self) -> None:
        try:
            await asyncio.sleep(0)  # lets rows that are ready now join
            while self._waiting and self._may_speak() and (await self._round() or self._called):
                pass
        except Exception as error:
            self._fail(error)
        finally:
            self._decoding, self._called = False, True
        if not self.open and "_thread" in vars(self):
            self._thread.shutdown(wait=False)

    async def _round(self) -> bool:
        """Let rows speak: at the barrier until all turns have ended, in free mode until one has
        ended or another row wants to join. Tell whether any row spoke."""
        self._called = False
        asked, left = [row for row in self._waiting if row not in self._begun], self._left
        if self.barrier:  # sorted: no slot may depend on which tool was faster
            asked, left = sorted(asked), sorted(left)
        self._left = []
        self._begun.difference_update(left)
        self._begun.update(asked)
        turns = [(row, *self._waiting[row][:2]) for row in asked]
        spoke = False
        while (ended := await self._computed(partial(self._speak, turns, left))) is not None:
            self._deliver(ended)
            turns, left, spoke = [], [], True
            if not self.barrier:
                await asyncio.sleep(0)
                break
        return spoke

    def _speak(self, asked: Sequence[tuple[int, int, float]], left: Sequence[int]) -> list[int] | None:
        """Tell the session which rows were closed and which want a turn, and decode until a turn
        ends or, in free mode, the event loop calls. Return the rows whose turn ended; None if no
        row speaks. The thread that computes calls this."""
        for row in left:
            self.session.close(row)
        for row, max_new, deadline_s in asked:
            self.session.begin(row, max_new, deadline_s)
        if not self.session.speaking:
            return None
        until, ended = time.monotonic() + HELD_S, []
        while self.session.speaking:
            ended += self.session.advance()
            if (ended and time.monotonic() >= until) or (self._called and not self.barrier):
                break
        return ended

    async def _computed(self, function: Callable[[], T]) -> T:
        if is_in_loop_thread():
            return await computed(function)
        if self.barrier:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "decoding")

    def _deliver(self, ended: Sequence[int]) -> None:
        for row in ended:
            self._begun.discard(row)
            sampled = self.session.take_turn(row)
            if row in self._waiting and not self._waiting[row][-1].done():
                self._waiting.pop(row)[-1].set_result(sampled)

    def _fail(self, error: Exception) -> None:
        """Raise the error in all rows that wait; the session drops their unfinished turns."""
        self._left += [row for row in self._begun if row not in self._left]
        for row in list(self._waiting):
            if not self._waiting[row][-1].done():
                self._waiting.pop(row)[-1].set_exception(error)


class Row:
    """One dialogue of a batch."""

    def __init__(self, batch: Batch, row: int, prompt_ids: tuple[int, ...]):
        self._batch, self._row, self.prompt_ids = batch, row, prompt_ids

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        return await self._batch.turn(self._row, max_new, deadline_s)

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        return self._batch.session.append(self._row, calls, [result.output for result in results])

    def close(self) -> None:
        self._batch.leave(self._row)
