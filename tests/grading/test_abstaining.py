"""What "I don't know" pays, where there is an answer and where there is none, and what the gate
makes of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
from hypothesis import given
from hypothesis import strategies as st

from bench.grader_cases import PARIS, Case, multi, play, score_model, string_check
from rft.config import graders
from rft.config.abstention import plain
from rft.errors import ConfigError
from rft.grading import margins
from rft.types import Grade, GradeStatus, Scored

PAYS = {"says": ["I don't know", "No idea."], "pays": 0.25, "unanswerable": "{{item.none}}"}
OPEN, NONE = PARIS | {"none": False}, PARIS | {"none": True}


def grade(answer: str, item: dict[str, Any], inner: dict[str, Any] | None = None, /, **more: Any) -> Grade:
    raw = (inner or string_check("eq")) | {"abstention": PAYS | more}
    return asyncio.run(play(Case("", raw, answer, None, item, reply={"choices": []})))[0]


@pytest.mark.parametrize(
    ("answer", "item", "score", "solved", "abstained"),
    [
        ("Paris", OPEN, 1.0, True, 0.0),
        ("Rome", OPEN, 0.0, False, 0.0),
        ("I don't know", OPEN, 0.25, False, 1.0),
        ("I don't know", NONE, 1.0, True, None),
        ("Paris", NONE, 0.0, False, None),
        ("I don\u2019t  KNOW.", OPEN, 0.25, False, 1.0),
        ('"no idea!"', OPEN, 0.25, False, 1.0),
        ("I don't know, but perhaps Paris", OPEN, 0.0, False, 0.0),
        ("I don't know, but perhaps Paris", NONE, 0.0, False, None),
        ("", OPEN, 0.0, False, 0.0),
    ],
)
def test_what_it_pays(answer: str, item: dict[str, Any], score: float, solved: bool, abstained: float | None):
    found = grade(answer, item)
    assert isinstance(found, Scored)
    assert (found.score, found.solved, found.components.get("abstained")) == (score, solved, abstained)


def test_a_row_that_does_not_say_has_no_score():
    assert grade("Paris", PARIS).flags == ("invalid_variable_error",)
    found = grade("Paris", PARIS | {"none": "no"})
    assert (found.score, found.status) == (None, GradeStatus.grader_bad_reply)
    assert "abstention.unanswerable is 'no' in this row, expected true or false" in found.explanation
    assert grade("Paris", PARIS, unanswerable=None).score == 1.0


def test_it_stands_around_a_grader_of_any_type_and_asks_no_judge():
    """The judge here answers nothing: an abstention has its score all the same."""
    assert grade("No idea", OPEN, score_model()).score == 0.25
    assert grade("Paris", OPEN, score_model()).score is None
    assert grade("No idea", OPEN, multi("exact * near")).score == 0.25


def test_where_the_answer_is_one_field():
    inner = string_check("eq", text="{{sample.output_json.city}}")
    field = {"answer": "{{sample.output_json.city}}"}
    assert grade('{"city": "No idea"}', OPEN, inner, **field).score == 0.25
    assert grade("No idea", OPEN, inner, **field).status is GradeStatus.unjudgeable_answer


@given(st.text(max_size=40))
def test_blanks_case_and_punctuation_around_do_not_matter(text: str):
    assert plain(plain(text)) == plain(text)
    assert plain(f' "{text.upper()}"! ') == plain(text.upper())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"says": []}, "says"),
        ({"says": ["..."]}, "is empty without its punctuation"),
        ({"pays": 1.0}, "pays 1, and must pay at least the lowest score, 0, and less than pass_threshold, 1"),
        ({"pays": -0.5}, "pays -0.5, and must pay"),
        ({"unanswerable": "none"}, "names no place"),
        ({"answer": "{{row.x}}"}, "names neither item nor sample"),
        ({"say": ["x"]}, "say"),
    ],
)
def test_what_is_refused(change: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        graders.read(string_check("eq") | {"abstention": PAYS | change}, "grader.json")


def test_it_is_of_the_whole():
    raw = multi("exact + near", range=[0, 2])
    raw["graders"]["exact"] |= {"abstention": PAYS}
    with pytest.raises(ConfigError, match=r"graders.exact: abstention stands in a part of a multi"):
        graders.read(raw, "grader.json")


# -- the gate --------------------------------------------------------------------------------------
def test_the_gate_needs_a_margin_where_it_is_declared_and_only_there(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)

    def check(grader: dict[str, Any], margin: float | None) -> None:
        (made / "grader.json").write_text(json.dumps(grader))
        params = tiny_recipe.params(made)
        gate = params.gate.model_copy(update={"max_abstention_increase": margin})
        margins.check(params.model_copy(update={"gate": gate}))

    declared = string_check("eq") | {"abstention": PAYS}
    with pytest.raises(ConfigError, match=r"gate.max_abstention_increase is missing, and .*grader.json declares"):
        check(declared, None)
    with pytest.raises(ConfigError, match=r"max_abstention_increase = 0.05 cannot be honored: .* declares no abst"):
        check(string_check("eq"), 0.05)
    check(declared, 0.05)
    check(string_check("eq"), None)
    check({"type": "endpoint", "url": "{tool_server}/grade"}, 0.05)  # it may answer with the sub-score
