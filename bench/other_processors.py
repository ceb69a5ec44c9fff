"""The figure `other_processors`: do the tests pass where sums come out with other digits?

A processor adds in the order of its vector instructions, so the last digits of a policy's numbers
are its own. A test that rests on them passes on one machine and fails on the next. One machine can
stand for others in three ways: noise of 1e-6 on the weights that each policy starts from
(tests/disturbed/sitecustomize.py), more threads, and narrower vector instructions. Noise is much
the strongest: four tests failed on a processor with AVX2 and passed on it under narrower
instructions.

The variant `plain` (one thread, all that this processor has) runs all tests but stories and those
for a GPU. The other variants run the files that can reach torch, by imports anywhere in them or in
what they import, by the programs that they hold as text, or by a fixture of a conftest.py: what no
disturbance reaches runs once. A variant that ended is kept in bench/results/other_processors/, with
a hash of the code, so that asking again goes on where it was. What pytest printed is in
.rft/bench/other_processors/.

    make figure NAME=other_processors
    make figure NAME=other_processors ARGS="seed-3 threads-2"    these alone, and what is kept
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from bench.measure import Figure, Part
from tasks.dependencies import imported

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "other_processors"
KEPT = ROOT / "bench" / "results" / "other_processors"
PLAIN = "plain"
VARIANTS: dict[str, dict[str, str]] = {
    PLAIN: {},
    **{f"seed-{seed}": {"RFT_TEST_DISTURB": str(seed)} for seed in range(1, 11)},
    **{f"threads-{number}": {"RFT_TEST_THREADS": str(number)} for number in (2, 4)},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
}
"""Name -> what is set in the environment of its tests."""
MATTERS = ("rft", "tasks", "flows", "recipes", "tests", "bench", "infra")
"""Folders whose files, and the files at the top, make another measurement of it."""
_TOPS = ("rft", "tasks", "flows", "bench", "tests")
_HEAVY = ("torch", "transformers", "peft")
_NAMES = re.compile(rf"\b(?:{'|'.join((*_TOPS, *_HEAVY))})(?:\.\w+)*\.?")
_OPTIONS = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True, slots=True)
class Outcome:
    tests: int
    """That ran: without those that were skipped."""
    failed: tuple[str, ...]
    broke: str = ""
    """Why pytest itself told nothing."""


def other_processors(args: list[str]) -> Figure:
    """Tests that fail with ten disturbed seeds, 1, 2, 4 threads, and other vector instructions."""
    if unknown := set(args) - VARIANTS.keys():
        sys.exit(f"other_processors: no variant is named {', '.join(sorted(unknown))}. Known: {', '.join(VARIANTS)}.")
    code = code_sha256(ROOT)
    outcomes: dict[str, Outcome] = {}
    for name in VARIANTS:
        found = _kept(name, code)
        if found is None and name in (args or VARIANTS):
            found = run(ROOT, [] if name == PLAIN else reaching(ROOT), VARIANTS[name], PLACE / name)
            _keep(name, code, found)
        if found is not None:
            outcomes[name] = found
    return figure(outcomes)


def figure(outcomes: dict[str, Outcome]) -> Figure:
    """Part by part; the headline has a value once every variant has one."""
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
    if not outcome.broke:  # that is measured again
        KEPT.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"code": code} | asdict(outcome), indent=1) + "\n"
        (KEPT / f"{name}.json").write_text(text, encoding="utf-8")


# -- one variant -----------------------------------------------------------------------------------
def run(
    root: Path, files: Sequence[Path], variant: dict[str, str], log: Path, options: Sequence[str] = _OPTIONS
) -> Outcome:
    """Run pytest once; no files: all of them. Its output goes to `log`.txt."""
    disturbances = {name for one in VARIANTS.values() for name in one}
    environment = {name: value for name, value in os.environ.items() if name not in disturbances} | variant
    report = log.with_suffix(".xml")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", *options, "-m", "not gpu and not story", f"--junitxml={report}"]
    command += [path.relative_to(root).as_posix() for path in files]
    what = f"{log.name}: {len(files) or 'all'} files"
    print(f"[other_processors] {what}, output in {log.with_suffix('.txt')}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with log.with_suffix(".txt").open("wb") as output:
        done = subprocess.run(command, cwd=root, env=environment, stdout=output, stderr=output, check=False)
    outcome = read(report, done.returncode)
    told = outcome.broke or f"{outcome.tests} tests, {len(outcome.failed)} failed"
    print(f"[other_processors] {what}: {told}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return outcome


def read(report: Path, returncode: int) -> Outcome:
    """Read pytest's outcome from its XML. A test whose set-up or clean-up breaks has failed too."""
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
    """Hash the files that git knows or would, as they are in the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256()
    for name in sorted(name for name in listed.split("\0") if name):
        top, _, rest = name.partition("/")
        if (not rest or top in MATTERS) and not name.startswith("bench/results/") and (root / name).is_file():
            digest.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


# -- which files -----------------------------------------------------------------------------------
def reaching(root: Path) -> list[Path]:
    """The test files that can reach torch."""
    fixtures = _fixtures(root)
    return [path for path in sorted((root / "tests").rglob("test_*.py")) if _reaches(root, path, fixtures)]


def _reaches(root: Path, file: Path, fixtures: dict[str, set[str]]) -> bool:
    waiting, seen = [*_names(root, file)], set[Path]()
    for wanted in _arguments(file):
        waiting += fixtures.get(wanted, ())
    while waiting:
        name = waiting.pop()
        if name.split(".")[0] in _HEAVY:
            return True
        for path in _files(root, name):
            if path not in seen:
                seen.add(path)
                waiting += _names(root, path)
    return False


def _fixtures(root: Path) -> dict[str, set[str]]:
    """What each function of a conftest.py imports, with that of the fixtures that it takes."""
    found: dict[str, set[str]] = {}
    takes: dict[str, list[str]] = {}
    for file in (root / "tests").rglob("conftest.py"):
        tree = _tree(file)
        atop = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        shared = (
            {name for node in atop for name in imported(root, file, node)} if file.parent.name != "tests" else set()
        )
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = shared | set(imported(root, file, node))
                takes[node.name] = [argument.arg for argument in node.args.args]
    for _ in takes:  # as often as a chain of fixtures may be long
        for name, taken in takes.items():
            found[name] |= {one for other in taken for one in found.get(other, ())}
    return found


def _arguments(file: Path) -> set[str]:
    functions = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {argument.arg for function in functions for argument in function.args.args}


@cache
def _names(root: Path, file: Path) -> frozenset[str]:
    """What a file imports, and what the programs and commands in its strings may."""
    tree = _tree(file)
    found = set(imported(root, file, tree))
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings import nothing
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            found.update(_in_text(root, node.value))
    return frozenset(found)


def _in_text(root: Path, text: str) -> Iterator[str]:
    """Names in a string: `rft.tools.server` for a process, `import torch` in a program, and
    `rft.stages.` for all that may follow. One word alone is a word."""
    for name in _NAMES.findall(text):
        if name.endswith("."):
            yield from (f"{name}{path.stem}" for path in root.joinpath(*name.split(".")).glob("*.py"))
        elif "." in name or f"import {name}" in text:
            yield name


@cache
def _files(root: Path, name: str) -> tuple[Path, ...]:
    """The files that importing a name loads: its packages, too. Tests import each other without
    `tests.`, too."""
    parts = name.split(".")
    places = [start.joinpath(*parts[:n]) for start in (root, root / "tests") for n in range(1, len(parts) + 1)]
    return tuple(
        file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()
    )


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


FIGURES = {"other_processors": other_processors}
