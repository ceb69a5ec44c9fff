"""The figure of the second command: how long `make test` takes, linters and types included, in this
working tree."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from bench.measure import Figure, Part, failed

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / ".rft" / "bench" / "test.log"


def test_time(args: list[str]) -> Figure:
    """Seconds of `make test`, set up before."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with LOG.open("wb") as log:  # and nobody watches its processes: that took a quarter of a core
        done = subprocess.run(
            ["make", "-s", "test", f"ARGS={' '.join(args)}"], cwd=ROOT, stdout=log, stderr=log, check=False
        )
    wall_s = time.monotonic() - start
    if done.returncode:
        return failed("make test", f"make test failed: see {LOG.relative_to(ROOT)}")
    passed = re.findall(r"(\d+) passed", LOG.read_text(encoding="utf-8", errors="replace"))
    return Figure((Part("make test", wall_s, "s", at_most=600, n=int(passed[-1])),))


FIGURES = {"test_time": test_time}
