"""The grader of several parts: it opens and closes them, and joins what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.grader_cases import Case, rollout, string_check
from rft.config import graders
from rft.grading.multi import MultiGrader
from rft.scale import UNIT
from rft.types import Grade, GradeStatus, Scored, Unscored, UnscoredStatus


class Says:
    """A part that says what a test wants."""

    scale = UNIT

    def __init__(self, grade: Grade) -> None:
        self._grade = grade

    async def grade(self, *of: object) -> Grade:
        return self._grade


def joined(*grades: Grade, formula: str = "") -> tuple[Grade, list[str]]:
    keys = "abcd"[: len(grades)]
    raw = {
        "type": "multi",
        "graders": {key: string_check("eq") for key in keys},
        "calculate_output": formula or " * ".join(keys),
    }
    settings = graders.read(raw, "grader.json")
    assert isinstance(settings, graders.Multi)
    happened: list[str] = []

    @asynccontextmanager
    async def part(key: str, grade: Grade) -> AsyncIterator[Says]:
        happened.append(f"+{key}")
        yield Says(grade)
        happened.append(f"-{key}")

    async def run() -> Grade:
        parts = {key: part(key, grade) for key, grade in zip(keys, grades, strict=True)}
        async with MultiGrader(settings, parts) as grader:
            return await grader.grade(*rollout(Case("", {}, "x", None)))

    return asyncio.run(run()), happened


def test_parts_are_opened_and_closed():
    assert joined(Scored(1.0), Scored(1.0))[1] == ["+a", "+b", "-b", "-a"]


def test_parts_are_components_and_their_words_are_kept():
    grade, _ = joined(Scored(0.5, explanation="half"), Scored(1.0, evidence=("odd",)))
    assert grade == Scored(0.5, components={"a": 0.5, "b": 1.0}, explanation="a: half", evidence=("b: odd",))


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ([GradeStatus.parse_error, GradeStatus.timeout], GradeStatus.timeout),
        ([GradeStatus.judge_error, GradeStatus.infra_error], GradeStatus.infra_error),
        ([GradeStatus.parse_error, GradeStatus.judge_error], GradeStatus.judge_error),
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
    unread = Scored(0.0, GradeStatus.policy_error, flags=("sample_parse_error",))
    grade, _ = joined(unread, unread, formula="1 - a * b")
    assert (grade.score, grade.status, grade.solved) == (1.0, GradeStatus.policy_error, False)
