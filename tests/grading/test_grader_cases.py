"""The table of bench/grader_cases.py: each type of grader says what the contract documents, and a
grade without a score never becomes a number."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import boxes
import pytest
import tiny_recipe

from bench import grader_cases
from bench.grader_cases import CASES, Case, differences, play
from rft import config
from rft.config import graders
from rft.errors import ConfigError
from rft.grading import wire
from rft.grading.grader import check, grader_of
from rft.scale import Scale
from rft.types import GradeStatus, Scored
from rft.wire.client import ToolEndpoint


def _param(case: Case):
    return pytest.param(case, id=str(case), marks=[boxes.needs_sandbox] if case.grader["type"] == "python" else [])


@pytest.mark.slow
@pytest.mark.parametrize("case", [_param(case) for case in CASES])
def test_a_case(case: Case):
    grade, _ = asyncio.run(play(case))
    assert differences(case, grade) == []
    assert set(grade.flags) <= set(wire.FLAGS)
    assert grade.solved == (grade.score is not None and grade.score >= graders.read(case.grader, "x").scale.high)


def test_a_wrong_verdict_would_be_seen():
    """The table can fail."""
    grade, _ = asyncio.run(play(CASES[0]))
    assert differences(CASES[0], Scored(0.0)) == ["score 0.0, expected 1", "said: "]
    assert differences(CASES[0], Scored(1.0, GradeStatus.unjudgeable_answer, flags=("other_error",)))[:2] == [
        "status unjudgeable_answer, expected ok",
        "flags ['other_error'], expected []",
    ]
    assert differences(CASES[0], grade) == []


def test_a_score_beyond_an_undeclared_range_stops_the_stage():
    case = Case("too high", grader_cases.multi("2 * exact"), "Paris", None, grader_cases.PARIS)
    with pytest.raises(ConfigError, match=r'gave the score 2\. Declare .* "range": \[low, high\]'):
        asyncio.run(play(case))


def test_what_a_grader_lacks_is_said_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = tiny_recipe.make(tmp_path)
    params = tiny_recipe.params(made)
    check(params)
    (made / "grader.json").write_text(json.dumps(grader_cases.score_model()))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL is not set"):
        check(params)
    (made / "grader.json").unlink()
    check(params)


BARE = {
    "string_check": grader_cases.string_check("eq"),
    "text_similarity": grader_cases.similar("rouge_1"),
    "score_model": grader_cases.score_model(),
    "label_model": grader_cases.LABEL,
    "python": grader_cases.python("return 1.0"),
    "multi": grader_cases.multi("exact"),
    "endpoint": {"type": "endpoint", "url": "http://127.0.0.1:1/grade"},
}


@pytest.mark.parametrize("kind", graders.TYPES)
@pytest.mark.parametrize("more", [{}, {"abstention": {"says": ["I don't know"], "pays": 0.3}}], ids=["", "abstention"])
def test_the_declared_chance_holds_for_a_grader_of_any_type(
    kind: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    """Partial credit: what answers without any work get by chance, and 5 % more, is not a leak. The
    preflight reads it of the opened grader."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")

    async def scale(raw: dict[str, object]) -> Scale:
        settings = graders.read(raw, "grader.json")
        async with grader_of(settings, ToolEndpoint("http://127.0.0.1:1"), config.Tools()) as opened:
            assert opened.scale == settings.scale
            return opened.scale

    assert asyncio.run(scale(BARE[kind] | more)).exploit_limit == pytest.approx(0.05)
    assert asyncio.run(scale(BARE[kind] | {"chance": 0.2} | more)).exploit_limit == pytest.approx(0.25)
