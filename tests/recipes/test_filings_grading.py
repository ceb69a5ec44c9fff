"""recipes/filings: what an answer is worth, rule by rule."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.grading.grader import grader_of
from rft.recipe import Example, Recipe
from rft.tools import lifetime
from rft.types import ABSTAINED, Grade, RolloutContext, StopReason, Turn
from rft.wire.trace import Traces

pytestmark = pytest.mark.usefixtures("ready_server")

ANY = st.characters()
"""Any character, halves of pairs included."""


@pytest.fixture(scope="module")
def filings() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings/recipe"))


@pytest.fixture(scope="module")
def grading(filings: Recipe) -> ModuleType:
    return filings._module("grading")


@pytest.fixture(scope="module")
def lookup(filings: Recipe) -> Example:
    """A question about one figure that one page shows."""
    found = filings.examples("train", 60, 0)
    return next(e for e in found if e.slice == "lookup" and len(e.target["operands"][0]) == 1)


@pytest.fixture(scope="module")
def two_pages() -> tuple[Recipe, Example]:
    """A question whose operands stand on two pages."""
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"lookup_share": 0, "programs": ["ratio"]}))
    for example in ours.examples("train", 100, 0):
        operands = [] if example.metadata["unanswerable"] else example.target["operands"]
        pages = {place["page"] for operand in operands for place in operand}
        if len(pages) == 2 and all(len(operand) == 1 for operand in operands):
            return ours, example
    raise AssertionError("none asks for two pages")


def grade(ours: Recipe, text: Any, example: Example, **sample: Any) -> dict[str, Any]:
    assert ours.grade is not None
    return ours.grade({"output_text": text, **sample}, example.row())


def target(example: Example) -> tuple[Any, str, dict[str, Any]]:
    """The right value, its unit, and the citation of its place."""
    place = example.target["operands"][0][0]
    right = example.target["answers"][0]
    return right["value"], right["unit"], {key: place[key] for key in ("doc", "page", "quote")}


def answer(value: Any, unit: Any, *citations: Any) -> str:
    return json.dumps({"citations": list(citations), "value": value, "unit": unit})


def parts(found: dict[str, Any]) -> tuple[float, float, float]:
    scores = found["sub_scores"]
    return scores["right"], scores["citations"], scores["invented"]


# -- A: value and unit -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("factor", "right"),
    [(1, 1), (1.004, 1), (0.996, 1), (1.006, 0), (0.994, 0), (-1, 0), (1000, 0), (0.001, 0), (0, 0)],
)
def test_half_a_percent(filings: Recipe, lookup: Example, factor: float, right: float) -> None:
    value, unit, cite = target(lookup)
    found = grade(filings, answer(round(value * factor, 6), unit, cite), lookup)
    assert parts(found) == (right, 1.0, 0.0)
    assert found["score"] == right
    assert found["solved"] is (right == 1)


def test_the_tolerance_is_exact(grading: ModuleType) -> None:
    from fractions import Fraction

    assert grading._is_near(Fraction(1005), Fraction(1000))
    assert grading._is_near(Fraction(995), Fraction(1000))
    assert not grading._is_near(Fraction("1005.0000001"), Fraction(1000))
    assert not grading._is_near(Fraction("994.9999999"), Fraction(1000))
    assert grading._is_near(Fraction(-1005), Fraction(-1000))
    assert not grading._is_near(Fraction(1000), Fraction(-1000))
    assert grading._is_near(Fraction(0), Fraction(0))
    assert not grading._is_near(Fraction("0.001"), Fraction(0))


@pytest.mark.parametrize("wrong", ["units", "", "Thousands", " thousands", "USD thousands", "thousands or millions"])
def test_the_unit_is_one_of_those_in_the_filings(filings: Recipe, lookup: Example, wrong: str) -> None:
    value, unit, cite = target(lookup)
    wrong = wrong.replace("thousands", unit).replace("Thousands", unit.title())
    assert parts(grade(filings, answer(value, wrong, cite), lookup)) == (0.0, 1.0, 0.0)


def test_the_same_amount_in_another_unit_is_another_answer(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    other, factor = ("millions", 0.001) if unit == "thousands" else ("thousands", 1000)
    assert grade(filings, answer(value * factor, other, cite), lookup)["score"] == 0.0


# -- C and H: citations ----------------------------------------------------------------------------
def test_a_right_answer_without_citations_earns_six_tenths(filings: Recipe, lookup: Example) -> None:
    value, unit, _ = target(lookup)
    assert grade(filings, answer(value, unit), lookup)["score"] == pytest.approx(0.6)


def test_wrong_with_good_citations_earns_nothing(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    assert grade(filings, answer(value * 2, unit, cite), lookup)["score"] == 0.0


def test_an_invented_quote_costs(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    invented = {**cite, "quote": "revenue was good"}
    assert parts(grade(filings, answer(value, unit, invented), lookup)) == (1.0, 0.0, 1.0)
    assert grade(filings, answer(value, unit, invented), lookup)["score"] == pytest.approx(0.4)
    assert grade(filings, answer(value * 2, unit, invented), lookup)["score"] == pytest.approx(-0.2)
    elsewhere = {**cite, "page": 1, "quote": "revenue was good"}
    both = grade(filings, answer(value, unit, cite, elsewhere), lookup)
    assert parts(both) == (1.0, pytest.approx(2 / 3), 0.5)
    assert both["score"] == pytest.approx(0.6 + 0.4 * 2 / 3 - 0.1)


def test_a_quote_shows_item_and_number_in_one_line(filings: Recipe, lookup: Example) -> None:
    """R: a genuine piece of the page that proves nothing is a wrong citation, not an invented
    one."""
    value, unit, cite = target(lookup)
    place = lookup.target["operands"][0][0]
    filing = filings._module("corpora").corpus(filings.options).filing(place["doc"])
    page = filing.page(place["page"]).text
    good = [cite["quote"], cite["quote"].strip(), f"{place['item']} {place['number']}"]
    bad = [place["number"], place["item"], "e", place["number"][:-1], page, page.split("\n")[0]]
    bad += [page.split("\n")[1] + "\n" + page.split("\n")[2]]
    bad += [f"{place['item']} {place['number'][:-1]}"]
    for quote in good:
        assert parts(grade(filings, answer(value, unit, {**cite, "quote": quote}), lookup)) == (1.0, 1.0, 0.0), quote
    for quote in bad:
        assert parts(grade(filings, answer(value, unit, {**cite, "quote": quote}), lookup)) == (1.0, 0.0, 0.0), quote
    for quote in ("", " ", "\n"):
        assert parts(grade(filings, answer(value, unit, {**cite, "quote": quote}), lookup)) == (1.0, 0.0, 1.0)


def test_a_quote_of_another_page_or_document(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    for wrong, invented in (({"page": 1}, 0.0), ({"page": 99}, 0.0), ({"doc": "10K-000000"}, 1.0), ({"doc": ""}, 1.0)):
        assert parts(grade(filings, answer(value, unit, {**cite, **wrong}), lookup)) == (1.0, 0.0, invented)


def test_every_quote_from_a_page_must_hold(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    assert parts(grade(filings, answer(value, unit, cite, cite), lookup)) == (1.0, 1.0, 0.0), "said twice, one page"
    assert parts(grade(filings, answer(value, unit, cite, {**cite, "quote": "e"}), lookup)) == (1.0, 0.0, 0.0)


def test_f1_of_pages(two_pages: tuple[Recipe, Example]) -> None:
    ours, example = two_pages
    value, unit, first = target(example)
    second = {key: example.target["operands"][1][0][key] for key in ("doc", "page", "quote")}
    cover = {"doc": first["doc"], "page": 1, "quote": "annual report"}
    cited = {n: parts(grade(ours, answer(value, unit, *some), example))[1] for n, some in
             enumerate([(first, second), (first,), (first, second, cover), (first, cover), (cover,), ()])}  # fmt: skip
    assert cited == pytest.approx({0: 1.0, 1: 2 / 3, 2: 0.8, 3: 0.5, 4: 0.0, 5: 0.0})


@pytest.mark.slow
def test_every_page_that_shows_a_figure_will_do() -> None:
    """Net income stands in two statements."""
    filings = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"statements": "full"}))
    found = filings.examples("train", 200, 0)
    example = next(e for e in found if e.slice == "lookup" and len(e.target["operands"][0]) == 2)
    value, unit, _ = target(example)
    places = [{key: place[key] for key in ("doc", "page", "quote")} for place in example.target["operands"][0]]
    for cited in ((places[0],), (places[1],), places):
        assert grade(filings, answer(value, unit, *cited), example)["score"] == 1.0


def test_padding_with_pages_pays_less(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    filing = filings._module("corpora").corpus(filings.options).filing(cite["doc"])
    padding = [{"doc": filing.doc, "page": page.number, "quote": page.text.split("\n")[0]} for page in filing.pages
               if page.number != cite["page"]]  # fmt: skip
    scores = [grade(filings, answer(value, unit, cite, *padding[:n]), lookup)["score"] for n in range(4)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1.0
    assert scores[3] < 0.8
    assert grade(filings, answer(value, unit, *[cite] * 7), lookup)["score"] == -0.5, "no question needs seven"


# -- the form --------------------------------------------------------------------------------------
def test_keys_in_any_order(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    text = json.dumps({"value": value, "unit": unit, "citations": [dict(reversed(cite.items()))]}, indent=1)
    assert grade(filings, f"\n {text}\n", lookup)["score"] == 1.0


def test_anything_else_is_no_answer(filings: Recipe, lookup: Example) -> None:
    value, unit, cite = target(lookup)
    good = answer(value, unit, cite)
    shown = json.dumps(cite)
    for text, reason in (
        ("", "no answer"), (None, "no answer"), ("42", "is not {"), ("[]", "is not {"), ("null", "is not {"),
        ("{}", "is not {"), (f"The answer: {good}", "not JSON alone"), (f"{good} .", "not JSON alone"),
        (f"{good}\n{good}", "not JSON alone"), (f"```json\n{good}\n```", "not JSON alone"),
        ("[" * 1900, "not JSON alone"),
        (good.replace('"', "'"), "not JSON alone"), (good[:-1] + ', "more": 1}', "is not {"),
        (good[:-1] + f', "value": {value}}}', "given twice"), (good[:-1] + f', "unit": "{unit}"}}', "given twice"),
        (good.replace('"page"', '"page": 1, "page"'), "given twice"),
        (good.replace('"quote"', '"Quote"'), "a citation is"),
        (answer(str(value), unit, cite), "not one number"), (answer([value], unit, cite), "not one number"),
        (answer({"value": value}, unit, cite), "not one number"), (answer(True, unit, cite), "not one number"),
        (answer(None, unit, cite), "not one number"), (answer("not in filings", unit, cite), "not one number"),
        (good.replace(f'"value": {value}', f'"value": {value}e0'), "not one number"),
        (good.replace(f'"value": {value}', '"value": 1E3'), "not one number"),
        (good.replace(f'"value": {value}', '"value": NaN'), "NaN is not a number"),
        (good.replace(f'"value": {value}', '"value": -Infinity'), "-Infinity is not a number"),
        (good.replace(f'"value": {value}', f'"value": {"9" * 400}'), "not one number"),
        (good.replace(f'"value": {value}', f'"value": 0{value}'), "not JSON alone"),
        (good.replace(f'"value": {value}', f'"value": +{value}'), "not JSON alone"),
        (good.replace(f'"value": {value}', '"value": 482,130'), "not JSON alone"),
        (good.replace(f'"value": {value}', '"value": \u0664\u0668'), "not JSON alone"),
        (good.replace(f'"value": {value}', '"value": \uff14\uff18'), "not JSON alone"),
        (answer(value, 1, cite), "unit is not a text"), (answer(value, [unit], cite), "unit is not a text"),
        (answer(value, None, cite), "unit is not a text"), (answer(value, unit, cite["quote"]), "a citation is not"),
        (answer(value, unit, {**cite, "page": str(cite["page"])}), "not a whole number"),
        (answer(value, unit, {**cite, "page": 2.0}), "not a whole number"),
        (answer(value, unit, {**cite, "page": True}), "not a whole number"),
        (answer(value, unit, {**cite, "page": -1}), "not a whole number"),
        (answer(value, unit, {**cite, "doc": 482130}), "not a text"),
        (answer(value, unit, {**cite, "quote": 1}), "not a text"),
        (good.replace(f"[{shown}]", shown), "citations are not a list"),
        (good.replace(f"[{shown}]", "null"), "not a list"),
        (answer(value, unit, {**cite, "quote": "x" * 2000}), "longer than"),
    ):  # fmt: skip
        found = grade(filings, text, lookup)
        assert (found["score"], found["solved"]) in ((0.0, False), (-0.5, False)), text
        assert reason in found["reason"], (text, found["reason"])


def test_an_answer_beside_a_tool_call_is_none(filings: Recipe, lookup: Example) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "calculate", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    found = grade(filings, filings.answer(lookup.target), lookup, choices=[{"index": 0, "message": message}])
    assert found["score"] == 0.0
    assert "tool call" in found["reason"]


def test_a_broken_row_is_nobodys_score(filings: Recipe, lookup: Example) -> None:
    assert filings.grade is not None
    good = lookup.target
    for broken in (None, [], {}, "482130", {"answers": [], "operands": good["operands"]}, {**good, "operands": []},
                   {**good, "operands": [[]]}, {**good, "operands": [[{"doc": "x"}]]},
                   {**good, "answers": [{"value": 1}]},
                   {**good, "answers": [{"value": "x", "unit": "y"}]}):  # fmt: skip
        with pytest.raises(ValueError, match="has no answers and operands"):
            filings.grade({"output_text": "1"}, {**lookup.row(), "target": broken})


@given(st.text(ANY, max_size=200))
def test_no_text_breaks_the_grader(filings: Recipe, lookup: Example, text: str) -> None:
    assert -0.5 <= grade(filings, text, lookup)["score"] <= 0.0


@given(
    st.fixed_dictionaries(
        {
            "citations": st.lists(
                st.fixed_dictionaries(
                    {"doc": st.text(ANY, max_size=12), "page": st.integers(0, 12), "quote": st.text(ANY, max_size=12)}
                ),
                max_size=8,
            ),
            "value": st.one_of(st.integers(), st.floats(), st.text(ANY, max_size=4)),
            "unit": st.sampled_from(["thousands", "millions"]),
        }
    )
)
def test_no_form_breaks_the_grader(filings: Recipe, lookup: Example, form: dict[str, Any]) -> None:
    assert -0.5 <= grade(filings, json.dumps(form), lookup)["score"] <= 0.6


# -- "not in filings" ------------------------------------------------------------------------------
@pytest.mark.slow
def test_abstention_over_the_served_grader(filings: Recipe) -> None:
    """The published rule, by the key `abstention` of grader.json, in the engine's own grader."""
    found = filings.examples("train", 60, 0)
    known = next(e for e in found if e.slice == "lookup")
    unknown = next(e for e in found if e.metadata["unanswerable"])
    right = filings.answer(known.target)
    asked = [
        (unknown, "not in filings", 1.0, None), (unknown, "Not in filings.", 1.0, None), (unknown, right, -0.5, None),
        (unknown, "", -0.5, None), (unknown, answer("not in filings", "thousands"), -0.5, None),
        (known, "not in filings", 0.0, 1.0), (known, right, 1.0, 0.0), (known, "not in filings, but 1", 0.0, 0.0),
        (known, "", 0.0, 0.0),
    ]  # fmt: skip
    grades = asyncio.run(_served(filings, [(example, text) for example, text, *_ in asked]))
    for (_, text, score, abstained), got in zip(asked, grades, strict=True):
        assert got.score == score, text
        assert got.components.get(ABSTAINED) == abstained, "reported for questions that have an answer"
        assert got.solved is (score == 1.0)


async def _served(ours: Recipe, answers: list[tuple[Example, str]]) -> list[Grade]:
    section, traces = config.Tools(), Traces()
    with lifetime.running(ours, section) as endpoint:
        async with grader_of(ours.grader, endpoint, section) as grader:
            return [
                await grader.grade(
                    example,
                    [Turn(text)],
                    StopReason.completed,
                    RolloutContext(traces.trace_id(f"test {n}", 0), example),
                )
                for n, (example, text) in enumerate(answers)
            ]


def test_the_scale_is_the_published_one(filings: Recipe) -> None:
    scale = filings.grader.scale
    assert (scale.low, scale.high, scale.pass_threshold, scale.chance) == (-0.5, 1.0, 1.0, 0.125)
    assert filings.options.model_dump()["unanswerable_share"] == scale.chance, "what always saying so earns"
