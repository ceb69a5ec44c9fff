"""The figure `test_reach`: do the tests still find what they found when they took twice as long?

When tests are made quicker, one of them may stop checking something. Nobody notices, because it
still passes. So forty faults are planted, two in each of twenty modules whose tests became quicker,
in the code of today and in that of before. A comparison is reversed or moved by one, `and` becomes
`or`, a `not` is dropped, a number grows by one, a result is None. A seed chooses the faults among
the lines that both versions have. The tests of that module are run on each. A fault that was found
before must be found.

Some faults change nothing that anybody could see, so not all are found on either side. Each side is
a clone in .rft/bench/reach. Results are kept there, so that the next measurement goes on.

    make figure NAME=test_reach
    make figure NAME=test_reach ARGS="rft/stats.py"    run only this module; the others are kept
"""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Figure, Part, failed, unmeasured

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "reach"
BEFORE = "f9fa62e"
"""The last commit at which the second tier took 27 minutes."""
NEEDED_BEFORE = ("numba==0.68.1", "llvmlite==0.50.0")
"""Packages that this commit imports and today's code does not."""
SEED, FAULTS = 0, 2
TESTS = {
    "flows/cli/baseline.py": "tests/flows/test_baseline_verb.py",
    "flows/extension.py": "tests/flows/test_extension.py",
    "rft/gate/decide.py": "tests/gate tests/stages/test_gate.py",
    "rft/grading/alarm.py": "tests/grading/test_alarm.py",
    "rft/grading/preflight.py": "tests/grading/test_preflight.py",
    "rft/rollouts/play.py": "tests/rollouts/test_play.py",
    "rft/stages/baseline.py": "tests/stages/test_baseline.py",
    "rft/stages/drift.py": "tests/stages/test_drift.py",
    "rft/stages/train.py": "tests/stages/test_train.py tests/stages/test_train_collapse.py",
    "rft/stopping.py": "tests/test_stopping.py",
    "rft/tools/mcp.py": "tests/tools/test_mcp.py",
    "rft/trainer/distributed.py": "tests/trainer/test_distributed.py",
    "tasks/cancel.py": "tests/tasks/test_cancel.py",
    "tasks/dependencies.py": "tests/tasks/test_dependencies.py",
    "tasks/export.py": "tests/export",
    "tasks/ledger/verify.py": "tests/tasks/test_verify_ledger.py",
    "tasks/promotion/acts.py": "tests/tasks/test_promotion.py",
    "tasks/promotion/champions.py": "tests/tasks/test_champion.py",
    "tasks/promotion/registration.py": "tests/tasks/test_registration.py",
    "tasks/retention.py": "tests/tasks/test_retention.py",
}
"""Module -> its tests."""
OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
HANGS = 4
"""Tests hang if they take this many times the seconds without a fault. Somebody would notice."""


@dataclass(frozen=True, slots=True)
class Fault:
    module: str
    line: str
    """The whole line, as it is in the file. It occurs there once."""
    wrong: str

    def plant(self, text: str) -> str:
        lines = text.split("\n")
        lines[lines.index(self.line)] = self.wrong
        return "\n".join(lines)


def test_reach(args: list[str]) -> Figure:
    """Faults that the tests found before they became quick, and not now (at most 0 of 40)."""
    if unknown := set(args) - TESTS.keys():
        sys.exit(f"test_reach: no such module: {', '.join(sorted(unknown))}. Known: {', '.join(TESTS)}.")
    if subprocess.run(["git", "cat-file", "-e", BEFORE], cwd=ROOT, capture_output=True).returncode:
        return unmeasured("test_reach", f"this clone's history has no commit {BEFORE}: git fetch --unshallow")
    sides = Side.at("before", BEFORE, NEEDED_BEFORE), Side.at("now", "HEAD")
    lost, seen = list[str](), {side.name: list[bool | None]() for side in sides}
    for module in TESTS:
        for fault in faults(module, *((side.root / module).read_text(encoding="utf-8") for side in sides)):
            try:
                was, now = (side.finds(fault, ask=not args or module in args) for side in sides)
            except RuntimeError as error:
                return failed("test_reach", str(error))
            seen["before"].append(was)
            seen["now"].append(now)
            if was and now is False:
                lost.append(f"{module}: {fault.line.strip()} -> {fault.wrong.strip()}")
    asked = [pair for pair in zip(*seen.values(), strict=True) if None not in pair]
    num_open = len(seen["now"]) - len(asked)
    value = None if num_open else len(lost)
    reason = f"{num_open} of {len(seen['now'])} faults were not asked for" if num_open else ""
    parts = [Part(f"found {name}", sum(map(bool, found)), "faults", n=len(asked)) for name, found in seen.items()]
    return Figure(
        (Part("found before and not now", value, "faults", 0, n=len(asked), reason=reason), *parts), {"lost": lost}
    )


# -- faults ----------------------------------------------------------------------------------------
def faults(module: str, *texts: str) -> list[Fault]:
    """Choose this module's faults. They are the same for both versions of the text."""
    lines = [text.split("\n") for text in texts]
    known = [
        Fault(module, line, wrong)
        for line, wrong in sorted(_wrongs(texts[0]))
        if all(each.count(line) == 1 for each in lines)
    ]
    if len({one.line for one in known}) < FAULTS:
        raise ValueError(f"{module}: fewer than {FAULTS} lines of it are in both sides and may be changed")
    chosen = dict[str, Fault]()
    for fault in random.Random(f"{SEED} {module}").sample(known, len(known)):
        if len(chosen) < FAULTS:
            chosen.setdefault(fault.line, fault)
    return list(chosen.values())


def _wrongs(text: str) -> Iterator[tuple[str, str]]:
    """Yield lines of functions, and what they may become."""
    lines = text.split("\n")
    inside = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (node for function in inside for statement in function.body for node in ast.walk(statement)):
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno and (wrong := _wrong(node)):
            # An offset counts bytes, so a line with letters outside ASCII is left alone.
            if (line := lines[node.lineno - 1]).isascii() and not line.lstrip().startswith(('"', "f")):
                yield line, f"{line[: node.col_offset]}{wrong}{line[node.end_col_offset :]}"
        elif isinstance(node, ast.Return) and node.value and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            yield line, f"{line[: node.col_offset]}return None"


def _wrong(node: ast.expr) -> str:
    """Write an expression wrongly. Empty: there is no wrong form for it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPPOSITE:
            return f"({ast.unparse(left)} {OPPOSITE[type(op)]} {ast.unparse(right)})"
        case ast.BoolOp(op=op, values=values):
            return (
                "(" + (" or " if isinstance(op, ast.And) else " and ").join(f"({ast.unparse(v)})" for v in values) + ")"
            )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"bool({ast.unparse(operand)})"
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return str(value + 1)
        case _:
            return ""


# -- sides -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Side:
    name: str
    root: Path
    kept: Path
    packages: tuple[Path, ...] = ()
    """Folders of packages that only this side needs."""

    @classmethod
    def at(cls, name: str, revision: str, needed: tuple[str, ...] = ()) -> Side:
        """Lay out a clone at that commit, and install what it needs beyond this environment."""
        asked = ["git", "rev-parse", f"{revision}^{{tree}}"]
        tree = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        root = PLACE / name
        if not (root / ".git").exists():
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(root)], check=True)
        for command in (["fetch", "--quiet", str(ROOT), "HEAD"], ["checkout", "--quiet", "--force", _commit(revision)]):
            subprocess.run(["git", *command], cwd=root, check=True)
        packages = PLACE / f"{name}-packages"
        if needed and not packages.exists():
            install = ["install", "--quiet", "--no-deps", "--target", str(packages), *needed]
            subprocess.run([sys.executable, "-m", "pip", *install], check=True)
        return cls(name, root, PLACE / f"{name}-{tree[:16]}.json", (packages,) if needed else ())

    def finds(self, fault: Fault, *, ask: bool) -> bool | None:
        """Return whether the tests find the fault. None: it is not known, and `ask` is False.
        Raises RuntimeError if they fail without the fault."""
        known = json.loads(self.kept.read_text(encoding="utf-8")) if self.kept.exists() else {}
        name = f"{fault.module}: {fault.line} -> {fault.wrong}"
        if name in known or not ask:
            return known.get(name)
        if fault.module not in known:
            fails, wall_s = self._tests(fault.module, None)
            if fails:
                raise RuntimeError(f"{self.name}: {TESTS[fault.module]} fail without any fault: {self._log}")
            known[fault.module] = wall_s
        place = self.root / fault.module
        right = place.read_text(encoding="utf-8")
        place.write_text(fault.plant(right), encoding="utf-8")
        try:
            known[name], wall_s = self._tests(fault.module, 60 + HANGS * known[fault.module])
        finally:
            place.write_text(right, encoding="utf-8")
        self.kept.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        outcome = "found" if known[name] else "NOT found"
        told = f"[test_reach] {self.name}: {outcome} in {wall_s:.0f} s: {fault.module}: {fault.wrong.strip()}"
        print(told, file=sys.stderr, flush=True)
        return known[name]

    @property
    def _log(self) -> Path:
        return PLACE / f"{self.name}.txt"

    def _tests(self, module: str, limit_s: float | None) -> tuple[bool, float]:
        """Run a module's tests until one fails. Return whether one did, and the seconds."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", *TESTS[module].split()]
        began = time.monotonic()
        with self._log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (self.root, *self.packages)))},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                fails = process.wait(limit_s) != 0
            except subprocess.TimeoutExpired:
                fails = True
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return fails, time.monotonic() - began


def _commit(revision: str) -> str:
    asked = ["git", "rev-parse", revision]
    return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


FIGURES = {"test_reach": test_reach}
