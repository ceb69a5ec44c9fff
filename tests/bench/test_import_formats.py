"""The figure of the import: a score that differs, and a refusal in other words, are seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench import import_files as files
from bench import import_formats as here


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with here.serving() as found:
        yield found


def case(name: str) -> files.Case:
    return next(one for one in here.CASES if str(one) == name)


@pytest.mark.slow
def test_a_score_that_differs_is_counted(url: str) -> None:
    right = case("promptfoo: equals 3, contains 1")
    found = here.played(right, url)
    assert (found.differing, found.wrong) == (0, "")
    assert found.graded >= 8
    wrong = here.played(replace(right, direct=lambda answer, item: 0.75), url)
    assert 0 < wrong.differing <= found.graded


@pytest.mark.slow
def test_answers_of_a_game_earn_what_the_game_pays(url: str) -> None:
    right = case("azure: countdown from 0 to 5")
    answers = set[str]()

    def direct(answer: str, item: files.Row) -> float | None:
        answers.add(answer)
        return right.direct(answer, item) if right.direct else None

    found = here.played(replace(right, direct=direct), url)
    assert (found.differing, found.unscored, found.wrong) == (0, 0, "")
    assert {right.direct(answer, {}) for answer in answers if right.direct} == {0.0, 1.0, 2.0, 5.0}


def test_what_must_be_refused_and_what_must_not(url: str) -> None:
    assert here.played(case("openai: another method"), url).wrong == ""
    other = here.played(replace(case("openai: another method"), refused="a sentence of its own"), url)
    assert other.wrong.startswith("was refused in other words")
    assert here.played(replace(case("openai: rows with images"), refused=""), url).wrong.startswith("was refused: ")


def test_enough_files_of_each_format() -> None:
    assert len(here.CASES) >= 40
    assert {one.kind for one in here.CASES} == {"openai", "azure", "bedrock", "grader", "evals", "promptfoo"}
    assert len({str(one) for one in here.CASES}) == len(here.CASES)
