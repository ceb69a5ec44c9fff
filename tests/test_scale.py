"""A grader's own scale: what grader.json may declare, and what each part of it is refused for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe

from rft import recipe
from rft.errors import ConfigError
from rft.scale import UNIT, Scale, from_to, of_range


def declared(folder: Path, **keys: Any) -> recipe.Grader:
    """The grader of a recipe whose grader.json declares `keys`, read as a stage reads it."""
    made = tiny_recipe.make(folder)
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER | keys))
    return recipe.load(tiny_recipe.params(made).recipe).grader


def test_without_a_word_it_is_0_to_1(tmp_path: Path):
    grader = declared(tmp_path)
    assert grader.scale == UNIT == Scale(0.0, 1.0, 1.0, 0.0)
    assert grader.scale.exploit_limit == 0.05
    assert not grader.declares_range


@pytest.mark.parametrize(
    ("keys", "scale", "limit"),
    [
        ({"range": [0, 5]}, Scale(0, 5, 5, 0), 0.25),
        ({"range": [0, 5], "pass_threshold": 4}, Scale(0, 5, 4, 0), 0.25),
        ({"range": [-2, 2]}, Scale(-2, 2, 2, -2), -1.8),
        ({"range": [1, 5], "pass_threshold": 4, "chance": 2}, Scale(1, 5, 4, 2), 2.2),
        ({"pass_threshold": 0.5, "chance": 0.25}, Scale(0, 1, 0.5, 0.25), 0.3),
        ({"range": [0, 1]}, UNIT, 0.05),
    ],
)
def test_what_is_declared_holds(tmp_path: Path, keys: dict[str, Any], scale: Scale, limit: float):
    grader = declared(tmp_path, **keys)
    assert grader.scale == scale
    assert grader.scale.exploit_limit == pytest.approx(limit)
    assert grader.declares_range == ("range" in keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"range": [5, 0]}, "'range': [5, 0]: low must be below high. Write [low, high]"),
        ({"range": [1, 1]}, "'range': [1, 1]: low must be below high"),
        ({"range": [0]}, "'range': [0] is not a range: write two finite numbers"),
        ({"range": [0, 1, 2]}, "'range': [0, 1, 2] is not a range"),
        ({"range": [0, float("inf")]}, "'range': [0, inf] is not a range"),
        ({"range": [float("nan"), 1]}, "'range': [nan, 1] is not a range"),
        ({"range": ["0", "1"]}, "'range': ['0', '1'] is not a range"),
        ({"range": [False, True]}, "'range': [False, True] is not a range"),
        ({"range": 5}, "'range' = 5: 5 is not a range"),
        (
            {"pass_threshold": 4},
            "'pass_threshold' = 4: is outside range, 0 to 1. Lower it, or declare the grader's range",
        ),
        ({"pass_threshold": float("nan")}, "'pass_threshold' = nan: is outside range, 0 to 1"),
        ({"range": [1, 5], "pass_threshold": 0.5}, "'pass_threshold' = 0.5: is outside range, 1 to 5"),
        ({"range": [1, 5], "pass_threshold": 1}, "'pass_threshold' = 1: is too close to the lowest score, 1"),
        ({"pass_threshold": "0.5"}, "'pass_threshold' = '0.5': Input should be a valid number"),
        ({"range": [0, 5], "chance": 6}, "'chance' = 6: is outside range, 0 to 5"),
        ({"chance": -0.1}, "'chance' = -0.1: is outside range, 0 to 1"),
        ({"range": [0, 5], "pass_threshold": 3, "chance": 3}, "'chance' = 3: must be below pass_threshold, 3"),
        ({"chance": 1}, "'chance' = 1: must be below pass_threshold, 1"),
        ({"chance": 0.97}, "'chance' = 0.97: is too close to pass_threshold, 1"),
    ],
)
def test_what_makes_no_scale_is_refused_by_file_key_and_value(tmp_path: Path, keys: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as refused:
        declared(tmp_path, **keys)
    assert "grader.json: " in str(refused.value)
    assert says in str(refused.value)


def test_a_share_of_the_range():
    assert [Scale(-2, 2, 2, -2).share(score) for score in (-2, -1, 2)] == [0, 0.25, 1]
    assert [UNIT.share(score) for score in (0.1, 0.3, 0.7)] == [0.1, 0.3, 0.7]


def test_in_words_0_to_1_needs_none():
    assert of_range((0.0, 1.0)) == ""
    assert of_range((0, 5)) == " of 0 to 5"
    assert from_to((-2.0, 2.5)) == "-2 to 2.5"


def test_the_scale_loads_alone():
    code = "import sys, rft.scale; print([name for name in sys.modules if name in ('torch', 'pydantic', 'rft.recipe')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
