"""Limit what a sandbox may use, by the strongest means that this machine offers.

    cgroup v2      a group of our own below a delegated one
    user scope     the same, made by the user's systemd
    cgroup v1      only as root
    watchdog       without a cgroup: limits each process, and checks their sum ten times a second

A cgroup counts the memory of all processes together, immediately, and the kernel ends them when it
is too much. A limit on each process does not count them together: eight processes may have eight
times as much. So the last means adds a watchdog. All means also limit the number of processes, the
length of a file and the processor time inside (rft/sandbox/command.py). The size of a tmpfs limits
the bytes on disk.

A `Cell` limits one call. It is made before the call and removed after it. If our process was killed
in between, its group stays. The group's name identifies our process, and the next process that
makes a cell removes the groups of dead processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from rft.errors import InfrastructureError
from rft.sandbox import programs

WATCH_S = 0.1
_PREFIX = "rft-sandbox"
_OVERHEAD = 3
"""Our own processes in each cell: bubblewrap, its number 1 inside, and the start of the next
one."""
_REMOVE_S = 5.0
_JOIN = 'echo $$ > "$0" && exec "$@"'
"""Commands of a shell that moves itself into a group and becomes the command."""
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use, and how much a sandbox may write: `Limits(wall_s=10)`."""

    wall_s: float = 30.0
    """Time until the whole tree of processes is killed."""
    cpu_s: int = 30
    """Processor time of each process."""
    memory_bytes: int = 512 * 2**20
    """Memory of all processes together."""
    processes: int = 64
    """Processes and threads at a time."""
    disk_bytes: int = 256 * 2**20
    """All that a sandbox writes: changes of the workspace, /tmp and /dev/shm together."""
    file_bytes: int = 64 * 2**20
    """The largest file that a process can write."""
    output_bytes: int = 2**20
    """How much is kept of stdout, and of stderr. Longer output is cut and marked."""


class Cell(Protocol):
    """The limits of one call."""

    prefix: list[str]
    """The words that come before the command."""

    def oom(self) -> bool:
        """Tell whether processes were killed for using too much memory."""
        ...

    async def watch(self, pid: int) -> None:
        """Return when the tree of processes below `pid` uses too much; without a watchdog, never
        return."""
        ...

    def close(self) -> None:
        """End all processes that still run in it, and remove it."""
        ...


class Fence(Protocol):
    """A means to limit calls; it makes cells."""

    @property
    def name(self) -> str: ...

    @property
    def counts_together(self) -> bool:
        """Whether the kernel counts the memory of all processes together."""
        ...

    def cell(self, limits: Limits) -> Cell: ...


# -- cgroups ---------------------------------------------------------------------------------------
@dataclass
class GroupCell:
    """A group of its own."""

    folder: Path
    events: str
    """The file that counts processes killed for their memory."""
    prefix: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = ["/bin/sh", "-c", _JOIN, str(self.folder / "cgroup.procs")]

    def oom(self) -> bool:
        counts = dict(line.split() for line in (self.folder / self.events).read_text(encoding="ascii").splitlines())
        return int(counts["oom_kill"]) > 0

    async def watch(self, pid: int) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        _remove(self.folder)


@dataclass(frozen=True)
class CgroupV2:
    """Groups below a group that we may divide."""

    parent: Path
    name: str = "cgroup v2"
    counts_together: bool = True

    def cell(self, limits: Limits) -> GroupCell:
        folder = _make(self.parent)
        _set(folder / "memory.max", limits.memory_bytes)
        _set(folder / "memory.swap.max", 0, optional=True)
        _set(folder / "memory.oom.group", 1, optional=True)
        _set(folder / "pids.max", limits.processes + _OVERHEAD)
        return GroupCell(folder, "memory.events")


@dataclass(frozen=True)
class CgroupV1:
    """Groups below our own in the memory hierarchy, as root. The number of processes is limited
    inside, where the program does not belong to root. Joining a group waits until all processors
    have passed through the kernel's scheduler: 0.1 ms on an idle machine, 14 ms on a busy one. So a
    call joins one hierarchy, not two."""

    parent: Path
    name: str = "cgroup v1"
    counts_together: bool = True

    def cell(self, limits: Limits) -> GroupCell:
        folder = _make(self.parent)
        _set(folder / "memory.limit_in_bytes", limits.memory_bytes)
        _set(folder / "memory.memsw.limit_in_bytes", limits.memory_bytes, optional=True)
        return GroupCell(folder, "memory.oom_control")


def _make(parent: Path) -> Path:
    _sweep(parent)
    folder = parent / f"{_PREFIX}-{os.getpid()}-{started(os.getpid())}-{next(_ids)}"
    folder.mkdir()
    return folder


def _set(file: Path, value: int, optional: bool = False) -> None:
    if optional and not file.exists():
        return
    file.write_text(str(value), encoding="ascii")


def _remove(folder: Path) -> None:
    """Kill the processes in a group until the kernel lets us remove it."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        with contextlib.suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"{folder}: processes in it cannot be killed.") from None
                for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.002)
                continue
        return


@functools.cache
def _sweep(parent: Path) -> None:
    """Remove the groups of dead processes, once per process."""
    for folder in parent.glob(f"{_PREFIX}-*"):
        pid, start = map(int, folder.name.removeprefix(f"{_PREFIX}-").split("-")[:2])
        if started(pid) != start:
            with contextlib.suppress(InfrastructureError):
                _remove(folder)


def started(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; 0 if there is no such process. The
    kernel reuses process ids, but with another start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[19])


# -- systemd ---------------------------------------------------------------------------------------
@dataclass
class ScopeCell:
    prefix: list[str]

    def oom(self) -> bool:
        """Return False. The answer is unknown, because systemd removes the group with its last
        process."""
        return False

    async def watch(self, pid: int) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        """Do nothing: systemd removes the scope."""


@dataclass(frozen=True)
class UserScope:
    """Scopes of the user's systemd."""

    address: str
    """XDG_RUNTIME_DIR."""
    name: str = "systemd user scope"
    counts_together: bool = True

    def cell(self, limits: Limits) -> ScopeCell:
        argv = ["env", f"XDG_RUNTIME_DIR={self.address}", "systemd-run", "--user", "--scope", "--quiet", "--collect"]
        argv += ["-p", f"MemoryMax={limits.memory_bytes}", "-p", "MemorySwapMax=0"]
        argv += ["-p", f"TasksMax={limits.processes + _OVERHEAD}", "--", "env", "-i"]
        return ScopeCell([*argv, *(f"{name}={value}" for name, value in programs.environment().items())])


# -- no cgroup -------------------------------------------------------------------------------------
@dataclass
class WatchedCell:
    memory_bytes: int
    prefix: list[str] = field(default_factory=list)
    _too_much: bool = False

    def oom(self) -> bool:
        return self._too_much

    async def watch(self, pid: int) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            tree = _tree(pid)
            # shared pages count in each process, so a second sum is needed before we end anything
            if sum(map(_resident, tree)) > self.memory_bytes and sum(map(_proportional, tree)) > self.memory_bytes:
                self._too_much = True
                return

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""


@dataclass(frozen=True)
class Watchdog:
    """Limits on each process, and a regular check of their sum."""

    name: str = "rlimits and watchdog"
    counts_together: bool = False

    def cell(self, limits: Limits) -> WatchedCell:
        return WatchedCell(limits.memory_bytes)


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{thread}/children")
                found += map(int, children.read_text(encoding="ascii").split())
    return found


def _resident(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


def _proportional(pid: int) -> int:
    """Return the memory of a process, with shared pages divided among the processes that share
    them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return _resident(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


# -- which -----------------------------------------------------------------------------------------
@functools.cache
def best() -> Fence:
    """Return the strongest means that works here. Each is tried once."""
    for fence in _ladder():
        if _works(fence):
            return fence
    return Watchdog()


def _ladder() -> list[Fence]:
    """List the means that might work, the strongest first."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    found: list[Fence] = []
    mount = next((place for place in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if _is_v2(place)), None)
    if mount is not None and "" in groups:
        ours = mount / groups[""].lstrip("/")
        # a group with processes cannot be divided, so a new group may be beside ours, not below
        divided = [folder for folder in (ours, *ours.parents) if folder.is_relative_to(mount) and _divides(folder)]
        found += [CgroupV2(folder) for folder in divided]
    if (address := os.environ.get("XDG_RUNTIME_DIR")) and shutil.which("systemd-run"):
        found.append(UserScope(address))
    if os.geteuid() == 0 and "memory" in groups:
        found.append(CgroupV1(Path("/sys/fs/cgroup/memory") / groups["memory"][1:]))
    return found


def _is_v2(place: Path) -> bool:
    return (place / "cgroup.controllers").exists()


def _divides(folder: Path) -> bool:
    """Tell whether a group controls memory and pids in the groups below it, and we may write to
    it."""
    with contextlib.suppress(OSError):
        handed = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
        return {"memory", "pids"} <= set(handed) and os.access(folder, os.W_OK)
    return False


def _works(fence: Fence) -> bool:
    with contextlib.suppress(OSError, subprocess.SubprocessError, InfrastructureError):
        cell = fence.cell(Limits())
        try:
            return subprocess.run([*cell.prefix, "true"], capture_output=True, timeout=10).returncode == 0
        finally:
            cell.close()
    return False
