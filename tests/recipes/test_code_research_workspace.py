"""recipes/code_research: packages, how they are mutated, and what the tools can see of it."""

from __future__ import annotations

import ast
import io
import json
import keyword
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import InfrastructureError
from rft.recipe import Recipe

TRICKY = '''\
"""A module. Its Größe and its timeout do not matter."""
from __future__ import annotations
import re, sys
from tricky.other import Ülk as Uhr

LIMIT: int = 0x1F; RATIO = .5
ÄRGER = "ß"; AFTER = "plain"            # timeout stays \\timeout
NAMED = "\\N{BULLET}", "a" "b", b"bytes", 1_000, -3
BULLET = "\\N{BULLET} timeout"

class Client(Uhr, re.Scanner, dict[str, int], metaclass=type):
    timeout = 5.0
    @property
    def match(self): return f"{self.timeout!r} {LIMIT:>{LIMIT}} {{timeout}}"
    async def get(self, url, /, timeout=5, *, retries: int = 3, case="none", flag=True, r=None):
        """Get a page, and wait for the timeout."""
        match timeout:
            case [first, *rest] if (n := len(rest)) > 2: raise Closed(f"{n}")
            case {"timeout": x, **others}: raise errors.Late from None
            case _:
                try: self.get(url=url, timeout=timeout)
                except* Late as late: raise late
                else:
                    raise ValueError
        def inner(type=7): raise ValueError
        return lambda q=3: inner(q)

class Closed(Exception): pass
class Late(Closed): ...
if sys.version_info > (3, 10):
    def twice(a=1): pass
else:
    def twice(a=2): pass
'''


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


@pytest.fixture
def tricky(code: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of its own, under a name that no other test uses."""
    name = f"tricky_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / "site" / name
    (folder / "tests").mkdir(parents=True)
    (folder / "sub").mkdir()
    for path, text in {
        "__init__.py": TRICKY,
        "sub/other.py": "class Ülk: pass\n\fMAX = 3\n",
        "tests/test_it.py": "HIDDEN = 1\n",
        "template.py": "class {{ name }}: pass\n",
    }.items():
        (folder / path).write_text(text, encoding="utf-8")
    (folder / "link.py").symlink_to("/etc/hostname")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    return name


# -- mutation --------------------------------------------------------------------------------------
def names_in(text: str) -> list[str]:
    return [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    ]


Mutated = tuple[Any, list[Any], list[str]]


@pytest.fixture(scope="module")
def mutated(code: Recipe) -> Mutated:
    """A package's source, its files in a workspace, and what was left out."""
    source = code._module("packages").source("jinja2")
    return source, *code._module("mutation").mutate(source, 0)


@pytest.mark.slow
def test_a_workspace_is_valid_python_of_the_same_shape_under_other_names(code: Recipe, mutated: Mutated) -> None:
    source, found, left_out = mutated
    assert left_out == []
    assert len(found) == len(source.files) == len({file.path for file in found})
    for file in found:
        before, after = (ast.walk(ast.parse(text)) for text in (source.files[file.true_path], file.text))
        assert [type(node) for node in after] == [type(node) for node in before]
        assert file.text.count("\n") == source.files[file.true_path].count("\n"), "lines keep their numbers"
    renamed = set(code._module("mutation")._renamed("jinja2"))
    assert len(renamed) > 500
    assert not renamed & {name for file in found for name in names_in(file.text)}, "no name of the package is left"


def test_one_name_becomes_one_name(mutated: Mutated) -> None:
    source, found, _ = mutated
    pairs = {
        pair for file in found for pair in zip(names_in(source.files[file.true_path]), names_in(file.text), strict=True)
    }
    assert len({before for before, _ in pairs}) == len({after for _, after in pairs}) == len(pairs)
    for before, after in pairs:
        stem, new = before.strip("_"), after.strip("_")
        assert (before.startswith("_"), before.endswith("_")) == (after.startswith("_"), after.endswith("_"))
        assert before == after or (stem[:1].isupper(), stem.isupper()) == (new[:1].isupper(), new.isupper())
        assert not keyword.iskeyword(after) or before == after


def test_worlds_have_names_and_values_of_their_own(workspace: ModuleType) -> None:
    def facts(world: int) -> list[Any]:
        return [row for row in workspace.load("jinja2", world).rows if row.is_fact]

    zero, one = facts(0), facts(1)
    assert [(row.true_symbol, row.true_value) for row in zero] == [(row.true_symbol, row.true_value) for row in one]
    assert not {(row.symbol, row.path, row.value) for row in zero} & {(row.symbol, row.path, row.value) for row in one}
    same = sum(a.symbol == b.symbol for a, b in zip(zero, one, strict=True))
    assert same / len(zero) < 0.01, "what is not renamed"
    same = sum(a.value == b.value for a, b in zip(zero, one, strict=True))
    assert same / len(zero) < 0.02, "by chance a number of two digits"


def test_a_fact_is_another_one_than_in_the_installed_package(workspace: ModuleType) -> None:
    """So that a memory of the package does not help."""
    known = workspace.load("jinja2", 0)
    facts = [row for row in known.rows if row.is_fact]
    assert len(facts) > 300
    for row in facts:
        assert row.value != row.true_value
        assert row.value not in row.symbol.split(".")
        assert row.kind in ("default", "constant", "base", "raises", "calls")


def test_rows_say_what_the_text_says(workspace: ModuleType) -> None:
    """A value stands in the line that the row names, or for a header below it."""
    known = workspace.load("jinja2", 0)
    for row in known.rows:
        if row.is_fact and row.kind != "base":
            value = ast.literal_eval(row.value) if row.kind in ("default", "constant") else row.value
            line = known.texts[row.path].split("\n")[row.line - 1]
            later = known.texts[row.path].split("\n")[row.line - 1 :]
            assert str(value) in (line if row.kind in ("default", "constant") else "\n".join(later))


def test_a_tricky_module(workspace: ModuleType, code: Recipe, tricky: str) -> None:
    known = workspace.load(tricky, 0)
    assert sorted(known.left_out) == ["template.py"]
    assert len(known.texts) == 2, "neither tests nor links"
    text = known.texts["__init__.py"]
    ast.parse(text)
    was = {(row.kind, row.true_symbol): row for row in known.rows if row.is_fact}
    values = {key: row.true_value for key, row in was.items()}
    expected = {
        ("constant", "LIMIT"): "31",
        ("constant", "RATIO"): "0.5",
        ("constant", "ÄRGER"): "'ß'",
        ("constant", "AFTER"): "'plain'",
        ("constant", "Client.timeout"): "5.0",
        ("default", "Client.get.timeout"): "5",
        ("default", "Client.get.retries"): "3",
        ("default", "Client.get.case"): "'none'",
        ("default", "Client.get.inner.type"): "7",
        ("base", "Closed"): "Exception",
        ("base", "Late"): "Closed",
        ("raises", "Client.get.inner"): "ValueError",
    }
    assert expected.items() <= values.items()
    assert ("default", "Client.get.flag") not in was, "true and false can be guessed"
    assert {row.true_value for row in known.rows if row.kind == "raises" and row.true_symbol == "Client.get"} == {
        "Closed",
        "Late",
        "ValueError",
    }, "and not the exception that a variable holds"
    assert "\\N{BULLET}" in text
    assert "from __future__ import annotations" in text
    assert "timeout" not in names_in(text)
    after = was["constant", "AFTER"]
    assert text.split("\n")[after.line - 1].count(after.value) == 1, "columns are counted in characters"


def test_a_symbol_that_is_defined_twice_is_not_asked_about(code: Recipe, workspace: ModuleType, tricky: str) -> None:
    known = workspace.load(tricky, 0)
    twice = {row.symbol for row in known.rows if row.true_symbol == "twice.a"}
    asked = code._module("questions").subjects(known, frozenset(range(10)), code.options)
    assert len(twice) == 1
    assert asked
    assert not any(subject.symbols & twice for subject in asked)


def test_a_link_in_a_package_is_not_followed(workspace: ModuleType, tricky: str) -> None:
    assert not any("link" in path or "host" in path for path in workspace.load(tricky, 0).texts)
    assert (Path("/etc/hostname").read_text().strip() or "-") not in json.dumps(workspace.load(tricky, 0).texts)


# -- the cache -------------------------------------------------------------------------------------
def test_a_workspace_is_written_whole_once_and_again_when_it_is_lost(
    workspace: ModuleType, tricky: str, tmp_path: Path
) -> None:
    load = workspace.load.__wrapped__
    first = load(tricky, 7)
    files = list((tmp_path / "state" / "cache").iterdir())
    assert [path.name for path in files] == [f"code_research-{first.key}.json"]
    content = files[0].read_bytes()
    assert load(tricky, 7).rows == first.rows
    files[0].unlink()
    load(tricky, 7)
    assert files[0].read_bytes() == content, "equal arguments give equal bytes"


def test_a_broken_cache_says_what_to_do(workspace: ModuleType, tricky: str, tmp_path: Path) -> None:
    path = tmp_path / "state" / "cache" / f"code_research-{workspace.key_of(tricky, 8)}.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"texts": {')
    with pytest.raises(InfrastructureError, match=r"cannot be read .*Delete it"):
        workspace.load.__wrapped__(tricky, 8)
    path.unlink()
    assert workspace.load.__wrapped__(tricky, 8).rows, "it is made again"


def test_examples_of_another_version_are_refused(workspace: ModuleType, row: dict[str, Any]) -> None:
    stale = {**row, "metadata": {**row["metadata"], "workspace": "jinja2-1-0-0-1"}}
    with pytest.raises(InfrastructureError, match="Make the examples again"):
        workspace.of_item(stale)
