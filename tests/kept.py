"""Keep what is slow to make and the same in every session: made once, by one worker while the
others wait, and found again as long as what it depends on has not changed.

It lies in `.rft/tests`. Nobody may change it: copy it first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

PLACE = Path(__file__).resolve().parents[1] / ".rft" / "tests"
PROCESSOR = ("RFT_TEST_DISTURB", "RFT_TEST_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
"""What stands for another processor (bench/other_processors.py)."""
CPUINFO = Path("/proc/cpuinfo")
FOR_S = 24 * 3600.0
"""Another worktree's session may still read what a change has made old."""


def folder(name: str, make: Callable[[Path], Any], depends: Iterable[Path], day: date | None = None) -> Path:
    """Return the folder that `make` fills. `depends`: the files that decide what comes of it.
    `day`: for what grows old, as a request that somebody must approve in time."""
    digest = hashlib.sha256(repr((sys.version, _instructions(), day, *map(os.environ.get, PROCESSOR))).encode())
    for path in sorted(depends):
        digest.update(str(path).encode() + path.read_bytes())
    place = PLACE / f"{name}-{digest.hexdigest()[:16]}"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (whole := place / "whole").exists():  # made where it stays: it may hold its own path
            _forget_old(name)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            whole.touch()
    return place


def _instructions() -> list[str]:
    """The processor's: in a folder that two machines share, each keeps digits of its own."""
    return re.findall("^flags.*", CPUINFO.read_text(), re.MULTILINE)[:1] if CPUINFO.exists() else []


def _forget_old(name: str) -> None:
    for path in PLACE.glob(f"{name}-*"):
        if path.stat().st_mtime < time.time() - FOR_S:
            shutil.rmtree(path, ignore_errors=True)
