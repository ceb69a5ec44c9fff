"""The grader of several parts: it opens and closes them, and joins what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bench.grader_cases import Case, rollout, string_check
from rft.config import graders
from rft.errors import ConfigError
from rft.grading.multi import MultiGrader
from rft.scale import UNIT
from rft.types import Grade, GradeStatus, Scored, Unscored, UnscoredStatus


class Says:
    """A part that says what a test wants."""

    scale = UNIT

    def __init__(self, grade: Grade, asked: Callable[[], None]) -> None:
        self._grade, self._asked = grade, asked

    async def grade(self, *of: object) -> Grade:
        self._asked()
        return self._grade


def joined(*grades: Grade, formula: str = "", gate: Any = (), **more: Any) -> tuple[Grade, list[str]]:
    """Join the grades of parts a, b, c. Also returns what was opened, asked (a key) and closed."""
    keys = "abcd"[: len(grades)]
    raw = {
        "type": "multi",
        "graders": {key: string_check("eq") for key in keys},
        "calculate_output": formula or " * ".join(keys),
        **({"gate": gate} if gate else {}),
        **more,
    }
    settings = graders.read(raw, "grader.json")
    assert isinstance(settings, graders.Multi)
    happened: list[str] = []

    @asynccontextmanager
    async def part(key: str, grade: Grade) -> AsyncIterator[Says]:
        happened.append(f"+{key}")
        yield Says(grade, lambda: happened.append(key))
        happened.append(f"-{key}")

    async def run() -> Grade:
        parts = {key: part(key, grade) for key, grade in zip(keys, grades, strict=True)}
        async with MultiGrader(settings, parts) as grader:
            return await grader.grade(*rollout(Case("", {}, "x", None)))

    return asyncio.run(run()), happened


def test_parts_are_opened_and_closed():
    assert joined(Scored(1.0), Scored(1.0))[1] == ["+a", "+b", "a", "b", "-b", "-a"]


def test_parts_are_components_and_their_words_are_kept():
    grade, _ = joined(Scored(0.5, explanation="half"), Scored(1.0, evidence=("odd",)))
    assert grade == Scored(0.5, components={"a": 0.5, "b": 1.0}, explanation="a: half", evidence=("b: odd",))


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ([GradeStatus.grader_bad_reply, GradeStatus.grader_timeout], GradeStatus.grader_timeout),
        ([GradeStatus.judge_error, GradeStatus.infra_error], GradeStatus.infra_error),
        ([GradeStatus.grader_bad_reply, GradeStatus.judge_error], GradeStatus.judge_error),
    ],
)
def test_a_part_without_a_score_leaves_the_whole_without_one(statuses: list[UnscoredStatus], whole: GradeStatus):
    parts = [Unscored(status, f"why {status}", (f"flag_{status}",)) for status in statuses]
    grade, _ = joined(Scored(1.0), *parts)
    assert (grade.score, grade.status, grade.components) == (None, whole, {})
    assert grade.explanation == "; ".join(f"{key}: why {status}" for key, status in zip("bc", statuses, strict=True))
    assert grade.flags == tuple(f"flag_{status}" for status in statuses)


def test_a_hack_in_a_part_is_the_whole_s_even_beside_an_outage():
    grade, _ = joined(Unscored(GradeStatus.infra_error, "down"), Scored(0.0, GradeStatus.hack, explanation="hack: key"))
    assert (grade.score, grade.status, grade.explanation) == (0.0, GradeStatus.hack, "b: hack: key")


def test_an_answer_that_no_part_could_read():
    unread = Scored(0.0, GradeStatus.unjudgeable_answer, flags=("sample_parse_error",))
    grade, _ = joined(unread, unread, formula="1 - a * b")
    assert (grade.score, grade.status, grade.solved) == (0.0, GradeStatus.unjudgeable_answer, False)


# -- gate x shaping --------------------------------------------------------------------------------
RIGHT, WRONG = Scored(1.0, solved=True), Scored(0.5, explanation="half of the tests pass")
SHAPED = "a * (1 + 0.1 * b - 0.2 * c)"


@pytest.mark.parametrize("gate", ["a", ["a"]])
def test_shaping_counts_once_the_gate_is_passed(gate: Any):
    grade, happened = joined(RIGHT, Scored(1.0), Scored(0.5), formula=SHAPED, gate=gate, range=[0, 1.1])
    assert grade.score == pytest.approx(1.0)
    assert dict(cast(Scored, grade).components) == {"a": 1.0, "b": 1.0, "c": 0.5, "outcome": 1.1}
    assert happened[3:6] == ["a", "b", "c"]


def test_behind_a_shut_gate_nothing_pays_and_nobody_is_asked():
    """Not partial credit, not praise, and no price of a judge."""
    grade, happened = joined(WRONG, Scored(1.0), Scored(0.0), formula="a + b - c", gate="a", range=[-1, 2])
    assert grade == Scored(
        -1.0, components={"a": 0.5, "outcome": -1.0}, explanation="did not pass a; a: half of the tests pass"
    )
    assert [key for key in happened if key in "abc"] == ["a"]


def test_every_gate_must_pass():
    assert joined(RIGHT, WRONG, formula="a", gate=["a", "b"])[0].score == 0.0
    assert joined(RIGHT, RIGHT, formula="a", gate=["a", "b"])[0].score == 1.0


def test_a_gate_that_could_not_be_judged_is_no_zero():
    down = Unscored(GradeStatus.infra_error, "down")
    grade, happened = joined(down, RIGHT, formula="a * b", gate="a")
    assert (grade.score, grade.status) == (None, GradeStatus.infra_error)
    assert "b" not in happened
    assert joined(RIGHT, down, formula="a * b", gate="a")[0].score is None


def test_a_hack_in_a_gate_is_a_hack():
    grade, _ = joined(Scored(0.0, GradeStatus.hack, explanation="edits the tests"), RIGHT, formula="a * b", gate="a")
    assert grade.status is GradeStatus.hack


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"gate": "z"}, "gate names 'z', which is not a key of graders: a, b"),
        ({"gate": ["a", "a"]}, "gate names 'a' twice"),
        ({"gate": "a", "graders": {"a": string_check("eq"), "outcome": string_check("eq")}}, "'outcome', which with a"),
    ],
)
def test_a_gate_that_cannot_be(more: dict[str, Any], why: str):
    raw = {"type": "multi", "graders": {"a": string_check("eq"), "b": string_check("eq")}, "calculate_output": "a"}
    with pytest.raises(ConfigError, match=why):
        graders.read(raw | more, "grader.json")


def test_a_gate_that_the_formula_leaves_out_is_no_remark():
    raw = {"type": "multi", "graders": {"a": string_check("eq"), "b": string_check("eq")}, "calculate_output": "b"}
    assert len(graders.read(raw, "grader.json").remarks) == 1
    assert graders.read(raw | {"gate": "a"}, "grader.json").remarks == []
