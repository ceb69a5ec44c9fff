"""Turns of many dialogues brought together: behind a barrier, or as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from rft.batching import Batch, Row
from rft.rollout import PolicyFailed
from rft.types import Reading, Sampled, ToolCall, ToolResult


class Recorded:
    """A session that notes which rows it decoded together."""

    def __init__(self, rows: int, takes_s: float = 0.0):
        self.pending = [[row] for row in range(rows)]
        self.batches: list[list[int]] = []
        self.takes_s = takes_s

    def sample(self, rows: list[int], max_new: int) -> Sequence[Sampled]:
        self.batches.append(rows)
        time.sleep(self.takes_s)
        return [Sampled(f"{row}", Reading("")) for row in rows]

    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(outputs)))


async def live(row: Row, delays: Sequence[float]) -> list[str]:
    """One turn a delay; a tool of that many seconds after each."""
    said = []
    for delay in delays:
        said.append((await row.sample(5, 1.0)).text)
        await asyncio.sleep(delay)
    row.close()
    return said


def test_behind_the_barrier_batches_do_not_depend_on_how_long_tools_take():
    async def all_of_it(delays: list[list[float]]) -> list[list[int]]:
        session = Recorded(3)
        rows = Batch(session, barrier=True).dialogues()
        await asyncio.gather(*(live(row, mine) for row, mine in zip(rows, delays, strict=True)))
        return session.batches

    expected = [[0, 1, 2], [0, 1, 2], [0, 2], [2]]
    assert asyncio.run(all_of_it([[0, 0.02, 0], [0.03, 0], [0, 0, 0, 0]])) == expected
    assert asyncio.run(all_of_it([[0.02, 0, 0.01], [0, 0.03], [0.01, 0, 0.02, 0]])) == expected


def test_in_the_free_mode_a_slow_tool_holds_up_nobody_else():
    async def all_of_it() -> tuple[Recorded, float]:
        session = Recorded(3)
        rows = Batch(session, barrier=False).dialogues()
        slow = asyncio.ensure_future(live(rows[0], [0.5, 0]))
        began = time.monotonic()
        await asyncio.gather(live(rows[1], [0.01] * 3), live(rows[2], [0.01] * 3))
        others = time.monotonic() - began
        await slow
        return session, others

    session, others = asyncio.run(all_of_it())
    assert session.batches[0] == [0, 1, 2], "who is ready together is decoded together"
    assert others < 0.4
    assert [row for batch in session.batches for row in batch].count(0) == 2


def test_a_dialogue_that_was_cancelled_releases_the_barrier():
    async def all_of_it() -> list[str]:
        rows = Batch(Recorded(2), barrier=True).dialogues()
        stuck = asyncio.ensure_future(asyncio.sleep(60))
        other = asyncio.ensure_future(live(rows[1], [0]))
        await asyncio.sleep(0.01)
        stuck.cancel()
        rows[0].close()
        return await asyncio.wait_for(other, 5)

    assert asyncio.run(all_of_it()) == ["1"]


@pytest.mark.parametrize("barrier", [True, False])
def test_what_the_decoder_raises_reaches_every_row_that_waited(barrier: bool):
    class Broken(Recorded):
        def sample(self, rows: list[int], max_new: int) -> Sequence[Sampled]:
            raise PolicyFailed("out of memory")

    async def all_of_it() -> list[object]:
        rows = Batch(Broken(2), barrier).dialogues()
        return await asyncio.gather(*(live(row, [0]) for row in rows), return_exceptions=True)

    assert [str(error) for error in asyncio.run(all_of_it())] == ["out of memory"] * 2


def test_results_go_to_their_own_row():
    rows = Batch(Recorded(2), barrier=True).dialogues()
    assert rows[1].append([ToolCall("c", "f", "{}")], [ToolResult("c", "x")]) == (0,)
    assert rows[1].prompt_ids == (1,)
