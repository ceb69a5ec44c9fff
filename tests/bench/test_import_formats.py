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
    return next(one for one in files.CASES if str(one) == name)


def test_a_score_that_differs_is_counted(url: str) -> None:
    right = case("promptfoo: equals 3, contains 1")
    found = here.played(right, url)
    assert (found.differing, found.wrong) == (0, "")
    assert found.graded >= 8
    wrong = here.played(replace(right, direct=lambda answer, item: 0.75), url)
    assert 0 < wrong.differing <= found.graded


def test_what_must_be_refused_and_what_must_not(url: str) -> None:
    assert here.played(case("openai: another method"), url).wrong == ""
    other = here.played(replace(case("openai: another method"), refused="a sentence of its own"), url)
    assert other.wrong.startswith("was refused in other words")
    assert here.played(replace(case("openai: rows with images"), refused=""), url).wrong.startswith("was refused: ")


def test_enough_files_of_each_format() -> None:
    assert len(files.CASES) >= 40
    assert {one.kind for one in files.CASES} == {"openai", "azure", "bedrock", "grader", "evals", "promptfoo"}
    assert len({str(one) for one in files.CASES}) == len(files.CASES)
