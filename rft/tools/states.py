"""What a recipe keeps for each rollout on its server: a workspace, a mailbox, a game.

    def setup(rollout):            once per trace id, before the first call or grade that takes it
        rollout.state = Mailbox(rollout.item)

    def send(to: str, rollout) -> str:       a tool, or grade(sample, item, rollout)
        return rollout.state.send(to)

    def teardown(rollout):         once: when the rollout is over or idle, or the server ends
        rollout.state.close()

The wire does not tell a server that a rollout starts, so the first call sets up. Our trainer posts
the trace id to /end after the grade; the state of other clients ends by its time to live. A rollout
that is over stays over. Otherwise a late call would find an empty mailbox, and the rollout would be
graded on that. So a late call is answered as our own fault, and the rollout is unscored.

Both functions have deadlines. A coroutine is canceled at its deadline. A plain function runs in a
thread, which nothing can end: what it sets up too late is torn down when it returns.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rft import config
from rft.types import Rollout

REMEMBERED = 100_000
"""How many rollouts are remembered as over."""

log = logging.getLogger("rft.tools.states")
_Function = Callable[[Rollout], Any]


class StateError(Exception):
    """A rollout has no usable state. It is the server's fault, not the policy's."""


@dataclass(slots=True)
class _OpenRollout:
    rollout: Rollout
    setup: asyncio.Task[None]
    busy: int = 0
    """The number of calls that are using it."""
    over: str = ""
    """Why it will be torn down when no call uses it any more."""
    used: float = field(default_factory=time.monotonic)


class States:
    """The states of one server. Use it in its event loop, within `running()`."""

    def __init__(self, setup: _Function, teardown: _Function | None, section: config.RolloutState) -> None:
        self._setup, self._teardown, self._section = setup, teardown, section
        self._kept: dict[str, _OpenRollout] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End idle rollouts during the block, and tear down all at its end."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(*(self.end(trace_id, "the server ends") for trace_id in [*self._kept]))
            await asyncio.gather(*self._background, return_exceptions=True)

    @asynccontextmanager
    async def using(self, trace_id: str, item: dict[str, Any]) -> AsyncIterator[Rollout]:
        """Yield the rollout with its state. It is not torn down within the block. Raises StateError
        for a rollout that is over or cannot be set up."""
        if not trace_id:
            raise StateError("the call names no trace_id, by which this recipe keeps state")
        if trace_id in self._over:
            raise StateError(f"rollout {trace_id} is over: {self._over[trace_id]}")
        kept = self._kept.get(trace_id)
        if kept is None:
            rollout = Rollout(trace_id, item)
            kept = self._kept[trace_id] = _OpenRollout(rollout, asyncio.create_task(self._set_up(rollout)))
        kept.busy += 1
        try:
            await asyncio.shield(kept.setup)  # a client that disconnects does not stop the setup for the next
            yield kept.rollout
        finally:
            kept.busy, kept.used = kept.busy - 1, time.monotonic()
            if kept.over and not kept.busy:
                await self.end(trace_id, kept.over)

    async def end(self, trace_id: str, why: str = "its end was posted") -> bool:
        """Tear down a rollout after the last call that uses it. Returns whether it had a state."""
        kept = self._kept.get(trace_id)
        self._remember(trace_id, why)
        if kept is None:
            return False
        if kept.busy:
            kept.over = why
            return True
        del self._kept[trace_id]
        await self._tear_down(kept.rollout)
        return True

    def _remember(self, trace_id: str, why: str) -> None:
        self._over.setdefault(trace_id, why)
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    async def _sweep(self) -> None:
        ttl_s = self._section.ttl_s
        while True:
            await asyncio.sleep(min(ttl_s / 4, 60))
            idle_since = time.monotonic() - ttl_s
            idle = [name for name, kept in self._kept.items() if not kept.busy and kept.used < idle_since]
            for name in idle:
                await self.end(name, f"it was idle for tools.state.ttl_s = {ttl_s:g} s")

    async def _set_up(self, rollout: Rollout) -> None:
        limit_s = self._section.setup_s
        work = _started(self._setup, rollout)
        try:
            if not (await asyncio.wait({work}, timeout=limit_s))[0]:
                self._clean_up_later(work, rollout)
                raise StateError(f"setup(rollout) took longer than tools.state.setup_s = {limit_s:g} s")
            work.result()
        except BaseException:
            self._kept.pop(rollout.trace_id, None)  # a retry sets up again
            raise

    def _clean_up_later(self, work: asyncio.Future[Any], rollout: Rollout) -> None:
        async def late() -> None:
            if inspect.iscoroutinefunction(self._setup):
                work.cancel()
            await asyncio.wait({work})
            if not work.cancelled() and work.exception() is None:
                await self._tear_down(rollout)

        task = asyncio.create_task(late())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _tear_down(self, rollout: Rollout) -> None:
        """Tear down a rollout. Failures are only logged, because the rollout is already over."""
        if self._teardown is None:
            return
        limit_s = self._section.teardown_s
        work = _started(self._teardown, rollout)
        if not (await asyncio.wait({work}, timeout=limit_s))[0]:
            work.cancel()
            log.warning("teardown of %s took longer than tools.state.teardown_s = %g s", rollout.trace_id, limit_s)
        elif error := work.exception():
            log.warning("teardown of %s failed", rollout.trace_id, exc_info=error)


def _started(function: _Function, rollout: Rollout) -> asyncio.Future[Any]:
    if inspect.iscoroutinefunction(function):
        return asyncio.ensure_future(function(rollout))
    return asyncio.get_running_loop().run_in_executor(None, function, rollout)
