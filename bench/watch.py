"""Runs a command and watches its whole process tree: memory, stages, and a kill -9 on time.

It measures the peak memory, and how long each stage's process lived. The tree is found by parents.
A process whose parent dies would leave the tree. So during the watch this process adopts orphans
(Linux, prctl), and sees them as its own children. In this way it also notices a stage that outlived
the command. Memory is the sum of PSS (shared pages counted once), read five times a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
MEMORY_EVERY_S = 0.2
GRACE_S = 10.0
"""How many seconds a stage may outlive the killed command."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the command once the process of `stage` has lived for `after_s`."""

    stage: str
    after_s: float


@dataclass(slots=True)
class Watched:
    rc: int = 0
    wall_s: float = 0.0
    peak_gib: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds that its processes lived, in order of first appearance."""
    killed: bool = False
    outlived: list[str] = field(default_factory=list)
    """Stages whose process was still there GRACE_S after the kill."""


class Family:
    """The processes that descend from this one and were not there before."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._strangers = set(self._me.children(recursive=True))

    def members(self) -> list[psutil.Process]:
        return [process for process in self._me.children(recursive=True) if process not in self._strangers]


def watch(
    command: Sequence[str],
    cwd: Path,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    kill: Kill | None = None,
    limit_s: float = 3600.0,
) -> Watched:
    """Run a command, with its output in `log`. After `limit_s` everything is killed: rc is 124."""
    seen, started, family = Watched(), time.monotonic(), Family()
    _reap_orphans(True)
    try:
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            _follow(process, family, seen, kill, started + limit_s)
        seen.wall_s = time.monotonic() - started
    finally:
        seen.outlived = _end(family, patience_s=GRACE_S if seen.killed else 0.0)
        _reap_orphans(False)
    return seen


def _follow(
    process: subprocess.Popen[bytes], family: Family, seen: Watched, kill: Kill | None, deadline: float
) -> None:
    born: dict[int, tuple[str, float]] = {}
    memory_at = 0.0
    while process.poll() is None:
        now, members = time.monotonic(), family.members()
        _bury(process.pid)
        for stage, pid in _stages(members):
            born.setdefault(pid, (stage, now))
            seen.stages.setdefault(stage, 0.0)
        for pid in [pid for pid in born if not psutil.pid_exists(pid)]:
            stage, since = born.pop(pid)
            seen.stages[stage] += now - since
        if now - memory_at >= MEMORY_EVERY_S:
            memory_at, seen.peak_gib = now, max(seen.peak_gib, sum(map(_pss, members)) / 2**30)
        if (
            kill
            and not seen.killed
            and any(stage == kill.stage and now - since >= kill.after_s for stage, since in born.values())
        ):
            process.kill()
            seen.killed = True
        if now > deadline:
            process.kill()
            process.wait()
            process.returncode = 124
            break
        time.sleep(POLL_S)
    for stage, since in born.values():
        seen.stages[stage] += time.monotonic() - since
    seen.rc = process.returncode


def _bury(command: int) -> None:
    """Reap dead orphans: DVC takes a zombie that holds a lock for a living process
    (psutil.pid_exists)."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid != command and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _stages(members: list[psutil.Process]) -> list[tuple[str, int]]:
    """Return the processes `rft-stage STAGE`."""
    found: list[tuple[str, int]] = []
    for process in members:
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if len(words) > 2 and Path(words[1]).name == "rft-stage":
            found.append((words[2], process.pid))
    return found


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def _end(family: Family, patience_s: float) -> list[str]:
    """End what the command left running. Returns the stages among it that outlived GRACE_S."""
    deadline = time.monotonic() + patience_s
    while (left := _stages(family.members())) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for process in (members := family.members()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(members, timeout=GRACE_S)
    return [stage for stage, _ in left]


def _reap_orphans(yes: bool) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)
