"""recipes/filings: exact arithmetic for `calculate`, and examples from graded traffic."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.recipe import Recipe
from rft.reports import Conversation


@pytest.fixture(scope="module")
def filings() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings/recipe"))


# -- calculate -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("482130-455210", "26920"),
        ("(482130 - 455210) / 455210 * 100", "5.91375"),
        ("0.1+0.2", "0.3"),
        ("-3*(-2)", "6"),
        ("1/3", "0.333333"),
        ("2/300000", "0.00000666667"),
        ("1/7*100000", "14285.7"),
        ("7", "7"),
        ("+7", "7"),
        (" gross profit 721 - operating income 383", "338"),
        ("cash -2 - (debt 3)", "-5"),
        ("(revenue 3)*1000/net income -2", "-1500"),
    ],
)
def test_arithmetic(filings: Recipe, expression: str, value: str) -> None:
    assert filings.tools[2](expression=expression) == f" {value}"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9**9**9", "only"), ("9//2", "only"), ("2%3", "only"), ("1e308*1e308", "only"), ("0x10", "only"),
        ("1,234+1", "without commas"), ("__import__('os')", "only"), ("a+1", "only"), ("[1]", "only"), ("1==1", "only"),
        ("\u0661+1", "only"), ("", "only"), ("()", "only"), ("revenue", "only"), ("revenue + 1", "only"),
        ("1 less 2", "not an arithmetic"), ("e5", "only"), ("1 e 5", "not an arithmetic"), ("import os", "only"),
        ("f (2)", "only"), ("f(2)", "only"), ("\u03c0 2", "only"), ("1+", "not an arith"), ("1 2", "not an arithmetic"),
        ("(" * 60 + "1" + ")" * 59, "not an arithmetic"), ("1/0", "division by zero"), ("1/(2-2)", "division by zero"),
        ("9" * 17, "more than 15 digits"), ("9" * 15 + "*9", "result has more than 15 digits"),
        ("1*" * 60 + "1", "longer than"), ("1..2", "not an arithmetic"), ("()()", "only"),
        ("999999999999999*" * 7 + "1", "result has more than 15 digits"),
    ],
)  # fmt: skip
def test_arithmetic_refuses(filings: Recipe, expression: str, why: str) -> None:
    with pytest.raises(recipe.ToolError, match=why):
        filings.tools[2](expression=expression)


@given(st.text(alphabet="0123456789.+-*/() ae", max_size=130))
def test_no_expression_breaks_it(filings: Recipe, expression: str) -> None:
    with contextlib.suppress(recipe.ToolError):
        float(filings.tools[2](expression=expression))


# -- traffic to examples ---------------------------------------------------------------------------
def conversation(text: str, feedback: Any) -> Conversation:
    return Conversation(
        conversation_id="c1",
        time="2026-01-05T08:00:00Z",
        messages=[
            {"role": "system", "content": " s"},
            {"role": "user", "content": text},
            {"role": "assistant", "content": "not in filings"},
        ],
        latency_s=1.0,
        tool_errors=0,
        feedback=feedback,
    )


def test_graded_traffic_becomes_an_example(filings: Recipe) -> None:
    for wanted in filings.examples("train", 60, 0):
        feedback = wanted.target
        if not wanted.metadata["unanswerable"]:
            feedback = json.loads(filings.answer(wanted.target))
        example = filings.from_traffic(conversation(wanted.messages[0]["content"], feedback))
        assert example is not None
        assert example.id == "traffic-c1"
        assert example.target == wanted.target
        assert example.slice == wanted.slice
        assert example.metadata["unanswerable"] == wanted.metadata["unanswerable"]


def test_traffic_that_could_leak_or_is_no_answer(filings: Recipe) -> None:
    train = next(e for e in filings.examples("train", 40, 0) if e.slice == "lookup")
    tested = next(e for e in filings.examples("test", 40, 0) if e.slice == "lookup")
    absent = next(e for e in filings.examples("test", 40, 0) if e.metadata["lacks"] == "company")
    text, answer = train.messages[0]["content"], json.loads(filings.answer(train.target))
    cite = answer["citations"][0]
    assert filings.from_traffic(conversation(text, answer)) is not None
    for feedback in (
        None, "", "482130", [], {"value": 1, "unit": "thousands"}, {**answer, "value": "1"}, {**answer, "value": True},
        {**answer, "citations": []}, {**answer, "citations": [{**cite, "quote": " of"}]},
        {**answer, "citations": [{**cite, "page": 1}]}, {**answer, "citations": [{**cite, "doc": "10K-000000"}]},
        {**answer, "citations": [{**cite, "page": "2"}]}, {**answer, "citations": ["x"]}, {**answer, "more": 1},
        json.loads(filings.answer(tested.target)),
    ):  # fmt: skip
        assert filings.from_traffic(conversation(text, feedback)) is None, feedback
    for leaking, feedback in ((tested, json.loads(filings.answer(tested.target))), (absent, "not in filings")):
        assert filings.from_traffic(conversation(leaking.messages[0]["content"], feedback)) is None
        assert filings.from_traffic(conversation(leaking.messages[0]["content"], answer)) is None
    assert filings.from_traffic(conversation(" ", answer)) is None
    assert filings.from_traffic(conversation(" what is our revenue ?", "not in filings")) is None


def test_features_come_from_the_question(filings: Recipe) -> None:
    asked = {"role": "user", "content": " report operating cash flow less dividends of Amber Harbor Foods in FY2023 ?"}
    expected = {"statement": ["cash flow", "cash flow"], "program": "difference", "opening": "report"}
    assert filings.features([asked]) == expected
    assert filings.features([asked, {"role": "assistant", "content": "revenue over"}]) == expected
    assert filings.features([]) == {"statement": ["none"], "program": "lookup", "opening": ""}
