"""docs/architecture.md and docs/decisions/ name functions, files and each other: every name must
exist.

Names are looked up in the sources, so that no page needs torch, Prefect or MLflow to be checked.

    RECORD=1 pytest tests/test_architecture.py -k every_file    write the list of all files anew
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
PAGES = [DOCS / "architecture.md", *DECISIONS]
DOTTED = re.compile(r"(?<![\w./-])(?:rft|tasks|flows)(?:\.\w+)+")
PLACE = re.compile(r"(?<![\w./-])(?!recipes/mine\b)(?:rft|tasks|flows|bench|tests|recipes|infra|docs)/[\w./-]*[\w/]")
"""`recipes/mine` stands for the reader's own."""
EVERY_FILE = "## Every file, in its first words\n"
SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z`])")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


def named(page: Path) -> list[str]:
    return DOTTED.findall(page.read_text(encoding="utf-8"))


def unknown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not _exists(name.split("."))]


def _exists(parts: list[str]) -> bool:
    """The longest part of the name that is a module, then classes and what they hold."""
    for length in range(len(parts), 0, -1):
        if (module := _module(*parts[:length])) is not None:
            return _holds(module, parts[length:])
    return False


@cache
def _module(*parts: str) -> ast.Module | None:
    for path in (ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _holds(where: ast.AST, names: list[str]) -> bool:
    if not names:
        return True
    found = next((node for name, node in _definitions(where) if name == names[0]), None)
    return found is not None and _holds(found, names[1:])


def _definitions(where: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    body = where.body if isinstance(where, ast.Module | ast.ClassDef) else []
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, target) for target in targets if isinstance(target, ast.Name))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_function_that_a_page_names_exists(page: Path) -> None:
    assert named(page), "a page on the code names where in the code"
    assert unknown(named(page)) == []


def test_a_function_that_does_not_exist_is_found() -> None:
    there = ["rft.errors", "rft.errors.UserError", "rft.trainer.loop.Trainer.fit", "rft.trainer"]
    gone = ["rft.nothing", "rft.errors.Nothing", "rft.trainer.loop.Trainer.nothing", "rft.errors.did_you_mean.inner"]
    assert unknown(there + gone) == gone


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_place_and_link_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [place for place in PLACE.findall(text) if not (ROOT / place).exists()] == []
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_the_rooms_are_those_whose_order_is_checked() -> None:
    rows = re.findall(r"^\| (`rft/.*?) \|", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (rooms,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one.get("containers") == ["rft"])
    layers = [{*layer.split(" | ")} - {"__main__"} for layer in rooms["layers"]]
    assert [{*re.findall(r"`rft/(\w+)", row)} for row in rows] == layers


def test_every_decision_is_listed_and_says_what_it_must() -> None:
    contents = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DECISIONS:
        assert f"](decisions/{page.name})" in contents, page.name
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["The question", "The decision", "Why", "What it costs", "Where in the code"], page.name


def every_file() -> str:
    """List the files of the three layers, each with the first sentence of its docstring."""
    paths = [path.relative_to(ROOT) for top in ("rft", "tasks", "flows") for path in sorted((ROOT / top).rglob("*.py"))]
    told = [(path, ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or "") for path in paths]
    first = ((path, SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0]) for path, text in told)
    return "".join(f"- `{path}`: {sentence}\n" for path, sentence in first)


def test_every_file_is_listed_in_its_first_words() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert text.count(EVERY_FILE) == 1
    whole = f"{text.split(EVERY_FILE)[0]}{EVERY_FILE}{every_file()}"
    if os.environ.get("RECORD"):
        PAGES[0].write_text(whole, encoding="utf-8")
    assert whole == text or os.environ.get("RECORD"), "RECORD=1 writes it anew"
