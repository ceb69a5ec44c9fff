"""Start child processes that import our packages, end with their parent and explain their death.

A stage, a tool server, a tool worker and a follower of the trainer each run for one parent. A child
that outlived its parent would write into the next run. So each asks the kernel to kill it with its
parent (`die_with`), or, where it cannot import this module, begins with `DIES_WITH_PARENT`. Two
processes also end in other ways. A follower of the trainer reads a pipe, which its leader closes to
stop it. A scheduled run is interrupted, not killed, so that its end is recorded
(tasks/runs/clone.py).

`module_command` starts a module of ours by way of agent_rft.py, so that neither the current folder
nor the user's PYTHONPATH is on its import path.

A child's output goes to a file without a name. If the child dies, the end of that file is shown.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import IO

TAIL_BYTES = 2000
ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds our packages: a clone, a run's worktree, or site-packages."""

DIES_WITH_PARENT = """
import ctypes, os, signal, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.getppid() == int(sys.argv.pop(1)) or os._exit(1)
"""
"""`die_with` as the start of a program for `python -I -c`, which may find no `rft`, or another one.

The program's first argument is the parent's id.
"""


def die_with(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends (by SIGKILL, which a hanging tool
    cannot prevent).

    `parent`: its id, if known; then this process also ends if the parent ended before the call.
    Linux sends the signal at the end of the parent's *thread*. Other systems have no such signal;
    there only the parent's own clean-up ends its children.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")


def module_command(module: str, *arguments: str) -> list[str]:
    """Compose the command that runs a module of the engine, or of a package beside it, as
    `python -m` would."""
    return [sys.executable, "-P", "-s", str(ROOT / "agent_rft.py"), module, *arguments]


def tail(output: IO[bytes], num_bytes: int = TAIL_BYTES) -> str:
    """Read the end of what a process wrote to `output`, without moving the writer's position."""
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), num_bytes, max(0, size - num_bytes)).decode("utf-8", "replace")


def last_output(tail: str) -> str:
    """End a message about a process that died."""
    return f"Its last words:\n{tail.strip()}" if tail.strip() else "It printed nothing."
