"""What our child processes have in common: the tree that they import, their end, their last words.

A stage, a tool server, a tool worker and a follower of the trainer each run for one parent. One
that outlived it would write into the next run. So each asks the kernel to be killed with its parent
(`die_with`), or, where it cannot import this module, begins with `DIES_WITH_PARENT`. Two other ends
are not this one. A follower of the trainer reads a pipe to its end, by which its leader also stops
it in order. A scheduled run is interrupted, not killed, so that its end is recorded
(tasks/runs/clone.py).

What a process prints goes to a file without a name, and its end is shown if the process dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import IO

TAIL_BYTES = 2000

DIES_WITH_PARENT = """
import ctypes, os, signal, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.getppid() == int(sys.argv.pop(1)) or os._exit(1)
"""
"""`die_with` as the beginning of a program for `python -I -c`, which may find no `rft`, or another
one.

Its first argument is the parent's id.
"""


def die_with(parent: int | None = None) -> None:
    """Ask the kernel to kill this process (SIGKILL: a hanging tool must not prevent it) when its
    parent ends.

    `parent`: its id, if it told us; then we also end if it ended before we asked. Linux sends the
    signal at the end of the parent's *thread*. Elsewhere there is no such promise, and the parent's
    own clean-up has to do.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")


def child_environment() -> dict[str, str]:
    """Our own environment, for a child that must import the tree that we run from."""
    ours = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])}


def tail(output: IO[bytes], num_bytes: int = TAIL_BYTES) -> str:
    """The end of what a process wrote to `output`. `pread` leaves the writer's position alone."""
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), num_bytes, max(0, size - num_bytes)).decode("utf-8", "replace")


def last_words(tail: str) -> str:
    """The end of a message about a process that died."""
    return f"Its last words:\n{tail.strip()}" if tail.strip() else "It printed nothing."
