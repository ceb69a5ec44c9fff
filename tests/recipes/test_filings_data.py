"""recipes/filings: statements that agree, pages, search, questions with computed answers."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe
from rft.stages import examples

HARDER = {
    "statements": "full",
    "mixed_order": True,
    "layout": "table",
    "comparatives": True,
    "notes": True,
    "restated_share": 0.5,
    "unit_switch_share": 0.5,
    "near_duplicate_share": 0.3,
    "lookup_share": 0.3,
    "programs": ["difference", "ratio", "growth"],
    "companies": 300,
}


@pytest.fixture(scope="module")
def filings() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings/recipe"))


@pytest.fixture(scope="module")
def harder() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings/recipe", options=HARDER))


def part(ours: Recipe, name: str) -> ModuleType:
    return ours._module(name)


def corpus(ours: Recipe) -> Any:
    return part(ours, "corpora").corpus(ours.options)


# -- statements ------------------------------------------------------------------------------------
def years(ours: Recipe, count: int = 60) -> list[list[Any]]:
    module = part(ours, "statements")
    names = list(corpus(ours).families)[:count]
    return [module.reports(module.profile(name, ours.options)) for name in names]


@pytest.mark.parametrize("which", ["filings", "harder"])
def test_balance_sheets_balance_and_cash_ties(which: str, request: pytest.FixtureRequest) -> None:
    for reports in years(request.getfixturevalue(which)):
        for report in reports:
            year, before = report.year, report.before
            assert year["gross profit"] == year["revenue"] - year["cost of sales"]
            expenses = sum(year[f"{kind} expense"] for kind in ("research", "selling", "administrative"))
            assert year["operating income"] == year["gross profit"] - expenses
            assert year["net income"] == year["operating income"] - year["interest expense"] - year["income tax"]
            assets = ("cash", "receivables", "inventory", "property", "goodwill")
            assert year["total assets"] == sum(year[item] for item in assets)
            assert year["total liabilities"] == year["payables"] + year["debt"]
            assert year["total equity"] == year["share capital"] + year["retained earnings"]
            assert year["total assets"] == year["total liabilities"] + year["total equity"]
            flows = sum(year[f"{kind} cash flow"] for kind in ("operating", "investing", "financing"))
            assert year["cash"] == year["cash at end"] == year["cash at start"] + flows
            assert year["net change in cash"] == flows
            assert year["cash at start"] == before["cash"]
            assert year["cash"] > 0
            assert year["debt"] > 0
            assert year["operating cash flow"] == sum(
                year[item] for item in ("net income", "depreciation", "working capital change")
            )
            assert year["property"] == before["property"] + year["capital expenditure"] - year["depreciation"]
            assert year["goodwill"] == before["goodwill"] + year["acquisitions"]


def test_a_restated_year_balances_and_the_next_one_follows_from_it(harder: Recipe) -> None:
    seen = 0
    for reports in years(harder, 100):
        for first, second in itertools.pairwise(reports):
            if second.restated:
                seen += 1
                assert second.period == first.period
                assert second.year["revenue"] < first.year["revenue"]
                assert second.year["cash"] == first.year["cash"]
            elif first.restated:
                assert second.before == first.year
                assert second.before_restated
                earned = second.year["net income"] - second.year["dividends"]
                assert second.year["retained earnings"] == first.year["retained earnings"] + earned
    assert seen > 20


@pytest.mark.slow
def test_printed_cells_are_the_statements(filings: Recipe, harder: Recipe) -> None:
    """What a page prints is a cell, and a merged line is the sum of what it stands for."""
    for ours in (filings, harder):
        known = corpus(ours)
        for company in list(known.families)[:25]:
            for filing in known.filings(company):
                for page in filing.pages:
                    for cell in page.cells:
                        line = part(ours, "questions").quote(
                            known, part(ours, "filings").Place(filing.doc, page.number, cell)
                        )
                        assert cell.item in line
                        assert cell.number in line
                        read = part(ours, "analyst").lines(page.text, filing.doc, page.number)
                        before = "" if cell.period == filing.period else f"{cell.period} "
                        same = [each for each in read if each.head == f"{before}{cell.item}"]
                        assert [(each.value, each.unit) for each in same] == [(cell.value, cell.unit)]


def test_units_and_numbers_of_a_table(harder: Recipe) -> None:
    printed = part(harder, "printing").printed
    assert printed(1234567, "lines") == "1234567"
    assert printed(-1234, "lines") == "-1234"
    assert printed(1234567, "table") == "1,234,567"
    assert printed(-1234, "table") == "(1,234)"
    assert printed(Fraction(-12345, 10), "table") == "(1,234.5)"
    units = {cell.unit for name in list(corpus(harder).families)[:40] for filing in corpus(harder).filings(name)
             for page in filing.pages for cell in page.cells}  # fmt: skip
    assert units == {"thousands", "millions"}


def test_a_company_that_changes_its_unit_says_the_same(harder: Recipe) -> None:
    """The year before, in next year's unit, is the same amount."""
    known, scale = corpus(harder), part(harder, "questions").scale
    seen = 0
    for company in known.families:
        for places in known.places(company).values():
            seen += len({place.cell.unit for place in places}) > 1
            assert len({place.cell.value * scale(place.cell.unit) for place in places}) == 1
    assert seen > 100


def test_some_lines_are_not_disclosed(filings: Recipe) -> None:
    module = part(filings, "statements")
    merged = [module.profile(name, filings.options).merged for name in corpus(filings).families]
    shares = {name: sum(name in each for each in merged) / len(merged) for name in module.STATEMENTS}
    assert all(0.3 < share < 0.37 for share in shares.values())


# -- search ----------------------------------------------------------------------------------------
def test_search(filings: Recipe) -> None:
    known = corpus(filings)
    company = known.entries[0].company
    found, has_all = known.search(company, 5)
    assert has_all
    assert [filing.period for filing in found] == sorted(filing.period for filing in found)
    assert {filing.company for filing in found} == {company}
    found, has_all = known.search(f" {company} {known.entries[1].period}", 3)
    assert has_all
    assert [filing.doc for filing in found] == [known.entries[1].doc]
    found, has_all = known.search(f"{company} FY1999", 3)
    assert not has_all
    assert found[0].company == company
    assert known.search("qqqq", 3) == ([], False)
    assert known.search("", 3) == ([], False)
    assert known.filing("10K-000000") is None


def test_a_near_duplicate_is_another_company_of_the_same_split(harder: Recipe) -> None:
    known = corpus(harder)
    twins = {name: base for name, base in known.families.items() if name != base}
    assert len(twins) > 50
    for name, base in twins.items():
        assert base in known.families
        assert name.startswith(base)
        assert known.split_of(name) == known.split_of(base)
        assert known.filings(name)[0].pages[1].text != known.filings(base)[0].pages[1].text


# -- splits and examples ---------------------------------------------------------------------------
@pytest.mark.slow
def test_no_company_is_in_two_splits_or_blocks(filings: Recipe) -> None:
    known = corpus(filings)
    section = config.Examples(test=200, blocks=3, disjoint_targets=False)
    blocks = examples.tested(filings, section)
    assert set(examples.check_blocks(blocks, disjoint_targets=False).values()) == {0}
    made = {"train": filings.examples("train", 400, 0), "validation": filings.examples("validation", 100, 0)}
    made |= {f"test-{n}": some for n, some in blocks.items()}
    writers = [part(filings, "asking").Writer(filings.options, known, {e.metadata["company"] for e in some}, None)
               for some in made.values()]  # fmt: skip
    assert all(set(one._strangers).isdisjoint(other._strangers) for one, other in itertools.combinations(writers, 2))
    companies = {name: {example.metadata["company"] for example in some} for name, some in made.items()}
    for name, some in companies.items():
        assert {known.split_of(company) for company in some} == {name.partition("-")[0]}
        assert all(some.isdisjoint(other) for key, other in companies.items() if key != name)
    shares = [len(known.companies(split)) / 3000 for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.02)
    with pytest.raises(UserError, match="no block 3 of test examples"):
        filings.examples("test", 4, 0, 3)


def test_the_splits_do_not_leak(filings: Recipe) -> None:
    splits = {"train": filings.examples("train", 500, 0), "validation": filings.examples("validation", 100, 0),
              "test": filings.examples("test", 100, 0)}  # fmt: skip
    assert set(examples.check_leakage(splits, disjoint_targets=False).values()) == {0}  # type: ignore[arg-type]


def test_one_in_eight_has_no_answer(filings: Recipe) -> None:
    found = filings.examples("train", 800, 0)
    lacks = [example.metadata["lacks"] for example in found if example.metadata["unanswerable"]]
    assert len(lacks) == 100
    assert all(lacks.count(kind) in (33, 34) for kind in ("item", "period", "company"))
    assert {example.target for example in found if example.metadata["unanswerable"]} == {"not in filings"}
    assert {example.slice for example in found} == {"lookup", "difference", "unanswerable"}


def test_what_is_lacking_is_lacking(filings: Recipe) -> None:
    known, parse = corpus(filings), part(filings, "questions").parse
    for example in filings.examples("train", 800, 0):
        question = parse(example.messages[0]["content"], known)
        figure = question.figures[0]
        if example.metadata["lacks"] == "company":
            assert question.company not in known.families
        elif example.metadata["lacks"] == "period":
            assert figure.period not in {filing.period for filing in known.filings(question.company)}
        elif example.metadata["lacks"] == "item":
            filing = next(each for each in known.filings(question.company) if each.period == figure.period)
            assert all(figure.item not in page.text for page in filing.pages)


@pytest.mark.parametrize("which", ["filings", "harder"])
def test_answers_are_computed_from_the_cells(which: str, request: pytest.FixtureRequest) -> None:
    """A second computation, from the text of the pages alone."""
    ours: Recipe = request.getfixturevalue(which)
    known, analyst, questions = corpus(ours), part(ours, "analyst"), part(ours, "questions")
    for example in ours.examples("train", 200, 0):
        if example.metadata["unanswerable"]:
            continue
        question = questions.parse(example.messages[0]["content"], known)
        for operands in [[operand[0] for operand in example.target["operands"]]]:
            values = []
            for figure, place in zip(question.figures, operands, strict=True):
                page = known.filing(place["doc"]).page(place["page"])
                assert place["quote"] in page.text.split("\n")
                own = known.filing(place["doc"]).period == figure.period
                head = figure.item if own else f"{figure.period} {figure.item}"
                lines = analyst.lines(page.text, place["doc"], place["page"])
                line = next(line for line in lines if line.head == head)
                values.append(line.value * questions.scale(line.unit))
            one, other = values[0], values[-1]
            expected = {
                "lookup": one,
                "difference": one - other,
                "ratio": one / (other or 1),
                "growth": (other - one) / (one or 1) * 100,
            }[question.program]
            got = example.target["answers"][0]
            assert got["value"] * questions.scale(got["unit"]) == pytest.approx(float(expected), rel=1e-5)


def test_restated_figures_are_asked_for_by_version(harder: Recipe) -> None:
    found = dict.fromkeys(("as restated", "as first reported"), 0)
    for example in harder.examples("train", 400, 0):
        text = example.messages[0]["content"]
        for version in found:
            if version in text:
                found[version] += 1
                docs = {place["doc"] for operand in example.target["operands"] for place in operand}
                forms = {corpus(harder).filing(doc).form for doc in docs}
                assert ("10-K/A" in forms) is (version == "as restated")
    assert min(found.values()) > 5


def test_questions_are_read_back(filings: Recipe, harder: Recipe) -> None:
    for ours in (filings, harder):
        known, parse = corpus(ours), part(ours, "questions").parse
        for example in ours.examples("validation", 60, 0):
            text = example.messages[0]["content"]
            question = parse(text, known)
            assert text.endswith(question.text(""))
            assert question.company == example.metadata["company"]
        assert parse(" hello ?", known) is None


def test_same_seed_same_bytes(filings: Recipe) -> None:
    first, again, other = (
        json.dumps([e.row() for e in filings.examples("validation", 50, seed)]) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_more_questions_than_there_are_is_an_error() -> None:
    """The names of companies that have filed nothing are many: they do not fill up the rest."""
    few = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"companies": 60}))
    known, asking = corpus(few), part(few, "asking")
    written = list(asking.Writer(few.options, known, known.companies("validation"), random.Random(0)).write())
    assert sum(asked.lacks is not None for asked in written) <= len(written) / 8 + 1
    with pytest.raises(UserError, match=r"only \d+ of 90000 different questions .* validation split\. Lower"):
        few.examples("validation", 90_000, 0)


def test_options_that_make_no_sense_are_refused(filings: Recipe) -> None:
    options = part(filings, "options").Options
    for wrong in ({"company": 3}, {"years": 1}, {"programs": []}, {"folder": "x", "notes": True}):
        with pytest.raises(ValidationError):
            options(**wrong)
    with pytest.raises(ValidationError, match="notes is about invented filings"):
        options(folder="x", notes=True)
