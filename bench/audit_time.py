"""The figure of an audit's time: a year of 50 runs and 1,000 entries.

Everything is hashed again each time: Git's objects, DVC's bytes, the whole ledger. As in any
command, signatures that this clone has verified before are believed. Those that a model rests on
are verified again. Each audit is measured as people start it, at the command line, in its own
process.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import audit_world
from bench.measure import Figure, Part
from tasks.runs.clone import Clone

RUNS, ENTRIES, TIMES = 50, 1000, 3


def audit_time(args: list[str]) -> Figure:
    """50 runs, 1,000 entries: to audit the served version (10 s) and everything (60 s), and growth
    from 12 over 25 to 50 runs (linear)."""
    small = "--small" in args
    runs, entries, times = (4, 40, 1) if small else (RUNS, ENTRIES, TIMES)
    sizes = (runs // 4, runs // 2, runs)
    one: dict[int, list[float]] = {}
    every: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as place, audit_world.entered(Path(place)):
        root = Path(place)

        def keep(number: int, clone: Clone) -> None:
            if number in sizes:
                shutil.copytree(clone.root, root / f"after-{number}" / "clone", symlinks=True)

        audit_world.year(root / "year", runs, entries, at=keep)
        for size in sizes:
            clone = Clone(root / f"after-{size}" / "clone")
            _ask(clone, "tiny@champion")  # verifies every signature once, and remembers
            one[size] = [_ask(clone, "tiny@champion") for _ in range(times)]
            every[size] = [_ask(clone, "--all") for _ in range(times)]
        chain = _chain(clone)
    print(f"one: {one}, every: {every}", file=sys.stderr)
    quarter, half, whole = (median(every[size]) for size in sizes)
    exponent = math.log(whole / quarter) / math.log(sizes[2] / sizes[0])
    parts = (
        Part("audit the served version", median(one[runs]), "s", at_most=10, high=max(one[runs]), n=times),
        Part("audit everything", whole, "s", at_most=60, high=max(every[runs]), n=times),
        Part("audit everything: exponent of growth with the runs", exponent, at_most=None if small else 1.15),
        Part("audit everything: time at all runs / at half of them", whole / half, at_most=None if small else 2.3),
        Part("versions that the served one's weights came from", chain, "versions"),
        Part("runs", runs, "runs"),
        Part("entries of the ledger", entries, "entries"),
    )
    return Figure(parts, {"one": one, "every": every})


def _ask(clone: Clone, what: str) -> float:
    """Return the seconds of `rft audit`. Raises if a link is broken."""
    command = [sys.executable, "-P", "-m", "flows.cli", "audit", what]
    environment = os.environ | {"PYTHONPATH": str(audit_world.ROOT)}
    began = time.monotonic()
    done = subprocess.run(command, cwd=clone.root, env=environment, capture_output=True, text=True, check=False)
    spent = time.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"rft audit {what} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return spent


def _chain(clone: Clone) -> int:
    from tasks import audit

    found = audit.ask(clone, audit.Question("tiny@champion"), report_line=audit_world.silent)
    return sum(link.says in ("are those of", "were trained on those of") for link in found.links)


FIGURES = {"audit_time": audit_time}
