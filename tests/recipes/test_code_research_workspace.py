"""recipes/code_research: packages, how they are mutated, and what the tools can see of it."""

from __future__ import annotations

import ast
import io
import json
import keyword
import random
import tokenize
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.recipe import Recipe, ToolError

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
    return recipe.load(config.Recipe(path="recipes/code_research", options={"packages": ["fsspec"], "worlds": 1}))


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


def test_a_workspace_is_valid_python_of_the_same_shape_under_other_names(code: Recipe) -> None:
    source = code._module("packages").source("jinja2")
    found, left_out = code._module("mutation").mutate(source, 0)
    assert left_out == []
    assert len(found) == len(source.files) == len({file.path for file in found})
    for file in found:
        before, after = (ast.walk(ast.parse(text)) for text in (source.files[file.true_path], file.text))
        assert [type(node) for node in after] == [type(node) for node in before]
        assert file.text.count("\n") == source.files[file.true_path].count("\n"), "lines keep their numbers"
    renamed = set(code._module("mutation")._renamed("jinja2"))
    assert len(renamed) > 500
    assert not renamed & {name for file in found for name in names_in(file.text)}, "no name of the package is left"


def test_one_name_becomes_one_name(code: Recipe) -> None:
    source = code._module("packages").source("jinja2")
    found, _ = code._module("mutation").mutate(source, 0)
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
        return [row for row in workspace.load("fsspec", world).rows if row.is_fact]

    zero, one = facts(0), facts(1)
    assert [(row.true_symbol, row.true_value) for row in zero] == [(row.true_symbol, row.true_value) for row in one]
    assert not {(row.symbol, row.path, row.value) for row in zero} & {(row.symbol, row.path, row.value) for row in one}
    same = sum(a.symbol == b.symbol for a, b in zip(zero, one, strict=True))
    assert same / len(zero) < 0.01, "what is not renamed"
    same = sum(a.value == b.value for a, b in zip(zero, one, strict=True))
    assert same / len(zero) < 0.02, "by chance a number of two digits"


def test_a_fact_is_another_one_than_in_the_installed_package(workspace: ModuleType) -> None:
    """So that a memory of the package does not help."""
    known = workspace.load("fsspec", 0)
    facts = [row for row in known.rows if row.is_fact]
    assert len(facts) > 300
    for row in facts:
        assert row.value != row.true_value
        assert row.value not in row.symbol.split(".")
        assert row.kind in ("default", "constant", "base", "raises", "calls")


def test_rows_say_what_the_text_says(workspace: ModuleType) -> None:
    """A value stands in the line that the row names, or for a header below it."""
    known = workspace.load("fsspec", 0)
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


# -- the cache -------------------------------------------------------------------------------------
def test_a_workspace_is_written_whole_once_and_again_when_it_is_lost(
    workspace: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_STATE", str(tmp_path))
    load = workspace.load.__wrapped__
    first = load("jinja2", 7)
    files = list((tmp_path / "cache").iterdir())
    assert [path.name for path in files] == [f"code_research-{first.key}.json"]
    content = files[0].read_bytes()
    assert load("jinja2", 7).rows == first.rows
    files[0].unlink()
    load("jinja2", 7)
    assert files[0].read_bytes() == content, "equal arguments give equal bytes"


def test_a_broken_cache_and_a_full_disk_are_errors_that_leave_nothing(
    workspace: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_STATE", str(tmp_path))
    path = tmp_path / "cache" / f"code_research-{workspace.key_of('jinja2', 8)}.json"
    path.parent.mkdir()
    path.write_text('{"texts": {')
    with pytest.raises(InfrastructureError, match=r"cannot be read .*Delete it"):
        workspace.load.__wrapped__("jinja2", 8)
    path.unlink()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workspace.os, "replace", full)
    with pytest.raises(InfrastructureError, match=r"cannot be written .No space left"):
        workspace.load.__wrapped__("jinja2", 8)
    assert list(path.parent.iterdir()) == []


def test_examples_of_another_version_are_refused(workspace: ModuleType, row: dict[str, Any]) -> None:
    stale = {**row, "metadata": {**row["metadata"], "workspace": "fsspec-1-0-0-1"}}
    with pytest.raises(InfrastructureError, match="Make the examples again"):
        workspace.of_item(stale)


# -- packages that cannot be asked about -----------------------------------------------------------
def refused(package: str) -> str:
    loaded = recipe.load(config.Recipe(path="recipes/code_research", options={"packages": [package], "worlds": 1}))
    with pytest.raises(UserError) as refusal:
        loaded.examples("train", 4, 0)
    return str(refusal.value)


def test_a_package_without_sources_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("only_compiled", "nothing_in_it", "blank_inside"):
        (tmp_path / name).mkdir()
    (tmp_path / "only_compiled" / "core.so").write_bytes(b"\x7fELF")
    (tmp_path / "blank_inside" / "__init__.py").write_text("\n")
    (tmp_path / "lonely_module.py").write_text("LIMIT = 3\n")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("in_a_zip/__init__.py", "LIMIT = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    for package, why in {
        "only_compiled": "has no Python sources",
        "nothing_in_it": "has no Python sources",
        "blank_inside": "has no Python sources",
        "lonely_module": "is a single module",
        "in_a_zip": "is in an archive",
        "math": "is a compiled or built-in module",
        "no_such_package": "is not installed",
        "os.path": "is not the name of a package",
        "../aiohttp": "is not the name of a package",
    }.items():
        message = refused(package)
        assert message.startswith(f"params.yaml: recipe.options.packages: {package!r} {why}"), message
        assert message.endswith("or install it.")


def test_a_package_with_too_little_to_ask_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_package").mkdir()
    (tmp_path / "tiny_package" / "__init__.py").write_text("LIMIT = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    message = refused("tiny_package")
    assert "no module of tiny_package gives questions for the train split. Name more packages" in message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"packages": []}, "packages"),
        ({"packages": ["rich", "rich"]}, "names one twice"),
        ({"min_subjects": 3, "max_subjects": 2}, "min_subjects is 3, above max_subjects = 2"),
        ({"min_facts": 3, "max_facts": 2}, "min_facts is 3, above max_facts = 2"),
        ({"worlds": 0}, "worlds"),
        ({"kinds": ["docstring"]}, "kinds"),
        ({"package": "rich"}, "package"),
    ],
)
def test_options_that_cannot_be_honored(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        recipe.load(config.Recipe(path="recipes/code_research", options=options))


# -- search and the other tools --------------------------------------------------------------------
def test_the_words_of_a_question_find_its_fact_first(code: Recipe, workspace: ModuleType) -> None:
    known = workspace.load("fsspec", 0)
    for subject in code._module("questions").pools(code.options, "train")[0][1]:
        rows = [known.rows[n] for n in known.index.search(subject.phrase, 3)]
        assert rows[0] == subject.facts[0]


def test_scores_are_those_of_bm25(code: Recipe) -> None:
    """Against the formula, written out."""
    index, rng = code._module("index"), random.Random(0)
    documents = [[rng.choice("abcdefgh") for _ in range(rng.randint(1, 9))] for _ in range(60)]
    mean = sum(map(len, documents)) / 60

    def score(document: list[str], query: str) -> float:
        total = 0.0
        for word in query:
            having = sum(word in other for other in documents)
            rarity = index.math.log(1 + (60 - having + 0.5) / (having + 0.5))
            norm = index.K1 * (1 - index.B + index.B * len(document) / mean)
            total += rarity * document.count(word) * (index.K1 + 1) / (document.count(word) + norm)
        return total

    built = index.Index(documents)
    for query in ("a", "ab", "hgf", "abcdefgh"):
        scores = [score(document, query) for document in documents]
        wanted = sorted((n for n in range(60) if scores[n]), key=lambda n: (-round(scores[n], 9), n))
        assert list(built.search(" ".join(query), 60)) == wanted
    assert built.search("zzz", 3) == built.search("", 3) == ()


def test_tools(code: Recipe, workspace: ModuleType, row: dict[str, Any]) -> None:
    search, retrieve, symbols = code.tools
    target, phrase = row["target"][0], row["metadata"]["phrases"][0]
    known = workspace.of_item(row)
    wanted = next(row for row in known.rows if code._module("examples").target([row]) == [target])
    hit = f"{wanted.symbol} | {wanted.path} | {wanted.kind} {wanted.value} | line {wanted.line}"
    assert search(f" {wanted.kind} {wanted.symbol}", item=row).splitlines()[0] == hit
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
        "../fsspec/spec.py", "../../etc/passwd", "/etc/passwd", "/proc/self/environ", "~/.ssh/id_rsa", "", ".", "..",
        "C:\\Windows\\win.ini", "..\\..\\x.py", "{path}\0", "{path}/../../x", "{path}/", "file:///etc/passwd",
        "grader.json", "recipes/code_research/tools.py", "%2e%2e/etc/passwd", "{true}", "fsspec/{true}",
    ],
)  # fmt: skip
def test_no_path_leaves_the_workspace(code: Recipe, workspace: ModuleType, row: dict[str, Any], path: str) -> None:
    _, retrieve, symbols = code.tools
    fact = next(row for row in workspace.of_item(row).rows if row.is_fact and row.path != "__init__.py")
    named = path.replace("{path}", fact.path).replace("{true}", fact.true_path)
    for call in (lambda: retrieve(named, "1", item=row), lambda: symbols(named, item=row)):
        with pytest.raises(ToolError, match=r"^no such file in the package"):
            call()


def test_a_link_in_a_package_is_not_followed(workspace: ModuleType, tricky: str) -> None:
    assert not any("link" in path or "host" in path for path in workspace.load(tricky, 0).texts)
    assert (Path("/etc/hostname").read_text().strip() or "-") not in json.dumps(workspace.load(tricky, 0).texts)


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
    said = [search("default", item=marked), symbols(row["target"][0]["path"], item=marked)]
    for call in (
        lambda: search("x" * 301, item=marked),
        lambda: retrieve("x", "1", item=marked),
        lambda: symbols("x", item=marked),
        lambda: search("x"),
    ):
        with pytest.raises(ToolError) as refusal:
            call()
        said.append(str(refusal.value))
    assert not any(secret in text for text in said)
