"""recipes/filings: statements that agree, pages, search, questions with computed answers, splits,
and your own CSV files."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.stages import examples

HARDER = {
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
    return recipe.load(config.Recipe(path="recipes/filings"))


@pytest.fixture(scope="module")
def harder() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings", options=HARDER))


def part(ours: Recipe, name: str) -> ModuleType:
    return ours._module(name)


def corpus(ours: Recipe) -> Any:
    return part(ours, "filings").corpus(ours.options)


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


def test_printed_cells_are_the_statements(filings: Recipe, harder: Recipe) -> None:
    """What a page prints is a cell, and a merged line is the sum of what it stands for."""
    for ours in (filings, harder):
        known = corpus(ours)
        for company in list(known.families)[:40]:
            for filing in known.filings(company):
                for page in filing.pages:
                    for cell in page.cells:
                        line = part(ours, "questions").quote(
                            known, part(ours, "filings").Place(filing.doc, page.number, cell)
                        )
                        assert cell.item in line
                        assert cell.number in line
                        read = part(ours, "analyst").lines(page.text, filing.doc, page.number)
                        same = [each for each in read if each.head == f"{cell.period} {cell.item}"]
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
def test_no_company_is_in_two_splits_or_blocks(filings: Recipe) -> None:
    known = corpus(filings)
    section = config.Examples(test=200, blocks=3, disjoint_targets=False)
    blocks = examples.tested(filings, section)
    assert set(examples.check_blocks(blocks, disjoint_targets=False).values()) == {0}
    made = {"train": filings.examples("train", 400, 0), "validation": filings.examples("validation", 100, 0)}
    made |= {f"test-{n}": some for n, some in blocks.items()}
    companies = {name: {example.metadata["company"] for example in some} for name, some in made.items()}
    for name, some in companies.items():
        assert {known.split_of(company) for company in some} == {name.partition("-")[0]}
        assert all(some.isdisjoint(other) for key, other in companies.items() if key != name)
    counts = {split: len(known.companies(split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 1804, "validation": 308, "test": 888}
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
                line = next(
                    each
                    for each in analyst.lines(page.text, place["doc"], place["page"])
                    if each.head == f"{figure.period} {figure.item}"
                )
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
    few = recipe.load(config.Recipe(path="recipes/filings", options={"companies": 60}))
    with pytest.raises(UserError, match=r"only \d+ of 90000 different questions .* validation split\. Lower"):
        few.examples("validation", 90_000, 0)


def test_options_that_make_no_sense_are_refused(filings: Recipe) -> None:
    options = part(filings, "options").Options
    for wrong in ({"company": 3}, {"years": 1}, {"programs": []}, {"folder": "x", "notes": True}):
        with pytest.raises(ValidationError):
            options(**wrong)
    with pytest.raises(ValidationError, match="notes is about invented filings"):
        options(folder="x", notes=True)


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
    ],
)
def test_arithmetic(filings: Recipe, expression: str, value: str) -> None:
    assert filings.tools[2](expression=expression) == f" {value}"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9**9**9", "only"), ("9//2", "only"), ("2%3", "only"), ("1e308*1e308", "only"), ("0x10", "only"),
        ("1,234+1", "without commas"), ("__import__('os')", "only"), ("a+1", "only"), ("[1]", "only"), ("1==1", "only"),
        ("\u0661+1", "only"), ("", "only"), ("()", "no arithmetic"), ("1+", "no arithmetic"), ("1 2", "no arithmetic"),
        ("(" * 60 + "1" + ")" * 59, "no arithmetic"), ("1/0", "division by zero"), ("1/(2-2)", "division by zero"),
        ("9" * 17, "more than 15 digits"), ("9" * 15 + "*9", "result has more than 15 digits"),
        ("1*" * 60 + "1", "longer than"), ("1..2", "no arithmetic"), ("()()", "only"),
        ("999999999999999*" * 7 + "1", "result has more than 15 digits"),
    ],
)  # fmt: skip
def test_arithmetic_refuses(filings: Recipe, expression: str, why: str) -> None:
    with pytest.raises(recipe.ToolError, match=why):
        filings.tools[2](expression=expression)


@given(st.text(alphabet="0123456789.+-*/() ", max_size=130))
def test_no_expression_breaks_it(filings: Recipe, expression: str) -> None:
    with contextlib.suppress(recipe.ToolError):
        float(filings.tools[2](expression=expression))


# -- your own CSV files ----------------------------------------------------------------------------
COMPANIES = [f"Firm {chr(65 + n // 26)}{chr(97 + n % 26)} Ltd" for n in range(60)]


def write_csv(folder: Path, page: bool = False) -> None:
    rng = random.Random(0)
    lines = ["company,period,item,value,unit" + (",page" if page else "")]
    for company in COMPANIES:
        for period in ("Q3 2022", "Q4 2022"):
            for n, item in enumerate(("Revenue", "Cost of sales", "Headcount", "Free cash flow, net")):
                if rng.random() < 0.9:
                    unit = "people" if item == "Headcount" else "thousands"
                    value = rng.choice(
                        (str(rng.randint(100, 99_999)), f'"{rng.randint(1, 99)},{rng.randint(100, 999)}.5"')
                    )
                    lines.append(f'{company},{period},"{item}",{value},{unit}' + (f",{n // 2 + 3}" if page else ""))
    (folder / "figures.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("page", [False, True])
@pytest.mark.parametrize("layout", ["lines", "table"])
def test_questions_about_your_own_figures(tmp_path: Path, page: bool, layout: str) -> None:
    write_csv(tmp_path, page)
    options = {"folder": str(tmp_path), "layout": layout, "lookup_share": 0.5,
               "programs": ["difference", "ratio", "growth"]}  # fmt: skip
    ours = recipe.load(config.Recipe(path="recipes/filings", options=options))
    found = ours.examples("train", 100, 0)
    assert {example.slice for example in found} == {"lookup", "difference", "ratio", "growth", "unanswerable"}
    grade, scripted = ours.grade, part(ours, "baseline").scripted_answer
    assert grade is not None
    for example in found:
        answer, _ = scripted(ours.options, example)
        if example.metadata["unanswerable"]:
            assert answer == example.target == "not in filings"
        else:
            assert grade({"output_text": answer}, example.row())["score"] == 1.0, (example, answer)
            assert grade({"output_text": ours.answer(example.target)}, example.row())["solved"]
    if page:
        assert {place["page"] for e in found if e.slice == "lookup" for place in e.target["operands"][0]} == {3, 4}


def test_files_that_change_after_the_examples_were_made_are_noticed(tmp_path: Path) -> None:
    write_csv(tmp_path)
    ours = recipe.load(config.Recipe(path="recipes/filings", options={"folder": str(tmp_path)}))
    row = ours.examples("train", 1, 0)[0].row()
    (tmp_path / "more.csv").write_text("company,period,item,value,unit\nNew Ltd,2023,Revenue,1,thousands\n")
    part(ours, "filings")._corpus.cache_clear()
    with pytest.raises(ValueError, match="the CSV files changed since the examples were made"):
        ours.tools[0](query="Firm", item=row)


HEAD = "company,period,item,value,unit,page"
GOOD = "Acme,2023,revenue,1,thousands,2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("company,period,item,value,units\n", r"a.csv: line 1: column 'units' is unknown. Did you mean 'unit'"),
        ("company,period,item,value\n", r"a.csv: line 1: column 'unit' is missing. Begin the file with company,"),
        ("company,company,period,item,value,unit\n", r"line 1: column 'company' is there twice. Remove one"),
        ("", r"a.csv: line 1: has no columns. Begin the file with"),
        (f"{HEAD}\n", r"the CSV files have no rows below their headings. Add your figures"),
        (f"{HEAD}\n{GOOD}\nAcme,,cash,2,thousands,2\n", r"a.csv: line 3: column 'period' is empty. Fill it in, or"),
        (f"{HEAD}\nAcme,2023,revenue,n/a,thousands,2\n", r"line 2: column 'value' is 'n/a', which is no number. Write"),
        (f"{HEAD}\nAcme,2023,revenue,1e6,thousands,2\n", r"line 2: column 'value' is '1e6', which is no number"),
        (f"{HEAD}\nAcme,2023,revenue,NaN,thousands,2\n", r"line 2: column 'value' is 'NaN', which is no number"),
        (f"{HEAD}\nAcme,2023,revenue,\u0661\u0662,thousands,2\n", r"line 2: column 'value' is .* no number"),
        (f'{HEAD}\nAcme,2023,revenue,"1,23",thousands,2\n', r"line 2: column 'value' is '1,23', which is no number"),
        (f"{HEAD}\nAcme,2023,revenue,1,thousands,two\n", r"line 2: column 'page' is 'two', which is no page. Write a"),
        (f"{HEAD}\nAcme,2023,revenue,1,thousands,0\n", r"line 2: column 'page' is '0', which is no page"),
        (f"{HEAD}\n{GOOD}\nAcme,2023,cash,1,thousands,\n", r"line 3: column 'page' is empty, and .*line 2, of the"),
        (f"{HEAD}\nAcme,2023,revenue,1,thousands\n", r"line 2: has 5 values, and line 1 has 6 columns. Add or remove"),
        (f"{HEAD}\n{GOOD}\n{GOOD}\n", r"line 3: column 'item': 'revenue' of 'Acme' in '2023' is already in .*line 2"),
        (f"{HEAD}\n{GOOD}\nACME,2022,revenue,1,thousands,2\n", r"line 3: column 'company' is 'ACME', and .*'Acme'"),
        (f"{HEAD}\nAcme,2023,re|venue,1,thousands,2\n", r"line 2: column 'item' is 're\|venue'. Write at most 80"),
        (f"{HEAD}\n{'A' * 99},2023,revenue,1,thousands,2\n", r"line 2: column 'company' is 'A+'. Write at most 80"),
        (f'{HEAD}\nAcme,2023,"revenue,1,thousands,2\n', r"a.csv: line \d: .*Close the quotes"),
        (f"{HEAD}\nAcme,2023,reve\0nue,1,thousands,2\n", r"a.csv: line 2: holds a zero byte"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_line_column_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    ours = recipe.load(config.Recipe(path="recipes/filings", options={"folder": str(tmp_path)}))
    with pytest.raises(UserError, match=said):
        ours.examples("train", 1, 0)


def test_a_bad_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "a.csv").write_bytes(f"{HEAD}\n{GOOD}\nM\xe9tro,".encode("latin-1"))
    for name, said in (("none", "there is no such folder"), ("empty", "no file there ends in .csv"),
                       ("latin", r"a.csv: line 3: is not UTF-8. Save the file as UTF-8")):  # fmt: skip
        ours = recipe.load(config.Recipe(path="recipes/filings", options={"folder": str(tmp_path / name)}))
        with pytest.raises(UserError, match=said):
            ours.examples("train", 1, 0)


def test_too_few_companies_for_a_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{HEAD}\n{GOOD}\n")
    ours = recipe.load(config.Recipe(path="recipes/filings", options={"folder": str(tmp_path)}))
    empty = [split for split in ("train", "validation", "test") if corpus(ours).split_of("Acme") != split]
    with pytest.raises(UserError, match=r"none of 1 companies is in the \S+ split.* Add companies"):
        ours.examples(empty[0], 1, 0)  # type: ignore[arg-type]


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
