"""The doctor plays the refresh: from_traffic on the window's graded conversations, apart from what
is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rft.doctor import Finding
from rft.recipe import load
from tests import tiny_recipe
from tests.sick_agents import examine, settings


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tiny_recipe.make(tmp_path)


def window(recipe: Path, split: str = "train", count: int = 60) -> Path:
    """Graded conversations about the recipe's own examples of a split."""
    file = recipe.parent / "window.jsonl"
    found = load(settings(recipe).recipe).examples(split, count, 9)  # type: ignore[arg-type]
    rows = (
        {
            "conversation_id": f"c-{number}",
            "time": f"2026-03-02T00:{number // 60:02d}:{number % 60:02d}Z",
            "messages": [*row.messages, {"role": "assistant", "content": "0000"}],
            "feedback": row.target,
        }
        for number, row in enumerate(found)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def checked(recipe: Path, file: Path, **changes: Any) -> Finding:
    return examine(settings(recipe, traffic={"file": str(file)}, **changes), "refresh")["refresh"]


def test_what_can_become_examples_is_counted(recipe: Path) -> None:
    found = checked(recipe, window(recipe))
    assert (found.status, found.words) == (
        "ok",
        "60 of the window's 60 graded conversations can become training examples",
    )


def test_with_keys_of_the_users_own(recipe: Path) -> None:
    """N6: it broke in a scheduled run, and only there."""
    keys = {"keys": {"id": "ticket", "target": "value"}}
    assert checked(recipe, window(recipe), examples=keys).status == "ok"


@pytest.mark.slow
def test_conversations_about_what_is_measured(recipe: Path) -> None:
    found = checked(recipe, window(recipe, "validation", 2000))
    assert found.status == "fail"
    assert "a refresh would end: the splits leak into each other: " in found.words
    assert "Let from_traffic in the recipe's examples.py return None" in found.remedy


def test_from_traffic_that_raises(recipe: Path) -> None:
    examples = recipe / "examples.py"
    before, after = "    if conversation.feedback is None:", "    conversation.nothing\n    if False:"
    examples.write_text(examples.read_text().replace(before, after))
    found = checked(recipe, window(recipe))
    assert found.status == "fail"
    assert "from_traffic of conversation 'c-0' raised AttributeError: " in found.words


def test_without_a_window(recipe: Path) -> None:
    assert checked(recipe, recipe.parent / "none.jsonl").words.startswith("not tried: ")


def test_without_from_traffic(recipe: Path) -> None:
    examples = recipe / "examples.py"
    examples.write_text(examples.read_text().replace("def from_traffic(", "def another("))
    assert checked(recipe, window(recipe)).words.startswith("not possible: the recipe has no from_traffic")
