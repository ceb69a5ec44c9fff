"""The figure of the second command: how long `make test` takes, linters and types included, in this working tree."""

from __future__ import annotations

import re
from pathlib import Path

from bench.measure import Figure, Part, failed
from bench.watch import watch

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / ".rft" / "bench" / "test.log"


def test_time(args: list[str]) -> Figure:
    """Seconds of `make test`, set up before."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    seen = watch(["make", "-s", "test", f"ARGS={' '.join(args)}"], ROOT, LOG)
    if seen.rc:
        return failed("make test", f"make test failed: see {LOG.relative_to(ROOT)}")
    passed = re.findall(r"(\d+) passed", LOG.read_text(encoding="utf-8", errors="replace"))
    return Figure((Part("make test", seen.wall_s, "s", at_most=600, n=int(passed[-1])),))


FIGURES = {"test_time": test_time}
