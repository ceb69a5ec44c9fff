"""recipes/filings: your own CSV files."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe


def part(ours: Recipe, name: str) -> ModuleType:
    return ours._module(name)


def corpus(ours: Recipe) -> Any:
    return part(ours, "corpora").corpus(ours.options)


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
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options=options))
    found = ours.examples("train", 100, 0)
    assert {example.slice for example in found} == {"lookup", "difference", "ratio", "growth", "unanswerable"}
    grade, score = ours.grade, part(ours, "baseline").score
    assert grade is not None
    for example in found:
        assert score("honest", ours.options, example) == 1.0, example
        if not example.metadata["unanswerable"]:
            assert grade({"output_text": ours.answer(example.target)}, example.row())["solved"]
    if page:
        assert {place["page"] for e in found if e.slice == "lookup" for place in e.target["operands"][0]} == {3, 4}


@pytest.mark.parametrize("program", ["growth", "difference", "ratio"])
def test_a_program_that_no_company_has_the_figures_for(tmp_path: Path, program: str) -> None:
    """Growth needs the period before."""
    lines = [f"{company},Q4 2022,Revenue,100,thousands" for company in COMPANIES]
    (tmp_path / "a.csv").write_text("\n".join(["company,period,item,value,unit", *lines]))
    ours = recipe.load(
        config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path), "programs": [program]})
    )
    with pytest.raises(UserError, match=f"recipe.options.programs has '{program}', and no company of .* Add such"):
        ours.examples("train", 1, 0)
    ours = recipe.load(
        config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path), "lookup_share": 1})
    )
    assert {example.slice for example in ours.examples("train", 30, 0)} == {"lookup", "unanswerable"}


def test_zeros_and_long_names_break_no_script(tmp_path: Path) -> None:
    """A careless analyst divides by zero, and two long items are too long for `calculate`."""
    items = ("Revenue", "Loans", "Net income attributable to the shareholders of the parent company after tax")
    lines = [
        f"{company},{period},{item},{(n * 7 + k * year) % 5 * 100},thousands"
        for n, company in enumerate(COMPANIES)
        for year, period in enumerate(("Q3 2022", "Q4 2022"))
        for k, item in enumerate((*items, items[2].replace("after", "before")))
    ]
    (tmp_path / "a.csv").write_text("\n".join(["company,period,item,value,unit", *lines]))
    options = {"folder": str(tmp_path), "lookup_share": 0.2, "programs": ["difference", "ratio", "growth"]}
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options=options))
    baseline = part(ours, "baseline")
    for example in ours.examples("test", 100, 0):
        assert all(baseline.score(name, ours.options, example) <= 1 for name in baseline.WAYS)
        assert baseline.score("honest", ours.options, example) == 1.0
    told = [messages[-2]["content"] for messages in ours.demonstrations(300, 0)]
    assert "Error: a division by zero" in told


def test_files_that_change_after_the_examples_were_made_are_noticed(tmp_path: Path) -> None:
    write_csv(tmp_path)
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path)}))
    row = ours.examples("train", 1, 0)[0].row()
    (tmp_path / "more.csv").write_text("company,period,item,value,unit\nNew Ltd,2023,Revenue,1,thousands\n")
    part(ours, "corpora")._corpus.cache_clear()
    with pytest.raises(ValueError, match="the CSV files changed since the examples were made"):
        ours.tools[0](query="Firm", item=row)


HEAD = "company,period,item,value,unit,page"
GOOD = "Acme,2023,revenue,1,thousands,2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("company,period,item,value,units\n", r"a.csv: line 1: column 'units' is unknown. Did you mean 'unit'"),
        ("company,period,item,value\n", r"a.csv: line 1: column 'unit' is missing. Begin the file with company,"),
        ("company,company,period,item,value,unit\n", r"line 1: column 'company' is there twice. Remove one"),
        ("", r"a.csv: line 1: has no columns. Begin the file with"),
        (f"{HEAD}\n", r"the CSV files have no rows below their headings. Add your figures"),
        (f"{HEAD}\n{GOOD}\nAcme,,cash,2,thousands,2\n", r"a.csv: line 3: column 'period' is empty. Fill it in, or"),
        (f"{HEAD}\nAcme,2023,revenue,n/a,thousands,2\n", r"line 2: column 'value' is 'n/a', which is not a number. W"),
        (f"{HEAD}\nAcme,2023,revenue,1e6,thousands,2\n", r"line 2: column 'value' is '1e6', which is not a number"),
        (f"{HEAD}\nAcme,2023,revenue,NaN,thousands,2\n", r"line 2: column 'value' is 'NaN', which is not a number"),
        (f"{HEAD}\nAcme,2023,revenue,\u0661\u0662,thousands,2\n", r"line 2: column 'value' is .* not a number"),
        (f'{HEAD}\nAcme,2023,revenue,"1,23",thousands,2\n', r"line 2: column 'value' is '1,23', which is not a number"),
        (f"{HEAD}\nAcme,2023,revenue,1,thousands,two\n", r"line 2: column 'page' is 'two', which is not a page. Wri"),
        (f"{HEAD}\nAcme,2023,revenue,1,thousands,0\n", r"line 2: column 'page' is '0', which is not a page"),
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
def test_a_bad_file_is_named_with_line_column_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path)}))
    with pytest.raises(UserError, match=message):
        ours.examples("train", 1, 0)


def test_a_bad_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "a.csv").write_bytes(f"{HEAD}\n{GOOD}\nM\xe9tro,".encode("latin-1"))
    for name, message in (("none", "there is no such folder"), ("empty", "no file there ends in .csv"),
                       ("latin", r"a.csv: line 3: is not UTF-8. Save the file as UTF-8")):  # fmt: skip
        ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path / name)}))
        with pytest.raises(UserError, match=message):
            ours.examples("train", 1, 0)


def test_too_few_companies_for_a_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{HEAD}\n{GOOD}\n")
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options={"folder": str(tmp_path)}))
    empty = [split for split in ("train", "validation", "test") if corpus(ours).split_of("Acme") != split]
    with pytest.raises(UserError, match=r"none of 1 companies is in the \S+ split.* Add companies"):
        ours.examples(empty[0], 1, 0)  # type: ignore[arg-type]
