"""README.md says what is: its commands exist, its places exist, and the recipe that it shows whole
is the one that `rft new` writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
TEMPLATE = ROOT / "flows" / "template"
SHOWN = re.compile(r"(^\*\*(?P<name>[\w.]+)\*\*:[^\n]*\n\n```\w+\n)(?P<body>.*?)(^```$)", re.MULTILINE | re.DOTALL)
WHOLE = ["examples.py", "tools.py", "grader.json", "exploits.jsonl", "demonstrations.py", "params.yaml"]


def test_the_recipe_is_shown_whole() -> None:
    """With RECORD=1 the files are copied anew."""
    text = README.read_text(encoding="utf-8")
    assert [found["name"] for found in SHOWN.finditer(text)] == WHOLE
    wanted = SHOWN.sub(lambda found: found[1] + (TEMPLATE / found["name"]).read_text(encoding="utf-8") + found[4], text)
    if os.environ.get("RECORD") == "1":
        README.write_text(wanted, encoding="utf-8")
    assert README.read_text(encoding="utf-8") == wanted, (
        "README.md shows other files than flows/template holds: RECORD=1 copies them"
    )


def commands(word: str) -> set[str]:
    """The first words after `make` or `rft` wherever the README types a command."""
    return set(
        re.findall(rf"(?:^    |`){word} (?:--agent \w+ )?([a-z-]+)", README.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= commands("make") <= targets


def test_each_verb_exists() -> None:
    from flows.cli import parser

    named = commands("rft")
    assert {"run", "approve", "new"} <= named
    for verb in sorted(named):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([verb, "--help"])
        assert ended.value.code == 0, verb


def test_each_place_exists() -> None:
    table = README.read_text(encoding="utf-8").split("## Where things are")[1]
    places = [
        place for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for place in re.findall(r"`([^`]+)`", row)
    ]
    assert len(places) > 8
    assert [place for place in places if place != ".rft/" and not (ROOT / place).exists()] == []


def test_n18_each_picture_is_there_and_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    assert {"docs/pictures/rollouts.png", "docs/pictures/prefect.png", "docs/pictures/mlflow.png"} <= {*pictures}
    assert [name for name in pictures if (ROOT / name).stat().st_size > 150_000] == []


def test_n18_each_link_leads_somewhere_and_the_words_are_explained() -> None:
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\[[^\]]+\]\(([^)#]+)\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []
    glossary = text.split("### The words")[1].split("## ")[0]
    for word in ("recipe", "slice", "score, solved", "reward", "champion, challenger", "arm", "window", "hack"):
        assert f"| {word} |" in glossary
    assert "begin with a space" in text
