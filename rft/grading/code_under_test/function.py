"""Check a function by input and output, in a sandbox of its own for each check.

    cases = fresh_cases(reference, arguments, 50, fresh_seed())
    verdict = await check_function(Candidate({"solution.py": code}, "solution", "median"), cases)

The candidate's process gets only inputs. The expected values stay here, so there is nothing in the
sandbox to read, patch or guess. A candidate that answers new inputs right has computed the answers.
Each grade makes new inputs from a seed, so a table of known answers is worth nothing.

The answers come back as lines of JSON and are compared here (rft/grading/code_under_test/plain.py).
Nothing else on that channel is believed. Each line must be the answer to the next case. If one line
is extra, is not an answer, or is out of order, none counts. If the candidate was stopped, its lines
before that do count, because each answer is right or wrong by itself.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.errors import InfrastructureError, UserError
from rft.grading.code_under_test import plain
from rft.grading.code_under_test.verdict import MOST_FAILURES, Verdict, clip, exit_reason
from rft.sandbox import command
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.reading import Refusal
from rft.sandbox.sandbox import Spec, create
from rft.sandbox.workspace import Base

_RUNNER = Path(__file__).with_name("answers.py")
DEFAULT = Limits(wall_s=10, cpu_s=10, processes=32, disk_bytes=32 * 2**20, file_bytes=16 * 2**20, output_bytes=2**22)


@dataclass(frozen=True, slots=True)
class Case:
    """One call and its result: `Case(([3, 1, 2],), 2)`. Both are plain JSON."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function in files that a model wrote."""

    files: Mapping[str, bytes]
    """Path in the candidate's folder -> content. Nothing else of its workspace is taken over."""
    module: str
    function: str


def fresh_seed() -> int:
    """Return a seed that no candidate can foresee. Keep it to repeat the check."""
    return int.from_bytes(os.urandom(8), "big")


def fresh_cases(
    reference: Callable[..., Any], arguments: Callable[[random.Random], Sequence[Any]], n: int, seed: int
) -> tuple[Case, ...]:
    """Make `n` inputs, each with the answer of the trusted `reference`. Equal seeds make equal
    cases."""
    rng = random.Random(seed)
    cases: list[Case] = []
    for _ in range(n):
        given = plain.checked(list(arguments(rng)), "an input")
        # the reference gets a copy: it may change what it is given
        cases.append(Case(tuple(given), reference(*plain.checked(given, "an input"))))
    return tuple(cases)


async def check_function(
    candidate: Candidate,
    cases: Sequence[Case],
    limits: Limits = DEFAULT,
    tolerance: float | None = None,
    allow_weaker: bool = False,
) -> Verdict:
    """Call the candidate's function with the inputs of all cases, in one new process, and compare.

    `tolerance`: compare numbers by value, not by type (rft/grading/code_under_test/plain.py).
    `allow_weaker`: also run where the kernel refuses a guarantee of the sandbox. Raises
    InfrastructureError when no sandbox can be made, UserError for cases that are not plain JSON."""
    if not cases:
        raise UserError("A check without cases would accept everything. Give at least one case.")
    calls = [plain.checked(list(case.arguments), f"the input of case {number}") for number, case in enumerate(cases)]
    expected = [plain.checked(case.expected, f"the answer of case {number}") for number, case in enumerate(cases)]
    job = {"folder": command.WORKSPACE, "module": candidate.module, "function": candidate.function}
    stdin = b"".join(json.dumps(line).encode() + b"\n" for line in (job, *calls))
    base = await Base.empty(command.python_folders())
    try:
        async with create(Spec(base, limits, allow_weaker=allow_weaker)) as sandbox:
            try:
                for path, content in candidate.files.items():
                    await sandbox.write_file(path, content)
            except Refusal as refusal:
                return Verdict(0, len(cases), "unjudgeable_answer", f"its files cannot be written: {refusal}")
            source = _RUNNER.read_text(encoding="utf-8")
            outcome = await sandbox.exec([sys.executable, "-I", "-B", "-c", source], stdin)
    finally:
        base.close()
    return judge_answers(candidate.function, calls, expected, outcome, tolerance)


def judge_answers(
    name: str, calls: list[Any], expected: list[Any], outcome: Outcome, tolerance: float | None
) -> Verdict:
    """Compare the answers. Raises InfrastructureError when the candidate never began."""
    first, *lines = outcome.stdout.split(b"\n")
    if first != b'{"started": true}':
        errors = clip(outcome.stderr.decode("utf-8", "replace").strip())
        raise InfrastructureError(
            f"Python did not start in the sandbox ({exit_reason(outcome) or 'no reason'}): {errors}"
        )
    of, why = len(calls), exit_reason(outcome)
    last = lines.pop() if lines else b""
    if outcome.truncated or (last and not why):
        return Verdict(0, of, "unjudgeable_answer", why or "wrote something that is not an answer")
    if not lines:
        return Verdict(0, of, "unjudgeable_answer", why or "ended while its module was loaded")
    try:
        loaded, *answers = map(plain.read, lines)
    except plain.NotPlain as error:
        return Verdict(0, of, "unjudgeable_answer", f"wrote something that is not an answer: {clip(str(error))}")
    if loaded != {"loaded": True} or loaded["loaded"] is not True:
        raised = loaded.get("raised") if isinstance(loaded, dict) else None
        return Verdict(0, of, "unjudgeable_answer", f"cannot be loaded: {clip(str(raised or 'it does not say why'))}")
    if len(answers) > of or not all(_is_answer(answer, case) for case, answer in enumerate(answers)):
        return Verdict(0, of, "unjudgeable_answer", "wrote something that is not an answer")
    failures: list[str] = []
    passed = 0
    for case, answer in enumerate(answers):
        if "value" in answer and plain.same(expected[case], answer["value"], tolerance):
            passed += 1
        else:
            called = f"{name}({', '.join(map(json.dumps, calls[case]))})"
            got = f"answered {_shown(answer['value'])}" if "value" in answer else f"raised {answer['raised']}"
            failures.append(f"{clip(called)} {clip(got)}, expected {clip(json.dumps(expected[case]))}")
    if len(answers) < of:
        why = why or "ended before its last answer"
    return Verdict(passed, of, "unjudgeable_answer" if why else "ok", why, tuple(failures[:MOST_FAILURES]))


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:  # it was just shallow enough to be read
        return "something very deep"


def _is_answer(answer: Any, case: int) -> bool:
    if not isinstance(answer, dict) or type(answer.get("case")) is not int or answer["case"] != case:
        return False
    return answer.keys() == {"case", "value"} or (
        answer.keys() == {"case", "raised"} and isinstance(answer["raised"], str)
    )
