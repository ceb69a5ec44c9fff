"""An event loop in a thread of its own, beside the thread that computes."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from rft.rollouts.loop_thread import LoopThread, computed, is_in_loop_thread


def test_what_a_coroutine_asks_for_is_computed_by_the_thread_that_runs_it():
    async def work() -> tuple[int, int, bool]:
        return threading.get_ident(), await computed(threading.get_ident), is_in_loop_thread()

    with LoopThread() as loop_thread:
        loops, computes, inside = loop_thread.run(work())
        assert loop_thread.run(work())[0] == loops, "one loop for all"
    assert computes == threading.get_ident() != loops
    assert inside
    assert not is_in_loop_thread()


def test_the_loop_answers_while_something_is_computed():
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def work() -> int:
        ticking = asyncio.create_task(tick())
        await computed(lambda: time.sleep(0.3))
        ticking.cancel()
        return len(ticks)

    with LoopThread() as loop_thread:
        assert loop_thread.run(work()) >= 10


def test_an_error_comes_out_where_it_was_asked_for():
    async def fails() -> None:
        raise ValueError("in the loop")

    async def computes_badly() -> str:
        try:
            await computed(lambda: 1 / 0)
        except ZeroDivisionError as error:
            return f"caught {error}"
        return ""

    with LoopThread() as loop_thread:
        with pytest.raises(ValueError, match="in the loop"):
            loop_thread.run(fails())
        assert loop_thread.run(computes_badly()) == "caught division by zero"


def test_all_coroutines_share_one_context():
    told: ContextVar[str] = ContextVar("told", default="")

    async def tell() -> None:
        told.set("once")

    async def read() -> str:
        return told.get()

    with LoopThread() as loop_thread:
        loop_thread.run(tell())
        assert loop_thread.run(read()) == "once"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("while_it_computes", [True, False])
def test_an_interrupt_cancels_the_work_which_cleans_up_before_it_comes_out(while_it_computes: bool):
    cleaned: list[str] = []

    async def work() -> None:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        try:
            if while_it_computes:
                await computed(lambda: time.sleep(30))
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("cleaned")

    with LoopThread() as loop_thread:
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(work())
        assert cleaned == ["cleaned"]
        assert loop_thread.run(asyncio.sleep(0, "goes on")) == "goes on"
