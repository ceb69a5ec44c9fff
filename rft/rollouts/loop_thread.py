"""An event loop in a thread of its own, while the calling thread does the computing.

Decoding keeps a processor busy for seconds, and meanwhile tools, graders and deadlines need an
event loop that answers. So there are two threads. It matters which of them is new. PyTorch divides
an operation among helper threads. Each thread that computes gets its own helpers, which compete
with those of other threads. Decoding a small model in the new thread, on two cores, took 1.4 times
as long. The thread that learns already has helpers. So this thread samples as well, and the event
loop gets the new thread.

    with LoopThread() as loop_thread:
        loop_thread.run(work())     the loop runs `work`; this thread runs what `work` asks for
    await computed(function)        in `work`, or in a task of it: has this thread run a function
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, Self, TypeVar

T = TypeVar("T")

_loop_thread: ContextVar[LoopThread | None] = ContextVar("loop_thread", default=None)


def is_in_loop_thread() -> bool:
    """Tell whether this code runs in the loop of a `LoopThread`, while another thread computes."""
    return _loop_thread.get() is not None


async def computed(function: Callable[[], T]) -> T:
    """Run a function in the thread that computes. Call it only where `is_in_loop_thread` is
    true."""
    loop_thread = _loop_thread.get()
    assert loop_thread is not None, "no thread computes for this loop"
    return await asyncio.wrap_future(loop_thread.compute(function))


class LoopThread:
    """Like asyncio.Runner: open it, and run one coroutine at a time. All of them share the loop and
    one context."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # jobs of the running coroutine
        self._context = copy_context()
        self._context.run(_loop_thread.set, self)
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._serve, name="event loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._closed = self._begun.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns. When interrupted, cancel it, and let it clean up."""
        self._jobs = jobs = SimpleQueue()
        done: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def whole() -> None:
            try:
                done.set_result(await work)
            except BaseException as error:
                done.set_exception(error)
            finally:
                jobs.put(None)

        def begin() -> None:
            tasks.append(self._loop.create_task(whole(), context=self._context))

        self._loop.call_soon_threadsafe(begin)
        try:
            while (job := jobs.get()) is not None:
                job()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            wait([done])  # nobody waits for the jobs that are left
            raise
        return done.result()

    def compute(self, function: Callable[[], T]) -> Future[T]:
        """Ask the thread that is in `run` to call a function."""
        found: Future[T] = Future()

        def job() -> None:
            if not found.set_running_or_notify_cancel():
                return
            try:
                found.set_result(function())
            except Exception as error:
                found.set_exception(error)

        self._jobs.put(job)
        return found

    def _serve(self) -> None:
        async def until_closed() -> None:
            closed = asyncio.Event()
            self._begun.set_result((asyncio.get_running_loop(), closed))
            await closed.wait()

        asyncio.run(until_closed())
