"""Dialogues of their own over a session that decodes many rows at once.

Each rollout is a coroutine that asks for its next turn when it is ready; a model decodes cheaply
only side by side. So a turn that is asked for waits here:

    barrier   until every dialogue that is still open waits; then all speak, to the last one's end.
              The rows of a batch are a function of what was said, never of how long a tool took:
              equal runs give equal bytes (deterministic mode). Decoding holds up the event loop, in
              which nothing else is under way
    free      until the next token. Decoding goes on in a thread of its own over whoever speaks; a
              turn joins between two tokens, one that ended makes room between two tokens, and tools
              answer the others meanwhile

The session is touched by one side at a time: in free mode the loop speaks to it only while the
thread rests between two tokens.

A turn's deadline is held by the session, against the row's own sampling time: behind the barrier no
other clock could strike. Whatever else a turn takes from the moment it is asked for until its
dialogue goes on (the barrier, a slot, the others' tokens) is reported as `Sampled.queued_s`.
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
    """Rows decoded side by side, one a dialogue; rft/sampling/engine.py says what each call
    does."""

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
    """All dialogues of a session, and the turns that are waited for."""

    def __init__(self, session: Session, barrier: bool):
        self.session, self.barrier = session, barrier
        self.open = set(range(len(session.pending)))
        self._waiting: dict[int, tuple[int, float, asyncio.Future[Sampled]]] = {}
        self._begun: set[int] = set()  # of those who wait: whom the session knows
        self._left: list[int] = []  # of those who left: whom the session still knows
        self._decoding = False
        self._called = False  # the thread is to rest after this token

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
                await asyncio.sleep(0)  # whoever is ready in this turn of the loop comes along
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
        """In the thread: tokens until a turn ends or the loop has something to say."""
        while True:
            ended = self.session.advance()
            if ended or self._called:
                return ended

    # -- both --------------------------------------------------------------------------------------
    def _tell(self, asked: list[int]) -> None:
        """The session hears who left and who wants to speak."""
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
        """All who wait hear of it; the session forgets what they had begun to say."""
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
