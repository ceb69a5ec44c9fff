"""The figure of the set-up: how long until a fresh clone has its packages, with and without a lock?

Before there was a lock, pip's resolver chose the versions, although each one was pinned, and pip
compiled each file. Both ways install the same packages, each into its own clone, in turns, with
pip's cache filled before. The way without a lock is the Makefile of the last such commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.measure import Figure, Part, failed, unmeasured

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_A_LOCK = "e4a2faa0b62b523aa04b49460c7982ae9738f6eb"
TURNS = 2
SHARE = 0.5
_NOT_OURS = "VIRTUAL_ENV", "MAKEFLAGS", "PYTHONDONTWRITEBYTECODE"
"""Variables that this process may have and an ordinary shell has not."""


def setup_time(args: list[str]) -> Figure:
    """Seconds of `make setup` in a fresh clone, as a share of the way without a lock (at most 0.5).
    ARGS: the number of turns."""
    turns = int(args[0]) if args else TURNS
    old = subprocess.run(["git", "show", f"{WITHOUT_A_LOCK}:Makefile"], cwd=ROOT, capture_output=True, text=True)
    if old.returncode:
        return unmeasured(
            "make setup", f"this clone's history has no commit {WITHOUT_A_LOCK[:10]}: git fetch --unshallow"
        )
    ours, before = list[float](), list[float]()
    try:
        _seconds(None)  # fills pip's cache
        for _ in range(turns):
            ours.append(_seconds(None))
            before.append(_seconds(old.stdout))
            print(f"[figure] {ours[-1]:.0f} s, and {before[-1]:.0f} s without a lock", file=sys.stderr, flush=True)
    except RuntimeError as error:
        return failed("make setup", str(error))
    shares = [one / other for one, other in zip(ours, before, strict=True)]
    share = Part("share of the time without a lock", median(shares), "", SHARE, None, min(shares), max(shares), turns)
    return Figure((share, _shown("make setup", ours), _shown("without a lock", before)))


def _shown(name: str, seconds: list[float]) -> Part:
    return Part(name, median(seconds), "s", low=min(seconds), high=max(seconds), n=len(seconds))


def _seconds(makefile: str | None) -> float:
    """Set up a fresh clone. Raises RuntimeError if that fails."""
    with tempfile.TemporaryDirectory(prefix="rft-setup-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if makefile is not None:
            (clone / "Makefile").write_text(makefile)
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        began = time.monotonic()
        done = subprocess.run(["make", "setup"], cwd=clone, env=environment, capture_output=True, text=True)
        wall_s = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(
                f"make setup ended with exit code {done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}"
            )
        shutil.rmtree(clone)
        return wall_s


FIGURES = {"setup_time": setup_time}
