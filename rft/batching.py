"""Dialogues of their own over a session that decodes many rows at once.

Each rollout is a coroutine that asks for its next turn when it is ready; a model decodes cheaply only side by side. So a turn that is asked for
waits here until a batch is worth decoding:

    barrier   until every dialogue that is still open waits. The rows of a batch are then a function of what was said, never of how long a
              tool took: equal runs give equal bytes (deterministic mode). Decoding holds up the event loop, in which nothing else is under way
    free      until the decoder is idle; it takes all that wait, in a thread of its own, while tools answer the others
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from rft.types import Sampled, ToolCall, ToolResult


class Session(Protocol):
    """Rows decoded side by side, one a dialogue."""

    pending: list[list[int]]

    def sample(self, rows: list[int], max_new: int) -> Sequence[Sampled]: ...
    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...] | None: ...


class Batch:
    """All dialogues of a session, and the turns that are waited for."""

    def __init__(self, session: Session, barrier: bool):
        self.session, self.barrier = session, barrier
        self.open = set(range(len(session.pending)))
        self._waiting: dict[int, tuple[int, asyncio.Future[Sampled]]] = {}
        self._decoding = False

    def dialogues(self) -> list[Row]:
        return [Row(self, row, tuple(ids)) for row, ids in enumerate(self.session.pending)]

    async def turn(self, row: int, max_new: int) -> Sampled:
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting[row] = (max_new, future)
        self._start()
        try:
            return await future
        finally:
            self._waiting.pop(row, None)

    def leave(self, row: int) -> None:
        self.open.discard(row)
        if self._waiting:
            self._start()

    def _start(self) -> None:
        if self._decoding or not self._waiting or (self.barrier and set(self._waiting) != self.open):
            return
        self._decoding = True
        if self.barrier:
            asyncio.get_running_loop().call_soon(self._decode_here)
        else:
            self._task = asyncio.ensure_future(self._decode_beside())

    def _decode_here(self) -> None:
        rows = sorted(self._waiting)
        began = time.monotonic()
        try:
            sampled = self.session.sample(rows, max(self._waiting[row][0] for row in rows)) if rows else []
        except Exception as error:
            self._fail(rows, error)
            return
        self._deliver(rows, sampled, time.monotonic() - began)

    async def _decode_beside(self) -> None:
        await asyncio.sleep(0)  # whoever is ready in this turn of the loop comes along
        rows = sorted(self._waiting)
        began = time.monotonic()
        try:
            sampled = await asyncio.to_thread(self.session.sample, rows, max(self._waiting[row][0] for row in rows)) if rows else []
        except Exception as error:
            self._fail(rows, error)
            return
        self._deliver(rows, sampled, time.monotonic() - began)

    def _deliver(self, rows: list[int], sampled: Sequence[Sampled], seconds: float) -> None:
        self._decoding = False
        for row, one in zip(rows, sampled, strict=True):
            if row in self._waiting and not self._waiting[row][1].done():
                self._waiting.pop(row)[1].set_result(one if one.seconds else replace(one, seconds=seconds))
        self._start()

    def _fail(self, rows: list[int], error: Exception) -> None:
        self._decoding = False
        for row in rows:
            if row in self._waiting and not self._waiting[row][1].done():
                self._waiting.pop(row)[1].set_exception(error)


class Row:
    """One dialogue of a batch."""

    def __init__(self, batch: Batch, row: int, prompt_ids: tuple[int, ...]):
        self._batch, self._row, self.prompt_ids = batch, row, prompt_ids

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        """No server is waited for, so `deadline_s` is the caller's to hold against the seconds that the turn reports."""
        return await self._batch.turn(self._row, max_new)

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        return self._batch.session.append(self._row, calls, [result.output for result in results])

    def close(self) -> None:
        self._batch.leave(self._row)
