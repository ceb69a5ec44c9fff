"""Run one call of a sandbox until it ends, at the latest at its deadline.

bubblewrap reports on a pipe of its own which process is number 1 inside, and how the program ended.
So we can tell a program that failed (it has an exit code) from a sandbox that could not be made (no
exit code), which is not the program's fault. When number 1 is gone, the kernel has ended all other
processes inside. We wait for that before we answer, so no daemon writes to the workspace after a
call.

Making the sandbox takes most of the time, and does not depend on the command. So a call has two
halves. `prepare` makes the sandbox with a waiting shell in it, and `run` sends the command to the
shell. A sandbox that is called repeatedly prepares its next call while one runs.

Output beyond the limit is read and discarded, so that a full pipe does not block the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rft.errors import InfrastructureError
from rft.sandbox import command, programs
from rft.sandbox.limits import Cell, Fence, Limits
from rft.sandbox.workspace import Workspace

KILL_S = 10.0
"""How long the kernel may take to end killed processes."""
_PIECE = 65536


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: `Outcome(0, b"hi\\n", b"")`."""

    returncode: int
    """The program's exit code, or 128 + the signal that ended it."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """It was killed at the deadline."""
    truncated: bool = False
    """Its output was longer than the limit, and the rest was discarded."""
    oom: bool = False
    """Processes were killed because they used too much memory."""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Means:
    """What calls use on this machine (rft/sandbox/probe.py finds it out)."""

    fence: Fence
    features: command.Features = field(default_factory=command.Features)
    filter_program: bytes | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A program to run: `Call(["python3", "-c", "print(1)"])`."""

    cmd: Sequence[str]
    stdin: bytes = b""
    cwd: str = command.WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Ready:
    """A call that waits for its command, in the cell that limits it. Close it if no command
    follows."""

    cell: Cell
    process: asyncio.subprocess.Process
    status: _Status
    script: int
    """The script with which the shell becomes the program; it is still empty."""

    async def close(self) -> None:
        """End all its processes, and free its cell."""
        try:
            await asyncio.shield(_kill(self.process, self.status))
        finally:
            os.close(self.script)
            self.status.close()
            self.cell.close()


async def prepare(means: Means, workspace: Workspace, limits: Limits) -> Ready:
    """Make a sandbox, and in it a shell that waits for a command. Raises InfrastructureError."""
    try:
        cell = means.fence.cell(limits)
    except OSError as error:
        raise InfrastructureError(f"The limits of a sandbox cannot be set ({means.fence.name}): {error}") from None
    with contextlib.ExitStack() as undone:
        undone.callback(cell.close)
        status_pipe, status_end = os.pipe()
        status = _Status(status_pipe)
        undone.callback(status.close)
        script = _in_memory(b"")
        undone.callback(os.close, script)
        with _descriptors(status_end, means) as descriptors:
            process = await _start(_argv(means, cell, workspace, limits, script, descriptors), descriptors)
        undone.pop_all()
    return Ready(cell, process, status, script)


async def run(
    means: Means, workspace: Workspace, limits: Limits, call: Call, ready: Awaitable[Ready] | None = None
) -> Outcome:
    """Run a program in a workspace. Raises InfrastructureError when the sandbox cannot be made.
    When cancelled, kills all processes. `ready`: a call that was prepared with the same workspace
    and limits."""
    try:
        return await _run(means, workspace, limits, call, ready)
    except OSError as error:
        remedy = " Allow more open files: `ulimit -n`." if error.errno == errno.EMFILE else ""
        raise InfrastructureError(f"A sandbox cannot be run: {error}.{remedy}") from None


async def _run(
    means: Means, workspace: Workspace, limits: Limits, call: Call, waiting: Awaitable[Ready] | None
) -> Outcome:
    started = time.monotonic()
    ready = await _first(waiting) or await prepare(means, workspace, limits)
    end = _End(_Output(limits.output_bytes), _Output(limits.output_bytes))
    try:
        try:
            os.pwrite(ready.script, command.script(call.cmd, call.cwd, call.env).encode(), 0)
            async with asyncio.timeout(limits.wall_s):
                await _until_the_end(ready.process, ready.cell, b"\n" + call.stdin, end)
        except TimeoutError:
            end.timed_out = True
        finally:
            await asyncio.shield(_kill(ready.process, ready.status))
        oom = ready.cell.oom()
    finally:
        os.close(ready.script)
        ready.status.close()
        ready.cell.close()
    exit_code = ready.status.exit_code
    if exit_code is None and not end.timed_out and not oom:
        errors = end.err.text().decode("utf-8", "replace").strip()[-1000:]
        raise InfrastructureError(f"The sandbox cannot be made: {errors or 'it ended without a message'}")
    return Outcome(
        128 + signal.SIGKILL if exit_code is None else exit_code,
        end.out.text(),
        end.err.text(),
        timed_out=end.timed_out,
        truncated=end.out.cut or end.err.cut,
        oom=oom,
        wall_s=time.monotonic() - started,
    )


async def _first(waiting: Awaitable[Ready] | None) -> Ready | None:
    """Return the prepared call; None if preparing failed, perhaps because of the last call."""
    with contextlib.suppress(InfrastructureError, OSError):
        return await waiting if waiting is not None else None
    return None


def _argv(
    means: Means, cell: Cell, workspace: Workspace, limits: Limits, script: int, descriptors: command.Descriptors
) -> list[str]:
    """Write the chain of programs that command.py describes."""
    base = workspace.base
    user_namespace = workspace.user_namespace if base.mode.user_namespace else None
    argv = [*cell.prefix, *command.opened(os.getpid(), script)]
    argv += command.enter(os.getpid(), workspace.mount_namespace, user_namespace, base.user)
    argv += command.bubblewrap(means.features, descriptors, base.binds)
    address_bytes = None if means.fence.counts_together else limits.memory_bytes
    argv += command.limited(limits.processes, limits.cpu_s, limits.file_bytes, address_bytes)
    return [*argv, *command.WAIT]


async def _start(argv: Sequence[str], descriptors: command.Descriptors) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=descriptors.all(),
            cwd="/",
            env=programs.environment(),  # our own holds secrets, and programs inside can read that of number 1
            start_new_session=True,
        )
    except OSError as error:
        raise InfrastructureError(f"The sandbox cannot be started: {error}") from None


@contextlib.contextmanager
def _descriptors(status: int, means: Means) -> Iterator[command.Descriptors]:
    """Yield the descriptors that bubblewrap inherits; close our side afterwards."""
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, status)
        status = _above(status)
        opened.callback(os.close, status)

        def holding(content: bytes) -> int:
            descriptor = _in_memory(content)
            opened.callback(os.close, descriptor)
            return descriptor

        passwd, group = map(holding, command.passwd_and_group())
        program = means.filter_program
        yield command.Descriptors(status, passwd, group, None if program is None else holding(program))


def _in_memory(content: bytes) -> int:
    """Return a descriptor from which `content` is read."""
    low = os.memfd_create("rft", os.MFD_CLOEXEC)
    os.write(low, content)
    os.lseek(low, 0, os.SEEK_SET)
    try:
        return _above(low)
    finally:
        os.close(low)


def _above(descriptor: int) -> int:
    """Return a copy whose number no shell uses for its own."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, command.SCRIPT + 1)


# -- the end ---------------------------------------------------------------------------------------
@dataclass
class _Output:
    """The start of a stream, up to a limit."""

    limit: int
    pieces: list[bytes] = field(default_factory=list)
    length: int = 0
    cut: bool = False

    def add(self, piece: bytes) -> None:
        room = self.limit - self.length
        self.cut |= len(piece) > room
        if room > 0:
            self.pieces.append(piece[:room])
            self.length += len(self.pieces[-1])

    def text(self) -> bytes:
        return b"".join(self.pieces)


@dataclass
class _End:
    """What is known so far about how a call ends."""

    out: _Output
    err: _Output
    timed_out: bool = False


async def _until_the_end(process: asyncio.subprocess.Process, cell: Cell, stdin: bytes, end: _End) -> None:
    """Feed and read the program until it ends, or until its cell says that it must end."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    work = asyncio.gather(
        _feed(process.stdin, stdin), _read(process.stdout, end.out), _read(process.stderr, end.err), process.wait()
    )
    watch = asyncio.ensure_future(cell.watch(process.pid))
    try:
        await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        work.cancel()
        await asyncio.gather(watch, work, return_exceptions=True)


async def _feed(stream: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if content:
            stream.write(content)
            await stream.drain()
    stream.close()


async def _read(stream: asyncio.StreamReader, kept: _Output) -> None:
    while piece := await stream.read(_PIECE):
        kept.add(piece)


async def _kill(process: asyncio.subprocess.Process, status: _Status) -> None:
    """Kill all processes that still run, and wait until they are gone."""
    if process.returncode is None:
        process.kill()
    status.kill()
    try:
        async with asyncio.timeout(KILL_S):
            await process.wait()
            await status.all_gone()
    except TimeoutError:
        raise InfrastructureError(f"A sandbox could not be ended within {KILL_S:g} s.") from None
    finally:
        # asyncio has no public way to close the pipes of a process that did not use them to the end
        process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]


class _Status:
    """What bubblewrap reports about the inside."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.exit_code: int | None = None
        self._pidfd: int | None = None
        self._text = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._arrived)

    def _arrived(self) -> None:
        while True:
            try:
                piece = os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                self._loop.remove_reader(self._descriptor)
                return
            *lines, self._text = (self._text + piece).split(b"\n")
            for line in lines:
                report = json.loads(line)
                self.exit_code = report.get("exit-code", self.exit_code)
                if "child-pid" in report:
                    with contextlib.suppress(ProcessLookupError):
                        self._pidfd = os.pidfd_open(report["child-pid"])

    def kill(self) -> None:
        """Kill number 1 inside, which ends all processes there."""
        self._arrived()
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def all_gone(self) -> None:
        """Wait until number 1 is gone; it is the last to go."""
        self._arrived()
        if self._pidfd is not None:
            gone = asyncio.Event()
            self._loop.add_reader(self._pidfd, gone.set)
            try:
                await gone.wait()
            finally:
                self._loop.remove_reader(self._pidfd)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._pidfd is not None:
            os.close(self._pidfd)
