"""What a profile counts, what it leaves out (text, what was not logged), and what its words are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows
import tiny_recipe

from rft import recipe
from rft.config import Recipe as Section
from rft.drift import profile
from rft.drift.features import Plan, plan_of
from rft.drift.labels import OTHER
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Profile
from rft.tools import signatures
from rft.traffic import columns
from rft.traffic.texts import input_messages, user_text, words


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe.load(Section(path=str(tiny_recipe.make(tmp_path_factory.mktemp("profile")))))


def plan(loaded: Recipe) -> Plan:
    return plan_of(tiny_recipe.params(loaded.folder), loaded, signatures.schemas(loaded))


def made(loaded: Recipe, count: int = 40, **changes: Any) -> Profile:
    return profile.of_table(columns.of_rows(windows.rows(count, **changes)), plan(loaded), "a window")


def test_every_feature_counts_every_conversation(tiny: Recipe) -> None:
    found = made(tiny, calls=2, tool_errors=1).features
    assert {name: feature.group for name, feature in found.items()} == {
        "input_words": "input", "vocabulary": "input", "phrasing": "input", "manners": "input", "tool_mix": "agent",
        "num_tool_calls": "agent", "num_turns": "agent", "tool_errors": "agent", "latency_s": "agent",
        "argument_shapes": "agent", "argument_errors": "agent", "reply_shapes": "agent", "system_prompt": "agent",
        "tool_schemas": "agent", "refused": "performance", "graded": "performance", "corrected": "performance",
    }  # fmt: skip
    not_logged = {"system_prompt", "tool_schemas"}
    assert {name for name, feature in found.items() if feature.n != 40} == not_logged
    assert found["input_words"].mean == 4  # value, of, k, 0
    assert sum(found["vocabulary"].counts) == 4 * 40
    assert dict(zip(found["manners"].values, found["manners"].counts, strict=True)) == {"plain": 40, OTHER: 0}
    assert dict(zip(found["tool_mix"].values, found["tool_mix"].counts, strict=True)) == {"lookup": 80, OTHER: 0}
    assert found["num_tool_calls"].mean == 2
    assert found["num_turns"].mean == 3
    assert found["tool_errors"].counts == [0, 40, 0, 0]
    assert found["corrected"].counts == [40, 0]


def test_what_was_not_logged_is_null_not_zero(tiny: Recipe) -> None:
    found = made(tiny, 10, latency_s=None, tool_errors=None, feedback=None).features
    for name in ("latency_s", "tool_errors", "corrected"):
        assert (found[name].n, found[name].nulls, sum(found[name].counts)) == (0, 10, 0)
    assert found["latency_s"].mean is None


def test_examples_have_inputs_only(tiny: Recipe) -> None:
    found = profile.of_examples(tiny.examples("train", 20, 0), plan(tiny), "examples")
    assert {feature.group for feature in found.features.values()} == {"input"}
    assert found.num_conversations == 20


def test_a_profile_survives_its_file_and_holds_no_text(tiny: Recipe) -> None:
    found = made(tiny, note="value of {key} for Zacharias")
    text = found.model_dump_json()
    assert Profile.model_validate_json(text) == found
    assert "zacharias" not in text.lower()


def test_a_recipe_may_not_take_our_names(tmp_path: Path) -> None:
    folder = tiny_recipe.make(tmp_path, "greedy")
    (folder / "examples.py").write_text((folder / "examples.py").read_text().replace('{"manners":', '{"tool_mix":'))
    with pytest.raises(UserError, match=r"features\(\) names a feature 'tool_mix'"):
        made(recipe.load(Section(path=str(folder))))


@pytest.mark.parametrize(
    ("answer", "feedback", "corrected"),
    [
        ('{"codes": ["I10", "E11.9"]}', ["E11.9", "I10"], False),
        ('{"codes": ["I10"]}', {"codes": ["I10"]}, False),
        ('{"codes": ["I10"]}', ["I10", "E11.9"], True),
        ("Paris", " Paris ", False),
        ("Paris", "Rome", True),
        ("0042", "0042", False),
        ("42", 42, False),
        ("I do not know", ["I10"], True),
        (None, ["I10"], True),
    ],
)
def test_feedback_corrects_when_it_says_something_else(answer: str | None, feedback: Any, corrected: bool) -> None:
    row = windows.conversation(1, feedback=feedback)
    row["messages"][-1]["content"] = answer
    (grade,) = columns.of_rows([row])["grade"].to_pylist()
    assert grade == ("corrected" if corrected else "as answered")


def test_words_fold_case_and_numbers() -> None:
    assert words("Seen in 2019: Crohn's, BMI-31 Ödem") == ["seen", "in", "0", "crohn", "s", "bmi", "0", "ödem"]


def test_inputs_end_where_the_agent_begins() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert input_messages(messages) == messages[:2]
    assert user_text(input_messages(messages)) == "a"
