"""The figure `other_processors`: do the tests pass if sums have other last digits?

A processor adds in the order of its vector instructions, so the last digits of a policy's numbers
depend on it. A test that relies on them passes on one machine and fails on the next. One machine
can stand for others in three ways: noise of 1e-6 on the weights that each policy starts from
(tests/disturbed/sitecustomize.py), other numbers of threads, and narrower vector instructions.
Noise is by far the strongest: four tests failed on a processor with AVX2, and passed there under
narrower instructions.

Each of ten variants runs all tests except stories and those for a GPU, with its own noise. The
first nine combine each number of threads with each set of instructions. A variant that ended is
kept in bench/results/other_processors/, with a hash of the code, so that the next measurement goes
on from there. What pytest printed is in .rft/bench/other_processors/.

    make figure NAME=other_processors
    make figure NAME=other_processors ARGS="seed-3 seed-4"    run only these; the others are kept
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "other_processors"
KEPT = ROOT / "bench" / "results" / "other_processors"
THREADS = ("1", "2", "4")
INSTRUCTIONS = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
VARIANTS: dict[str, dict[str, str]] = {
    f"seed-{n + 1}": {"RFT_TEST_DISTURB": str(n + 1), "RFT_TEST_THREADS": THREADS[n % 3]}
    | list(INSTRUCTIONS.values())[n // 3 % 3]
    for n in range(10)
}
"""Name -> what is set in the environment of its tests."""
MATTERS = ("rft", "tasks", "flows", "recipes", "tests", "bench", "infra")
"""If a file in these folders or at the top changes, everything is measured again."""
_OPTIONS = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True, slots=True)
class Outcome:
    tests: int
    """How many tests ran, without those that were skipped."""
    failed: tuple[str, ...]
    broke: str = ""
    """Why pytest itself gave no result."""


def other_processors(args: list[str]) -> Figure:
    """Tests that fail under ten seeds of noise, with 1, 2, 4 threads and other instructions."""
    if unknown := set(args) - VARIANTS.keys():
        sys.exit(f"other_processors: no variant is named {', '.join(sorted(unknown))}. Known: {', '.join(VARIANTS)}.")
    code = code_sha256(ROOT)
    outcomes: dict[str, Outcome] = {}
    for name in VARIANTS:
        found = _kept(name, code)
        if found is None and name in (args or VARIANTS):
            found = run(ROOT, VARIANTS[name], PLACE / name)
            _keep(name, code, found)
        if found is not None:
            outcomes[name] = found
    return figure(outcomes)


def figure(outcomes: dict[str, Outcome]) -> Figure:
    """Make the figure. The headline has a value once every variant has one."""
    parts = [_part(name, outcomes.get(name)) for name in VARIANTS]
    num_open = sum(part.value is None for part in parts)
    whole = Part(
        "all variants",
        None if num_open else sum(part.value or 0 for part in parts),
        "failures",
        at_most=0,
        n=sum(part.n for part in parts),
        reason=f"{num_open} of {len(parts)} variants have no value" if num_open else "",
    )
    failed = {name: list(one.failed) for name, one in outcomes.items() if one.failed}
    return Figure((whole, *parts), {"failed": failed})


def _part(name: str, outcome: Outcome | None) -> Part:
    if outcome is None:
        return Part(name, None, "failures", at_most=0, n=0, reason=f"{name} was not asked for")
    if outcome.broke:
        return Part(name, None, "failures", at_most=0, n=0, reason=f"{name}: {outcome.broke}", failed=True)
    return Part(name, len(outcome.failed), "failures", at_most=0, n=outcome.tests)


def _kept(name: str, code: str) -> Outcome | None:
    path = KEPT / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if found.pop("code", None) != code:
        return None
    return Outcome(found["tests"], tuple(found["failed"]), found["broke"])


def _keep(name: str, code: str, outcome: Outcome) -> None:
    if not outcome.broke:  # a broken variant is measured again
        KEPT.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"code": code} | asdict(outcome), indent=1) + "\n"
        (KEPT / f"{name}.json").write_text(text, encoding="utf-8")


# -- one variant -----------------------------------------------------------------------------------
def run(root: Path, variant: dict[str, str], log: Path, options: Sequence[str] = _OPTIONS) -> Outcome:
    """Run pytest once. Its output goes to `log`.txt."""
    disturbances = {name for one in VARIANTS.values() for name in one}
    environment = {name: value for name, value in os.environ.items() if name not in disturbances} | variant
    report = log.with_suffix(".xml")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", *options, "-m", "not gpu and not story", f"--junitxml={report}"]
    print(f"[other_processors] {log.name}: {variant}, output in {log.with_suffix('.txt')}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with log.with_suffix(".txt").open("wb") as output:
        done = subprocess.run(command, cwd=root, env=environment, stdout=output, stderr=output, check=False)
    outcome = read(report, done.returncode)
    told = outcome.broke or f"{outcome.tests} tests, {len(outcome.failed)} failed"
    print(f"[other_processors] {log.name}: {told}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return outcome


def read(report: Path, returncode: int) -> Outcome:
    """Read pytest's outcome from its XML. A test whose set-up or clean-up breaks has failed."""
    if returncode not in (0, 1) or not report.exists():
        return Outcome(0, (), f"pytest ended with {returncode}")
    tests, failed = set[str](), set[str]()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        if case.find("skipped") is None:
            tests.add(name)
    return Outcome(len(tests | failed), tuple(sorted(failed)), "" if bool(failed) == bool(returncode) else "odd report")


def code_sha256(root: Path) -> str:
    """Hash the files that Git tracks or would add, as they are in the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256()
    for name in sorted(name for name in listed.split("\0") if name):
        top, _, rest = name.partition("/")
        if (not rest or top in MATTERS) and not name.startswith("bench/results/") and (root / name).is_file():
            digest.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


FIGURES = {"other_processors": other_processors}
