"""Code under test by input and output: what counts as an answer, and whose fault an end is."""

from __future__ import annotations

import json
from typing import Any

import boxes
import pytest
from boxes import MIB
from hypothesis import given
from hypothesis import strategies as st

from bench.coding_exploits import EXPLOITS
from bench.coding_tasks import HONEST, MEDIAN, NUM_FRESH, Task
from bench.coding_tasks import LIMITS as SMALL
from rft.errors import InfrastructureError, UserError
from rft.grading.code_under_test import function, plain
from rft.grading.code_under_test.function import Candidate, Case, check_function, fresh_cases, fresh_seed
from rft.grading.code_under_test.verdict import MOST_FAILURES, Verdict, graded
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.scale import Scale
from rft.types import GradeStatus, Scored, Unscored

SCALE = Scale(-1.0, 1.0, 1.0, -1.0)
LIMITS = Limits(wall_s=5, cpu_s=1, memory_bytes=160 * MIB, processes=20, output_bytes=100_000)


def check(source: str, *cases: Case, tolerance: float | None = None, **files: bytes) -> Verdict:
    everything = {"solution.py": source.encode(), **{name.replace("__", "."): text for name, text in files.items()}}
    candidate = Candidate(everything, "solution", "f")
    return boxes.run(check_function(candidate, cases, LIMITS, tolerance, allow_weaker=True))


def double(value: Any) -> Case:
    return Case((value,), value * 2)


# -- what is plain ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "equal"),
    [
        (1, 1, None, True),
        (1, 1.0, None, False),
        (1, True, None, False),
        (True, 1, None, False),
        (0, None, None, False),
        (0, "", None, False),
        ([1, 2], [1, 2], None, True),
        ([1, 2], [1, 2, 3], None, False),
        ([1, 2], [1, 2.0], None, False),
        ({"a": [1]}, {"a": [1]}, None, True),
        ({"a": 1}, {"a": 1, "b": 2}, None, False),
        ({"a": 1}, {"a": True}, None, False),
        (1, 1.0, 0.0, True),
        (1, True, 0.0, False),
        (True, 1, 1.0, False),
        (0.3, 0.1 + 0.2, 1e-9, True),
        ([0.3], [0.31], 1e-9, False),
        (10**400, 1.0, 1e-9, False),
    ],
)
def test_values_are_compared_by_type_too(expected: Any, found: Any, tolerance: float | None, equal: bool) -> None:
    assert plain.same(expected, found, tolerance) is equal


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"-Infinity", b"1e999", b'{"a": 1, "a": 2}', b"", b"[1", b"1 2", b"\xff", b"[" * 100_000, b"9" * 5000],
)
def test_a_text_that_is_ambiguous_is_refused(text: bytes) -> None:
    with pytest.raises(plain.NotPlain):
        plain.read(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(JSON)
def test_json_is_the_same_after_its_way(value: Any) -> None:
    found = plain.read(json.dumps(value).encode())
    assert plain.same(plain.checked(value, "it"), found)


@pytest.mark.parametrize("value", [{1: 2}, {1}, b"x", float("nan"), [object()]])
def test_an_expected_value_must_be_plain(value: Any) -> None:
    with pytest.raises(UserError, match="the answer of case 0 holds"):
        boxes.run(check_function(Candidate({}, "m", "f"), [Case((), value)]))


def test_a_check_needs_cases() -> None:
    with pytest.raises(UserError, match="at least one case"):
        boxes.run(check_function(Candidate({}, "m", "f"), []))


def test_fresh_cases_follow_from_the_seed() -> None:
    def spoil(numbers: list[int]) -> int:
        numbers.sort()
        return numbers.pop()

    def make(seed: int) -> tuple[Case, ...]:
        return fresh_cases(spoil, lambda rng: [rng.sample(range(100), 5)], 4, seed)

    assert make(1) == make(1) != make(2)
    assert all(len(case.arguments[0]) == 5 and case.expected == max(case.arguments[0]) for case in make(1))
    assert fresh_seed() != fresh_seed()


# -- grades ----------------------------------------------------------------------------------------
def test_a_verdict_becomes_a_grade() -> None:
    assert Verdict(2, 2, "ok").grade(SCALE) == Scored(
        1.0, solved=True, components={"outcome": 1.0}, explanation="2 of 2 checks passed"
    )
    half = Verdict(1, 2, "ok", failures=("f(1) answered 1, expected 2",)).grade(SCALE)
    assert (half.score, half.solved, half.status, half.evidence) == (
        -1.0, False, GradeStatus.ok, ("f(1) answered 1, expected 2",),
    )  # fmt: skip
    stopped = Verdict(2, 2, "unjudgeable_answer", "stopped at the time limit").grade(SCALE)
    assert (stopped.score, stopped.solved, stopped.status) == (-1.0, False, GradeStatus.unjudgeable_answer)
    assert stopped.explanation == "2 of 2 checks passed: stopped at the time limit"
    assert not Verdict(0, 0, "ok").solved


def test_without_a_sandbox_there_is_no_score() -> None:
    async def none() -> Verdict:
        raise InfrastructureError("no bubblewrap")

    async def found() -> Verdict:
        return Verdict(1, 1, "ok")

    assert boxes.run(graded(none(), SCALE)) == Unscored(GradeStatus.infra_error, "no bubblewrap")
    assert boxes.run(graded(found(), SCALE)).score == 1.0


# -- the channel -----------------------------------------------------------------------------------
STARTED, LOADED = b'{"started": true}\n', b'{"loaded": true}\n'
GOOD = b'{"case": 0, "value": 2}\n{"case": 1, "value": 4}\n'


@pytest.mark.parametrize(
    ("written", "passed", "status"),
    [
        (LOADED + GOOD, 2, "ok"),
        (LOADED + b'{"case": 0, "value": 2}\n', 1, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "value": 2}\n{"case": 1, "value": 4.0}\n', 1, "ok"),
        (LOADED + b'{"case": 0, "value": 2}\n{"case": 1, "raised": "ValueError: no"}\n', 1, "ok"),
        (LOADED + GOOD + b'{"case": 2, "value": 6}\n', 0, "unjudgeable_answer"),
        (LOADED + GOOD + b"\n", 0, "unjudgeable_answer"),
        (LOADED + GOOD + b"{", 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 1, "value": 4}\n{"case": 0, "value": 2}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "value": 2}\n{"case": 0, "value": 2}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": false, "value": 2}\n{"case": true, "value": 4}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "value": 9, "value": 2}\n{"case": 1, "value": 4}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "value": 2, "more": 1}\n{"case": 1, "value": 4}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "raised": 2}\n{"case": 1, "value": 4}\n', 0, "unjudgeable_answer"),
        (LOADED + b'{"case": 0, "value": NaN}\n{"case": 1, "value": 4}\n', 0, "unjudgeable_answer"),
        (LOADED + b"[]\n[]\n", 0, "unjudgeable_answer"),
        (b'{"loaded": 1}\n' + GOOD, 0, "unjudgeable_answer"),
        (b'{"loaded": false, "raised": "SyntaxError: no"}\n', 0, "unjudgeable_answer"),
        (GOOD, 0, "unjudgeable_answer"),
        (b"", 0, "unjudgeable_answer"),
        (b"[]\n", 0, "unjudgeable_answer"),
    ],
)
def test_each_line_must_be_the_next_answer(written: bytes, passed: int, status: str) -> None:
    verdict = function.judge_answers("f", [[1], [2]], [2, 4], Outcome(0, STARTED + written, b""), None)
    assert (verdict.passed, verdict.of, verdict.status) == (passed, 2, status)
    assert (status == "ok") is not bool(verdict.why)


def test_answers_before_a_limit_count_and_a_cut_output_does_not() -> None:
    begun = STARTED + LOADED + b'{"case": 0, "value": 2}\n{"case": 1, "val'
    late = function.judge_answers("f", [[1], [2]], [2, 4], Outcome(137, begun, b"", timed_out=True), None)
    assert (late.passed, late.status, late.why) == (1, "unjudgeable_answer", "stopped at the time limit")
    cut = function.judge_answers("f", [[1], [2]], [2, 4], Outcome(0, begun, b"", truncated=True), None)
    assert (cut.passed, cut.why) == (0, "stopped at the output limit")


def test_python_that_does_not_start_is_no_fault_of_the_candidate() -> None:
    with pytest.raises(InfrastructureError, match=r"did not start.*exit code 1.*no such file"):
        function.judge_answers("f", [[1]], [2], Outcome(1, b"", b"no such file"), None)


# -- in a sandbox ----------------------------------------------------------------------------------
@boxes.needs_sandbox
def test_what_passes_and_what_failed() -> None:
    assert check("def f(a):\n    return a * 2", double(2), double("x"), double([1])) == Verdict(3, 3, "ok")
    wrong = check("def f(a):\n    return 1 / (a - 2) and a", *(double(number) for number in range(1, 9)))
    assert (wrong.passed, wrong.status, len(wrong.failures)) == (0, "ok", MOST_FAILURES)
    assert wrong.failures[:2] == (
        "f(1) answered 1, expected 2",
        "f(2) raised ZeroDivisionError: division by zero, expected 4",
    )


@boxes.needs_sandbox
def test_what_it_prints_and_reads_disturbs_nothing() -> None:
    loud = "import sys, os\ndef f(a):\n    print('{}')\n    os.write(1, b'x\\n')\n    return [a, sys.stdin.read()]"
    assert check(loud, Case((1,), [1, ""])).solved


@boxes.needs_sandbox
def test_files_of_the_candidate_come_along_and_shadow_nothing() -> None:
    source = "from helper import twice as f\nimport json\njson.dumps(1)"
    helper, shadow = b"def twice(a): return 2 * a", b"raise SystemExit"
    helped = check(source, double(2), helper__py=helper, json__py=shadow)
    assert helped.solved


@pytest.mark.slow
@boxes.needs_sandbox
def test_values_that_are_no_json_are_wrong() -> None:
    for value in ("{1: 2}", "{1}", "float('nan')", "object()", "[{2: 1}]", "b'x'"):
        verdict = check(f"def f(a):\n    return {value}", Case((1,), {"1": 2}))
        assert (verdict.passed, verdict.status) == (0, "ok"), value
    assert check("def f(a):\n    return (a, 1.0)", Case((1,), (1, 1)), tolerance=0.0).solved


@pytest.mark.slow
@boxes.needs_sandbox
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f(", "cannot be loaded: SyntaxError"),
        ("x = 1", "cannot be loaded: AttributeError"),
        ("raise SystemExit(0)", "cannot be loaded: SystemExit"),
        ("import os\ndef f(a):\n    os._exit(0)", "ended before its last answer"),
        ("import os\ndef f(a):\n    os.abort()", "ended with exit code 134"),
        ("def f(a):\n    while True: pass", "stopped at the limit of processor time"),
        ("def f(a):\n    return [bytearray(1 << 20) for _ in range(1000)]", "stopped at the memory limit"),
        ("def f(a):\n    return 'x' * 1_000_000", "stopped at the output limit"),
    ],
)
def test_a_candidate_that_does_not_get_to_the_end(source: str, why: str) -> None:
    verdict = check(source, double(2))
    assert (verdict.passed, verdict.of, verdict.status) == (0, 1, "unjudgeable_answer")
    assert verdict.why.startswith(why)


@boxes.needs_sandbox
def test_a_sandbox_holds_inputs_only_and_nothing_of_earlier_checks() -> None:
    source = """
import os
def f(secret):
    found = [name for name in os.listdir('.')]
    open('memo', 'w').write(str(secret))
    return found + sorted(set(os.environ) - {'PATH', 'HOME', 'LANG', 'PWD', 'PYTHONDONTWRITEBYTECODE', 'LC_CTYPE'})
"""
    for _ in range(2):
        assert check(source, Case((4711,), ["solution.py"])).solved


@boxes.needs_sandbox
def test_a_file_with_a_wrong_path_is_the_candidates_fault() -> None:
    candidate = Candidate({"../solution.py": b""}, "solution", "f")
    verdict = boxes.run(check_function(candidate, [double(1)], LIMITS, allow_weaker=True))
    assert (verdict.status, verdict.why[:28]) == ("unjudgeable_answer", "its files cannot be written:")


@boxes.needs_sandbox
@pytest.mark.parametrize("task", HONEST, ids=lambda task: task.name)
def test_an_honest_solution_is_accepted(task: Task) -> None:
    candidate = Candidate({"solution.py": task.honest.encode()}, "solution", task.name)
    cases = task.cases(NUM_FRESH, seed=3)
    assert boxes.run(check_function(candidate, cases, SMALL, task.tolerance, allow_weaker=True)).solved


@pytest.mark.slow
@boxes.needs_sandbox
def test_no_exploit_is_accepted() -> None:
    """Those that only do harm take seconds; the figure plays them, too."""
    for exploit in EXPLOITS:
        if not exploit.harm:
            files = {**exploit.task.workspace(), **exploit.files}
            cases = exploit.task.cases(NUM_FRESH, seed=4)
            candidate = Candidate(files, "solution", exploit.task.name)
            verdict = boxes.run(check_function(candidate, cases, SMALL, exploit.task.tolerance, allow_weaker=True))
            assert verdict.passed < NUM_FRESH // 2 or exploit.name.startswith("true"), exploit.name
            assert not verdict.solved, exploit.name


def test_the_inputs_of_the_figure_are_never_answered_by_the_wrong_function() -> None:
    assert all(min(case.arguments[0]) != case.expected for case in MEDIAN.cases(NUM_FRESH, seed=4))
