"""Brings the turns of many rollouts together, because a model decodes cheaply only side by side.

Each rollout is a coroutine that asks for its next turn when it is ready. A turn then waits here:

    barrier   until every open dialogue waits; then all speak until the last turn ends. The rows of
              a batch depend on what was said, never on how long a tool took: equal runs give equal
              bytes (deterministic mode). Decoding blocks the event loop, which has nothing else to
              do
    free      until the next token. A thread decodes all rows that speak; between two tokens a turn
              joins, or leaves when it ends, and tools answer the others meanwhile

Only one side touches the session at a time: in free mode the event loop uses it only while the
thread rests between two tokens.

The session holds a turn to its deadline, by the row's own sampling time: at the barrier no other
clock could interrupt it. All other time of a turn (the barrier, a slot, the others' tokens) is
reported as `Sampled.queued_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from rft.types import Sampled, ToolCall, ToolResult


class Session(Protocol):
    """Rows decoded side by side, one per dialogue; rft/sampling/engine.py documents the calls."""

    pending: list[list[int]]

    @property
    def speaking(self) -> bool: ...
    def seatable(self, rows: Sequence[int]) -> list[int]: ...
    def begin(self, row: int, max_new: int, deadline_s: float) -> None: ...
    def advance(self) -> list[int]: ...
    def said(self, row: int) -> Sampled: ...
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
        self._called = False  # the thread shall rest after this token

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
        if self._decoding or (self.barrier and set(self._waiting) != self.open):
            return
        self._decoding = True
        if self.barrier:
            asyncio.get_running_loop().call_soon(self._decode_here)
        else:
            self._task = asyncio.ensure_future(self._decode_beside())

    # -- barrier -----------------------------------------------------------------------------------
    def _decode_here(self) -> None:
        try:
            self._tell(sorted(self._waiting))
            while self.session.speaking:
                self._deliver(self.session.advance())
        except Exception as error:
            self._fail(error)
        self._decoding = False

    # -- free --------------------------------------------------------------------------------------
    async def _decode_beside(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(0)  # lets rows that are ready now join
                self._called = False
                self._tell(list(self._waiting))
                if not self.session.speaking:
                    break
                self._deliver(await loop.run_in_executor(self._thread, self._until_called))
        except Exception as error:
            self._fail(error)
        finally:
            self._decoding, self._called = False, True
        if not self.open:
            self._thread.shutdown(wait=False)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "decoding")

    def _until_called(self) -> list[int]:
        """Decode, in the thread, until a turn ends or the event loop calls."""
        while True:
            ended = self.session.advance()
            if ended or self._called:
                return ended

    # -- both --------------------------------------------------------------------------------------
    def _tell(self, asked: list[int]) -> None:
        """Tell the session which rows were closed, and which want a turn."""
        for row in self._left:
            self.session.close(row)
        self._begun.difference_update(self._left)
        self._left = []
        for row in asked:
            if row not in self._begun:
                self._begun.add(row)
                max_new, deadline_s, _ = self._waiting[row]
                self.session.begin(row, max_new, deadline_s)

    def _deliver(self, ended: Sequence[int]) -> None:
        for row in ended:
            self._begun.discard(row)
            sampled = self.session.said(row)
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
