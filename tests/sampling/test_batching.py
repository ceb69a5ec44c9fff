"""Turns of many dialogues brought together: behind a barrier, or as they come."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rft.rollouts.loop_thread import LoopThread
from rft.rollouts.policy import PolicyFailed
from rft.sampling.batching import Batch, Row
from rft.types import Reading, Sampled, ToolCall, ToolResult


class Recorded:
    """A session that notes who spoke together, token by token. A turn has as many tokens as it is
    allowed."""

    def __init__(self, rows: int, token_s: float = 0.0, slots: int = 100):
        self.pending = [[row] for row in range(rows)]
        self.together: list[list[int]] = []
        self.token_s, self.slots = token_s, slots
        self.left: dict[int, int] = {}
        self.seated: set[int] = set()
        self.closed: list[int] = []
        self.threads: set[str] = set()

    @property
    def speaking(self) -> bool:
        return bool(self._now())

    def _now(self) -> list[int]:
        return self.seatable([row for row, tokens in self.left.items() if tokens])

    def seatable(self, rows: Sequence[int]) -> list[int]:
        free = self.slots - len(self.seated)
        return [row for row in rows if row in self.seated or (free := free - 1) >= 0]

    def begin(self, row: int, max_new: int, deadline_s: float) -> None:
        assert row not in self.left
        assert row not in self.closed
        self.left[row] = max_new

    def advance(self) -> list[int]:
        now = self._now()
        self.seated.update(now)
        self.together.append(sorted(now))
        self.threads.add(threading.current_thread().name)
        time.sleep(self.token_s)
        for row in now:
            self.left[row] -= 1
        return [row for row in now if not self.left[row]]

    def take_turn(self, row: int) -> Sampled:
        del self.left[row]
        return Sampled(f"{row}", Reading(""))

    def append(self, row: int, calls: Sequence[ToolCall], outputs: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(outputs)))

    def close(self, row: int) -> None:
        self.closed.append(row)
        self.left.pop(row, None)
        self.seated.discard(row)


@pytest.mark.parametrize("barrier", [True, False])
def test_a_turn_says_how_long_it_was_kept_waiting(barrier: bool):
    """By a slot that another row has, and behind the barrier by one that is at its tool; its own
    seconds are its session's to say."""

    class Timed(Recorded):
        def take_turn(self, row: int) -> Sampled:
            return replace(super().take_turn(row), seconds=0.05)

    async def all_of_it() -> list[Sampled]:
        rows = Batch(Timed(2, token_s=0.01, slots=1), barrier).dialogues()

        async def one(row: Row, start_s: float) -> Sampled:
            await asyncio.sleep(start_s)
            sampled = await row.sample(10, 1.0)
            row.close()
            return sampled

        return await asyncio.gather(one(rows[0], 0.0), one(rows[1], 0.02 if barrier else 0.0))

    first, second = asyncio.run(all_of_it())
    assert (first.seconds, second.seconds) == (0.05, 0.05)
    assert 0.05 <= first.queued_s < 5
    assert 0.14 <= second.queued_s < 5


async def live(row: Row, delays: Sequence[float], tokens: int = 1) -> list[str]:
    """One turn a delay; a tool of that many seconds after each."""
    texts = []
    for delay in delays:
        texts.append((await row.sample(tokens, 1.0)).text)
        await asyncio.sleep(delay)
    row.close()
    return texts


def test_behind_the_barrier_batches_do_not_depend_on_how_long_tools_take():
    async def all_of_it(delays: list[list[float]]) -> list[list[int]]:
        session = Recorded(3)
        rows = Batch(session, barrier=True).dialogues()
        await asyncio.gather(*(live(row, mine) for row, mine in zip(rows, delays, strict=True)))
        return session.together

    expected = [[0, 1, 2], [0, 1, 2], [0, 2], [2]]
    assert asyncio.run(all_of_it([[0, 0.02, 0], [0.03, 0], [0, 0, 0, 0]])) == expected
    assert asyncio.run(all_of_it([[0.02, 0, 0.01], [0, 0.03], [0.01, 0, 0.02, 0]])) == expected


def test_behind_the_barrier_a_free_slot_is_taken_at_the_next_turn():
    async def all_of_it(delays: list[float]) -> list[list[int]]:
        session = Recorded(4, slots=2)
        rows = Batch(session, barrier=True).dialogues()
        turns = [[0.0], [delays[0]] * 3, [delays[1]], [0.0]]
        await asyncio.gather(*(live(row, mine) for row, mine in zip(rows, turns, strict=True)))
        return session.together

    expected = [[0, 1], [1, 2], [1, 3]]
    assert asyncio.run(all_of_it([0, 0.02])) == asyncio.run(all_of_it([0.02, 0])) == expected


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
    assert session.together[0] == [0, 1, 2], "who is ready together is decoded together"
    assert others < 0.4
    assert [row for batch in session.together for row in batch].count(0) == 2
    assert threading.current_thread().name not in session.threads


def test_in_the_free_mode_a_turn_joins_and_leaves_between_two_tokens():
    async def all_of_it() -> list[list[int]]:
        session = Recorded(3, token_s=0.01)
        rows = Batch(session, barrier=False).dialogues()
        long = asyncio.ensure_future(live(rows[0], [0], tokens=30))
        await asyncio.sleep(0.05)
        await live(rows[1], [0], tokens=3)
        assert not long.done()
        speaking = asyncio.ensure_future(live(rows[2], [0], tokens=1000))
        await asyncio.sleep(0.05)
        speaking.cancel()  # its deadline
        rows[2].close()
        await long
        return session.together

    together = asyncio.run(all_of_it())
    assert together[0] == together[-1] == [0]
    assert together.count([0, 1]) == 3
    assert 0 < together.count([0, 2]) < 20
    assert len(together) == 30, "the long turn was never held up"


def test_in_the_free_mode_a_slot_is_used_at_once():
    async def all_of_it() -> list[list[int]]:
        session = Recorded(4, token_s=0.002, slots=2)
        rows = Batch(session, barrier=False).dialogues()
        await asyncio.gather(live(rows[0], [0], 30), *(live(row, [0], 5) for row in rows[1:]))
        return session.together

    together = asyncio.run(all_of_it())
    assert len(together) == 30
    for row in (1, 2, 3):
        assert together.count([0, row]) == 5


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
        def advance(self) -> list[int]:
            raise PolicyFailed("out of memory")

    async def all_of_it() -> list[object]:
        session = Broken(3, slots=2)
        rows = Batch(session, barrier).dialogues()
        return await asyncio.gather(*(live(row, [0]) for row in rows), return_exceptions=True)

    assert [str(error) for error in asyncio.run(all_of_it())] == ["out of memory"] * 3


def test_results_go_to_their_own_row():
    rows = Batch(Recorded(2), barrier=True).dialogues()
    assert rows[1].append([ToolCall("c", "f", "{}")], [ToolResult("c", "x")]) == (0,)
    assert rows[1].prompt_ids == (1,)
    rows[1].close()  # outside of any loop


class Slow:
    """Two dialogues behind a barrier: row 1's first turn is long, and tools take their time."""

    def __init__(self, tool_s: float = 0.0):
        self.session, self.tool_s = Recorded(2, token_s=0.02), tool_s
        self.received: dict[tuple[int, int], float] = {}

    async def play(self) -> None:
        rows = Batch(self.session, True).dialogues()
        await asyncio.gather(*(self._one(row, number) for number, row in enumerate(rows)))

    async def _one(self, row: Row, number: int) -> None:
        for turn, length in enumerate(((2, 2), (20, 2))[number]):
            await row.sample(length, 10.0)
            self.received[number, turn] = time.monotonic()
            await asyncio.sleep(self.tool_s * (2 - number))
        row.close()


def test_behind_the_barrier_a_turn_that_ended_is_handed_over_while_others_speak():
    """Its tool answers meanwhile."""
    world = Slow(0.1)
    with LoopThread() as loop_thread:
        loop_thread.run(world.play())
    assert world.received[1, 0] - world.received[0, 0] > 0.2
    assert world.received[0, 1] - world.received[1, 0] < 0.25, "row 0's tool had answered long before"


@pytest.mark.slow
@pytest.mark.parametrize("tool_s", [0.0, 0.15])
@pytest.mark.parametrize("has_a_loop_thread", [True, False])
def test_who_speaks_together_behind_the_barrier_never_depends_on_the_tools(tool_s: float, has_a_loop_thread: bool):
    world = Slow(tool_s)
    if has_a_loop_thread:
        with LoopThread() as loop_thread:
            loop_thread.run(world.play())
    else:
        asyncio.run(world.play())
    assert world.session.together == [[0, 1]] * 2 + [[1]] * 18 + [[0, 1]] * 2


@pytest.mark.parametrize("barrier", [True, False])
def test_with_a_loop_thread_the_thread_that_asked_decodes(barrier: bool):
    session = Recorded(1)

    async def speak() -> None:
        [row] = Batch(session, barrier).dialogues()
        await row.sample(3, 10.0)
        row.close()

    with LoopThread() as loop_thread:
        loop_thread.run(speak())
    assert session.threads == {threading.current_thread().name}
