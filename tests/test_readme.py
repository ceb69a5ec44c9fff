"""README.md and docs/ say what is: their commands exist, their links lead somewhere, and the agent
that is shown whole is the one that `rft new` writes."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from rft.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
README, TEMPLATE = ROOT / "README.md", ROOT / "flows" / "template"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("recipes/*/README.md")),
]
SHOWN = re.compile(r"(^\*\*(?P<name>[\w.]+)\*\*:[^\n]*\n\n```\w+\n)(?P<body>.*?)(^```$)", re.MULTILINE | re.DOTALL)
WHOLE = ["examples.py", "tools.py", "grader.json", "exploits.jsonl", "demonstrations.py", "params.yaml"]
TYPED = re.compile(r"^(?:    )?(?:\$ )?((?:\S*/)?rft (?:.*\\\n)*.*)$|`(rft [^`\n]+)`", re.MULTILINE)
"""A command in a block of code, with the lines that it goes on for, or in the text."""


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_agent_is_shown_whole() -> None:
    """With RECORD=1 the files are copied anew."""
    page = ROOT / "docs" / "first_agent.md"
    assert [found["name"] for found in SHOWN.finditer(text(page))] == WHOLE
    wanted = SHOWN.sub(lambda found: found[1] + text(TEMPLATE / found["name"]) + found[4], text(page))
    if os.environ.get("RECORD") == "1":
        page.write_text(wanted, encoding="utf-8")
    assert text(page) == wanted, "docs/first_agent.md shows other files than flows/template holds: RECORD=1 copies them"


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^    |`)make ([a-z-]+)", text(page), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


# -- commands --------------------------------------------------------------------------------------
def commands(page: Path) -> Iterator[tuple[list[str], bool]]:
    """The words of each `rft` command on a page, without its comment, and whether it is to be typed
    as it stands."""
    for block, inline in TYPED.findall(text(page)):
        line = re.split(r"\s{2,}(?![-\[])|\s+#|\s+&&|\s+\|", (block or inline).replace("\\\n", " "))[0]
        with contextlib.suppress(ValueError):  # the beginning of a sentence, with an apostrophe
            yield shlex.split(line)[1:], bool(block)


@cache
def parser() -> argparse.ArgumentParser:
    from flows.cli import parsing

    return parsing.parser()


def refused(words: list[str]) -> str:
    """What the command line says to a command, before it does anything; empty if it is accepted."""
    from flows.cli import parsing, table

    given = [word for word in parsing.without_place(words) if word != "VERB"]
    if given and given[0] in table.COMING:
        return ""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        try:
            parser().parse_args(table.understood(given))
        except SystemExit as end:
            return said.getvalue() if end.code else ""
        except UserError as error:
            return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_is_one(page: Path) -> None:
    """With all its options. In a sentence a command may lack what it needs."""
    wrong: list[str] = []
    for words, is_whole in commands(page):
        said = refused([re.sub(r"^(ENTRY|N)$", "3", word) for word in words])
        if said and (is_whole or not re.search("are required|expected one argument|needs a verb", said)):
            wrong.append(f"rft {shlex.join(words)}: {said.splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)


def test_each_verb_is_run_by_a_test() -> None:
    """The demo is, by .ci/run."""
    from flows.cli import table

    tests = "".join(text(path) for path in (ROOT / "tests").rglob("*.py"))
    forms = {path: ['"' + '", "'.join(path.split()) + '"'] for path in table.PATHS}
    for word, verb in table.ALONE.items():
        forms[f"{word} {verb}"].append(f'"{word}", "--')
    assert [path for path, ways in forms.items() if path != "demo" and not any(way in tests for way in ways)] == []


# -- what a page refers to -------------------------------------------------------------------------
def test_each_place_exists() -> None:
    table = text(README).split("## Where things are")[1]
    places = [
        place for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for place in re.findall(r"`([^`]+)`", row)
    ]
    assert len(places) > 8
    assert [place for place in places if place != ".rft/" and not (ROOT / place).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_somewhere_and_pictures_are_small(page: Path) -> None:
    links = re.findall(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)", text(page))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text(page))
    assert [name for name in pictures if (page.parent / name).stat().st_size > 150_000] == []


def test_each_page_is_listed() -> None:
    listed = text(ROOT / "docs" / "README.md")
    assert [
        path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md" and f"({path.name})" not in listed
    ] == []


def test_the_words_are_explained() -> None:
    glossary = text(ROOT / "docs" / "words.md")
    for word in ("recipe", "slice", "score, solved", "reward", "champion, challenger", "arm", "window", "hack"):
        assert f"| {word} |" in glossary
    assert "begin with a space" in text(ROOT / "docs" / "first_agent.md")
