"""Check a patch by hidden tests in pytest's form, in a second sandbox over a clean base.

    patch = await source_patch(workspace, ["src/*.py"])
    tests = {"test_median.py": source}
    verdict = await run_hidden_tests(base, patch, tests, ["median"], folder="src")

Tests that import the code they judge share a process with it. Such code can read the tests, patch
the framework or end the process. So here tests and code run in two processes. The tests import a
stand-in that asks over a pipe (rft/grading/code_under_test/remote.py). The tests are never in a
file, and the result counts only with a nonce that the candidate cannot read.

What this does not stop:

- The candidate sees what the tests pass to it. A test that calls `check(answer, expected)` of the
  code under test tells it what is expected.
- The candidate answers questions about its own objects as it likes: whether two of them are equal,
  how long one is, what it prints. Compare plain values in at least one place.
- The two processes belong to the same user in one sandbox. The kernel closes the memory of the
  tests to others; a fault in the kernel would open it. Prefer check_function, where expected values
  are not in the sandbox at all.

Tests that need one of the following fail, also for an honest candidate. So try the tests with a
right solution first.

- operators and `in` between an object of the candidate and a value of the tests
- fixtures of plug-ins, a conftest.py, or what the code prints (capsys)
- monkeypatch on the code under test (set its attributes instead)
- `from module import *` without `__all__`
- passing anything but plain values, functions and the candidate's own objects
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rft.errors import InfrastructureError, UserError
from rft.grading.code_under_test import plain
from rft.grading.code_under_test.patch import Patch
from rft.grading.code_under_test.verdict import Verdict, clip, exit_reason
from rft.sandbox import command
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.reading import Refusal
from rft.sandbox.sandbox import Spec, create
from rft.sandbox.workspace import Base

_HERE = Path(__file__).parent
_NAME = re.compile(r"test_\w+\.py")
DEFAULT = Limits(wall_s=60, cpu_s=60)
_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


async def run_hidden_tests(
    base: Base,
    patch: Patch,
    tests: Mapping[str, str],
    modules: Sequence[str],
    folder: str = ".",
    num_tests: int | None = None,
    limits: Limits = DEFAULT,
    allow_weaker: bool = False,
) -> Verdict:
    """Apply a patch to a clean base, and run tests that import `modules` from `folder` in it.

    `tests`: the source of each file, by its name, such as test_median.py. `modules`: the top-level
    modules under test. `base`: what the task starts from, with `command.python_folders()` among its
    binds. `num_tests`: how many tests run with a right solution; if another number ran, none
    counts. Give it where a test takes its cases from the code under test, which could change their
    number.

    Raises InfrastructureError when no sandbox can be made, UserError for tests that cannot be
    run."""
    _check(base, tests, modules)
    nonce = os.urandom(16).hex()
    where = command.WORKSPACE if folder in ("", ".") else f"{command.WORKSPACE}/{folder}"
    remote = (_HERE / "remote.py").read_text(encoding="utf-8")
    job = {"nonce": nonce, "tests": dict(tests), "modules": list(modules), "folder": where, "remote": remote}
    async with create(Spec(base, limits, _ENV, allow_weaker)) as sandbox:
        try:
            if patch.deleted:
                await sandbox.exec(["rm", "-f", "--", *patch.deleted])
            for path, content in patch.files.items():
                await sandbox.write_file(path, content)
        except Refusal as refusal:
            return Verdict(0, 1, "unjudgeable_answer", f"its files cannot be written: {refusal}")
        source = (_HERE / "tests_inside.py").read_text(encoding="utf-8")
        argv = [sys.executable, "-I", "-B", "-c", source]
        outcome = await sandbox.exec(argv, json.dumps(job).encode() + b"\n", cwd=".")
    return judge_report(outcome, nonce, num_tests)


def judge_report(outcome: Outcome, nonce: str, num_tests: int | None = None) -> Verdict:
    """Read what the process of the tests wrote. Raises InfrastructureError when it never
    started."""
    lines = outcome.stdout.split(b"\n")
    if lines[0] != b'{"started": true}':
        _raise_not_started(lines[0], outcome)
    why = exit_reason(outcome)
    if why:
        return Verdict(0, 1, "unjudgeable_answer", why)
    try:
        report = plain.read(lines[1]) if len(lines) == 3 and not lines[2] else None
    except plain.NotPlain:
        report = None
    if not isinstance(report, dict) or report.get("nonce") != nonce:
        return Verdict(0, 1, "unjudgeable_answer", "the tests did not get to their end")
    passed, failed = _count(report, "passed"), _count(report, "failed")
    if passed + failed == 0 or num_tests not in (None, passed + failed):
        return Verdict(0, num_tests or 1, "ok", f"{passed + failed} tests ran, of {num_tests or 'at least 1'}")
    return Verdict(passed, passed + failed, "ok", failures=tuple(clip(str(failure)) for failure in report["failures"]))


def _raise_not_started(line: bytes, outcome: Outcome) -> None:
    try:
        found = plain.read(line)
    except plain.NotPlain:
        found = None
    if isinstance(found, dict) and found.get("why"):
        raise InfrastructureError(f"Hidden tests cannot be run in the sandbox: {found['why']}.")
    errors = clip(outcome.stderr.decode("utf-8", "replace").strip())
    raise InfrastructureError(f"Python did not start in the sandbox ({exit_reason(outcome) or 'no reason'}): {errors}")


def _count(report: dict[str, Any], name: str) -> int:
    found = report[name]
    assert type(found) is int, report  # it has the nonce, so our own code wrote it
    return found


def _check(base: Base, tests: Mapping[str, str], modules: Sequence[str]) -> None:
    if not tests or not modules:
        raise UserError("Hidden tests need at least one file of tests, and the modules that they import.")
    for name in tests:
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} is not a name for a file of hidden tests. Use one such as test_median.py.")
    missing = [str(needed) for needed in command.python_folders() if needed not in base.binds]
    if missing:
        raise UserError(
            f"The base lacks the folders of this Python ({', '.join(missing)}). Make it with "
            "Base.of_folder(folder, command.python_folders())."
        )
