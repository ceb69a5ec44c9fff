"""The figures of the tests: how long does `make test` take, and all that a change must pass?

Both are measured in this working tree, which is set up before. The result also names the ten
slowest files, with the seconds of their tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "tests"
TEST_S, CI_S = 300, 900
DISTURBED = {"RFT_TEST_DISTURB": "1"}
"""The environment that .ci/run sets."""


def test_time(args: list[str]) -> Figure:
    """Seconds of `make test`, set up before (at most 300)."""
    found, slowest = _tests("test", args, {})
    return Figure(
        (Part("make test", found.value, "s", TEST_S, n=found.n, reason=found.reason, failed=found.failed),), slowest
    )


def ci_time(args: list[str]) -> Figure:
    """Seconds of what .ci/run runs after set-up: `make test`, `make test-rest` and the small demo
    (at most 900)."""
    quick, one = _tests("test", args, DISTURBED)
    rest, other = _tests("test-rest", args, DISTURBED)
    demo = _timed("demo", ["DEMO=--small"], {})
    parts = (quick, rest, demo)
    values = [part.value for part in parts]
    whole = None if None in values else sum(value for value in values if value is not None)
    reasons = "; ".join(part.reason for part in parts if part.reason)
    headline = Part(
        "make test, make test-rest and the small demo", whole, "s", CI_S, reason=reasons, failed=bool(reasons)
    )
    return Figure((headline, *parts), {"make test": one, "make test-rest": other})


def _tests(target: str, args: list[str], environment: dict[str, str]) -> tuple[Part, dict[str, float]]:
    """Run one of the two commands. Return its time, and the seconds of its ten slowest files."""
    told = PLACE / f"{target}.xml"
    told.unlink(missing_ok=True)
    part = _timed(target, [f"ARGS=-o junit_family=xunit1 --junitxml={told} {' '.join(args)}"], environment)
    spent: defaultdict[str, float] = defaultdict(float)
    for case in ET.parse(told).iter("testcase") if told.exists() else ():
        spent[case.get("file", "")] += float(case.get("time", 0))
    slowest = sorted(spent.items(), key=lambda one: -one[1])[:10]
    return part, {file: round(seconds, 1) for file, seconds in slowest}


def _timed(target: str, arguments: list[str], environment: dict[str, str]) -> Part:
    PLACE.mkdir(parents=True, exist_ok=True)
    log, start = PLACE / f"{target}.log", time.monotonic()
    with log.open("wb") as out:  # its processes are not watched: that took a quarter of a core
        done = subprocess.run(
            ["make", "-s", target, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=out,
            stderr=out,
            check=False,
        )
    wall_s = time.monotonic() - start
    if done.returncode:
        return Part(
            f"make {target}", None, n=0, failed=True, reason=f"make {target} failed: see {log.relative_to(ROOT)}"
        )
    passed = re.findall(r"(\d+) passed", log.read_text(encoding="utf-8", errors="replace"))
    return Part(f"make {target}", wall_s, "s", n=int(passed[-1]) if passed else 1)


FIGURES = {"test_time": test_time, "ci_time": ci_time}
