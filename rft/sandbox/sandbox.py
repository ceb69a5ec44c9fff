"""Run code that a model wrote, isolated from the host.

    with contextlib.closing(await Base.of_folder(Path("repository"))) as base:
        async with create(Spec(base, Limits(wall_s=10))) as sandbox:
            outcome = await sandbox.exec(["python3", "-c", "print(6 * 7)"])
            answer = await sandbox.read_file("answer.json")

Each call runs in new processes, and all of them end with it. The workspace, which the program sees
as /ws, and its /tmp persist. There is no network. A sandbox does one thing at a time: calls,
snapshots and restores wait for one another.

`info()` names the guarantees that this machine's kernel refuses. If it refuses one, `create` fails,
because code that nobody has read would be less confined than we think. `allow_weaker=True` accepts
that.

Namespaces are not a virtual machine. The program uses the host's kernel, though only by the system
calls that the filter allows. A fault in that kernel is a way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from rft.errors import InfrastructureError, UserError
from rft.sandbox import call, command, probe, reading
from rft.sandbox.call import Call, Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.probe import Info
from rft.sandbox.workspace import Base, Change, Snapshot, Workspace


@dataclass(frozen=True, slots=True)
class Spec:
    """What a sandbox starts from."""

    base: Base
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of each call, besides the few that rft/sandbox/command.py sets."""
    allow_weaker: bool = False
    """Also run where the kernel refuses a guarantee."""


class Sandbox:
    """A workspace, and calls in it. `create` and `branch` make one."""

    def __init__(self, spec: Spec, workspace: Workspace, machine: probe.Machine) -> None:
        self._spec, self._workspace, self._machine = spec, workspace, machine
        self._turn = asyncio.Lock()
        self._snapshots: dict[str, Snapshot] = {}
        self._ids = itertools.count(1)
        self._running: asyncio.Future[Outcome] | None = None
        self._next: asyncio.Task[call.Ready] | None = None
        self._called = False
        self._closing = self._closed = False

    async def exec(
        self,
        cmd: Sequence[str],
        input: bytes = b"",
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """Run a program to its end. `cwd` is relative to the workspace; `timeout` may only lower
        the limit. Raises InfrastructureError when no sandbox can be made, UserError for a command
        that no system can run."""
        _check(cmd, env or {})
        limits = self._spec.limits
        if timeout is not None:
            limits = replace(limits, wall_s=min(timeout, limits.wall_s))
        variables = {**self._spec.env, **(env or {})}
        async with self._using():
            where = f"{command.WORKSPACE}/{reading.check_folder(self._workspace.folder, cwd)}"
            what, means = Call(cmd, input, where, variables), self._machine.means
            ready, self._next = self._next, None
            self._running = asyncio.ensure_future(call.run(means, self._workspace, limits, what, ready))
            if self._called:  # a second call promises more calls; most graders call once
                self._next = asyncio.create_task(call.prepare(means, self._workspace, self._spec.limits))
            self._called = True
            try:
                return await self._running
            except asyncio.CancelledError:
                if self._closing:
                    raise InfrastructureError("The sandbox was closed during a call.") from None
                raise
            finally:
                self._running = None

    async def read_file(self, path: str, max_bytes: int = reading.MAX_READ_BYTES) -> bytes:
        """Read a regular file of the workspace. Raises reading.Refusal for anything else."""
        async with self._using():
            return await asyncio.to_thread(reading.read_file, self._workspace.folder, path, max_bytes)

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file, and make missing folders above it. Raises reading.Refusal."""
        owner = self._spec.base.user if os.geteuid() == 0 else None
        async with self._using():
            await asyncio.to_thread(reading.write_file, self._workspace.folder, path, content, owner)

    async def list_files(self, path: str = ".") -> list[reading.Entry]:
        """List all names below a folder, sorted. Raises reading.Refusal."""
        async with self._using():
            return await asyncio.to_thread(reading.list_files, self._workspace.folder, path)

    async def diff(self) -> list[Change]:
        """List what differs from the base, sorted by path."""
        async with self._using():
            return await asyncio.to_thread(self._workspace.changes)

    async def snapshot(self, name: str = "") -> str:
        """Keep the workspace's files as they are, without /tmp. Return the snapshot's id."""
        async with self._using():
            snapshot_id = f"{next(self._ids)}{'-' if name else ''}{name}"
            self._snapshots[snapshot_id] = await self._workspace.snapshot()
            return snapshot_id

    async def restore(self, snapshot_id: str) -> None:
        """Return to a snapshot. /tmp is empty afterwards."""
        async with self._using():
            snapshot = self._snapshot(snapshot_id)
            await self._drop()  # the prepared call has the old files
            await self._workspace.restore(snapshot)

    async def branch(self, snapshot_id: str, n: int) -> list[Sandbox]:
        """Make `n` sandboxes that start from a snapshot. Each must be closed."""
        made: list[Sandbox] = []
        async with self._using():
            snapshot = self._snapshot(snapshot_id)
            try:
                for _ in range(n):
                    base, disk_bytes = self._spec.base, self._spec.limits.disk_bytes
                    made.append(Sandbox(self._spec, await Workspace.create(base, disk_bytes, snapshot), self._machine))
            except BaseException:
                for sandbox in made:
                    await sandbox.close()
                raise
        return made

    async def close(self) -> None:
        """End the sandbox and any running call, and free what it wrote. May be called twice."""
        self._closing = True
        if self._running is not None:
            self._running.cancel()
        async with self._turn:
            if not self._closed:
                self._closed = True
                await self._drop()
                self._workspace.close()
                for snapshot in self._snapshots.values():
                    snapshot.close()

    @property
    def folder(self) -> int:
        """The workspace, as an open folder of this process, for code that walks it by `dir_fd`. A
        restore replaces it."""
        return self._workspace.folder

    def info(self) -> Info:
        """Say which guarantees hold, and by what means."""
        return self._machine.info

    async def _drop(self) -> None:
        """End the prepared call."""
        ready, self._next = self._next, None
        if ready is not None:
            with contextlib.suppress(InfrastructureError, OSError):
                await (await asyncio.shield(ready)).close()

    def _snapshot(self, snapshot_id: str) -> Snapshot:
        if snapshot_id not in self._snapshots:
            known = ", ".join(self._snapshots) or "none"
            raise UserError(f"There is no snapshot {snapshot_id!r} of this sandbox. There are: {known}.")
        return self._snapshots[snapshot_id]

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        async with self._turn:
            if self._closing or self._workspace.folder < 0:
                raise InfrastructureError("The sandbox is closed.")
            yield


@asynccontextmanager
async def create(spec: Spec) -> AsyncIterator[Sandbox]:
    """Make a sandbox, and close it at the end of the block. Raises InfrastructureError if a
    guarantee does not hold."""
    machine = await probe.machine()
    machine.info.require(spec.allow_weaker)
    sandbox = Sandbox(spec, await Workspace.create(spec.base, spec.limits.disk_bytes), machine)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _check(cmd: Sequence[str], env: Mapping[str, str]) -> None:
    if not cmd or isinstance(cmd, str):
        raise UserError(f"A command is a list of a program and its arguments, not {cmd!r}.")
    for text in (*cmd, *env, *env.values()):
        if "\0" in text:
            raise UserError(f"{text!r} holds a zero byte, which no argument or variable can.")
    for name in env:
        if not name or "=" in name:
            raise UserError(f"{name!r} cannot be the name of a variable.")
