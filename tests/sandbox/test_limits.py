"""The limits: each rung that works here holds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import boxes
import psutil
import pytest
from boxes import MIB, SMALL, sh

from rft.errors import InfrastructureError
from rft.sandbox import call, limits, probe
from rft.sandbox.call import Call, Outcome
from rft.sandbox.command import python_folders
from rft.sandbox.limits import CgroupV1, CgroupV2, Fence, Limits, UserScope, Watchdog
from rft.sandbox.workspace import Base, Workspace

pytestmark = boxes.needs_sandbox
SLEEP = ["sleep", f"60.{os.getpid()}"]
"""A process that other runs of these tests do not have."""

EATERS = """
import os, time
pids = []
for _ in range(4):
    pids.append(os.fork())
    if pids[-1] == 0:
        block = bytearray(b"x" * 60_000_000)
        time.sleep(1)
        os._exit(0)
print(all(os.waitpid(pid, 0)[1] == 0 for pid in pids))
"""


def fences() -> list[Fence]:
    """Return what works here: the rungs that this machine has, and the last one."""
    return [*(fence for fence in limits._ladder() if limits._works(fence)), Watchdog()]


def played(fence: Fence, cmd: list[str], given: Limits) -> Outcome:
    async def play() -> Outcome:
        means = replace((await probe.machine()).means, fence=fence)
        base = await Base.empty(python_folders())
        place = await Workspace.create(base, given.disk_bytes)
        try:
            return await call.run(means, place, given, Call(cmd))
        finally:
            place.close()
            base.close()

    return boxes.run(play())


@pytest.mark.slow
@pytest.mark.parametrize("fence", fences(), ids=lambda fence: fence.name)
def test_memory_of_all_processes_together(fence: Fence) -> None:
    eaters = [sys.executable, "-Ic", EATERS]
    outcome = played(fence, eaters, replace(SMALL, memory_bytes=150 * MIB))
    assert outcome.stdout != b"True\n"
    assert outcome.oom or isinstance(fence, UserScope)
    enough = played(fence, eaters, replace(SMALL, memory_bytes=600 * MIB))
    assert (enough.stdout, enough.oom) == (b"True\n", False)


@pytest.mark.parametrize("fence", fences(), ids=lambda fence: fence.name)
def test_number_of_processes(fence: Fence) -> None:
    bomb = (
        "import os, time\nnumber = 0\ntry:\n"
        "    while number < 100:\n        if os.fork() == 0: time.sleep(20); os._exit(0)\n        number += 1\n"
        "except OSError: pass\nprint(number)"
    )
    outcome = played(fence, [sys.executable, "-Ic", bomb], replace(SMALL, processes=20))
    assert 15 <= int(outcome.stdout) <= 20
    few = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.1 & done; wait; echo all"
    assert played(fence, sh(few), replace(SMALL, processes=20)).stdout == b"all\n"


def groups() -> list[Path]:
    fence = limits.best()
    return list(fence.parent.glob(f"rft-sandbox-{os.getpid()}-*")) if isinstance(fence, CgroupV1 | CgroupV2) else []


def test_no_group_is_left() -> None:
    played(limits.best(), sh("sleep 30 & exit 0"), SMALL)
    played(limits.best(), ["sleep", "30"], replace(SMALL, wall_s=0.2))
    assert groups() == []


@pytest.mark.skipif(not isinstance(limits.best(), CgroupV1 | CgroupV2), reason="there are no cgroups here to use")
def test_what_a_killed_process_left_is_removed_at_the_next_start() -> None:
    fence = limits.best()
    program = (
        "import os, subprocess, sys; from rft.sandbox import limits; cell = limits.best().cell(limits.Limits());"
        f"child = subprocess.Popen([*cell.prefix, *{SLEEP}], stdout=subprocess.DEVNULL);"
        "print(cell.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    left = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True).stdout.split()
    assert left
    assert all(Path(folder).exists() for folder in left)
    while not any((Path(folder) / "cgroup.procs").read_text() for folder in left):
        time.sleep(0.01)
    limits._sweep.cache_clear()
    fence.cell(SMALL).close()
    assert not any(Path(folder).exists() for folder in left)
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == SLEEP]


def test_groups_of_the_living_stay() -> None:
    fence = limits.best()
    cell = fence.cell(SMALL)
    limits._sweep.cache_clear()
    fence.cell(SMALL).close()
    done = subprocess.run([*cell.prefix, "true"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    cell.close()


def test_the_watchdog_counts_shared_pages_once() -> None:
    """A program that forks with much memory has it once, whatever the sum of its processes says."""
    program = (
        "import os, time; block = bytearray(b'x' * 60_000_000)\n"
        "pids = [os.fork() for _ in range(1)]\n"
        "if pids[0]: pids += [os.fork()]\n"
        "time.sleep(0.6)\n"
        "if all(pids): [os.waitpid(pid, 0) for pid in pids]; print('survived')"
    )

    outcome = played(Watchdog(), [sys.executable, "-Ic", program], replace(SMALL, memory_bytes=150 * MIB))
    assert outcome.stdout == b"survived\n"


def test_limits_that_cannot_be_set_are_no_fault_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"limits of a sandbox cannot be set \(cgroup v2\)"):
        played(CgroupV2(tmp_path / "missing"), ["true"], SMALL)


def test_a_cell_that_cannot_be_joined_is_no_fault_of_the_program(tmp_path: Path) -> None:
    async def play() -> None:
        cell = limits.GroupCell(tmp_path / "no" / "group", "memory.events")
        done = await asyncio.create_subprocess_exec(*cell.prefix, "true", stderr=subprocess.PIPE)
        _, errors = await done.communicate()
        assert done.returncode != 0
        assert b"no/group" in errors

    boxes.run(play())
