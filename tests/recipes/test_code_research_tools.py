"""recipes/code_research: search, the other tools, and what they must not show."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.recipe import Recipe, ToolError


@pytest.fixture(scope="module")
def code() -> Recipe:
    return recipe.load(
        config.Recipe(path="recipes/code_research/recipe", options={"packages": ["jinja2"], "worlds": 1})
    )


@pytest.fixture(scope="module")
def workspace(code: Recipe) -> ModuleType:
    return code._module("workspace")


@pytest.fixture(scope="module")
def row(code: Recipe) -> dict[str, Any]:
    return code.examples("train", 1, 0)[0].row()


def test_the_words_of_a_question_find_its_fact_first(code: Recipe, workspace: ModuleType) -> None:
    known = workspace.load("jinja2", 0)
    for subject in code._module("questions").pools(code.options, "train")[0][1]:
        rows = [known.rows[n] for n in known.index.search(subject.phrase, 3)]
        assert rows[0] == subject.facts[0]


def test_tools(code: Recipe, workspace: ModuleType, row: dict[str, Any]) -> None:
    search, retrieve, symbols = code.tools
    target = row["target"][0]
    known = workspace.of_item(row)
    wanted = next(row for row in known.rows if code._module("examples").target([row]) == [target])
    hit = f"{wanted.symbol} | {wanted.path} | {wanted.kind} {wanted.value} | line {wanted.line}"
    phrase = f" {wanted.kind} {wanted.symbol}"
    assert search(phrase, item=row).splitlines()[0] == hit
    assert len(search(phrase, k=5, item=row).splitlines()) == 5
    assert search("zzzzzz", item=row) == "no hits"
    text = known.texts[wanted.path].split("\n")
    assert retrieve(wanted.path, str(wanted.line), item=row) == f"{wanted.line}: {text[wanted.line - 1][:120]}"
    assert retrieve(f" ./{wanted.path}", "1 - 3", item=row).splitlines()[2].startswith("3: ")
    assert hit in symbols(wanted.path, k=40, after=wanted.line - 1, item=row).splitlines()
    assert len(symbols(wanted.path, item=row).splitlines()) <= 6
    hidden = {**row, "metadata": {**row["metadata"], "snippets": False}}
    places = search(phrase, k=10, item=hidden) + symbols(wanted.path, k=40, item=hidden)
    assert f"{wanted.symbol} | {wanted.path} | {wanted.kind} | line {wanted.line}" in places
    assert all(not line.split(" | ")[2].count(" ") for line in places.splitlines())


@pytest.mark.parametrize(
    "path",
    [
        "../jinja2/spec.py", "../../etc/passwd", "/etc/passwd", "/proc/self/environ", "~/.ssh/id_rsa", "", ".", "..",
        "C:\\Windows\\win.ini", "..\\..\\x.py", "{path}\0", "{path}/../../x", "{path}/", "file:///etc/passwd",
        "grader.json", "recipes/code_research/tools.py", "%2e%2e/etc/passwd", "{true}", "jinja2/{true}",
    ],
)  # fmt: skip
def test_no_path_leaves_the_workspace(code: Recipe, workspace: ModuleType, row: dict[str, Any], path: str) -> None:
    _, retrieve, symbols = code.tools
    fact = next(row for row in workspace.of_item(row).rows if row.is_fact and row.path != "__init__.py")
    named = path.replace("{path}", fact.path).replace("{true}", fact.true_path)
    for call in (lambda: retrieve(named, "1", item=row), lambda: symbols(named, item=row)):
        with pytest.raises(ToolError, match=r"^no such file in the package"):
            call()


@pytest.mark.parametrize(
    "lines", ["1-41", "1-9999999", "1-99999999999", "0", "-3", "5-2", "", "one", "1,2", "1-2-3", "999999", "1e3"]
)
def test_ranges_that_are_refused(code: Recipe, row: dict[str, Any], lines: str) -> None:
    with pytest.raises(ToolError, match="line"):
        code.tools[1](row["target"][0]["path"], lines, item=row)


def test_refusals_and_replies_never_hold_the_target(code: Recipe, row: dict[str, Any]) -> None:
    """The row holds it, and a tool that repeats it teaches copying."""
    search, retrieve, symbols = code.tools
    secret = "s3cr3t"
    marked = {**row, "target": [{"symbol": secret, "path": secret, "value": secret}]}
    replies = [search("default", item=marked), symbols(row["target"][0]["path"], item=marked)]
    for call in (
        lambda: search("x" * 301, item=marked),
        lambda: retrieve("x", "1", item=marked),
        lambda: symbols("x", item=marked),
        lambda: search("x"),
    ):
        with pytest.raises(ToolError) as refusal:
            call()
        replies.append(str(refusal.value))
    assert not any(secret in text for text in replies)
