"""What a profile counts, what it leaves out (text, what was not logged), and that its bins hold
every value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripted_windows as windows
import tiny_recipe
from hypothesis import given
from hypothesis import strategies as st

from rft import recipe
from rft.config import Recipe as Section
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Conversation, Profile
from rft.windows import profile
from rft.windows.profile import Column


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe.load(Section(path=str(tiny_recipe.make(tmp_path_factory.mktemp("profile")))))


def made(count: int = 40, **changes: Any) -> list[Conversation]:
    return [Conversation.model_validate(row) for row in windows.rows(count, **changes)]


def test_every_feature_counts_every_conversation(tiny: Recipe) -> None:
    found = profile.of_conversations(made(40, calls=2, tool_errors=1), tiny, "a window").features
    assert {name: feature.group for name, feature in found.items()} == {
        "input_words": "input", "vocabulary": "input", "phrasing": "input", "manners": "input", "tool_mix": "agent",
        "num_tool_calls": "agent", "num_turns": "agent", "tool_errors": "agent", "latency_s": "agent",
        "corrected": "performance",
    }  # fmt: skip
    assert all(feature.n == 40 and feature.nulls == 0 for feature in found.values())
    assert found["input_words"].mean == 4  # value, of, k, 0
    assert sum(found["vocabulary"].counts) == 4 * 40
    assert dict(zip(found["manners"].values, found["manners"].counts, strict=True)) == {"plain": 40, profile.OTHER: 0}
    assert dict(zip(found["tool_mix"].values, found["tool_mix"].counts, strict=True)) == {
        "lookup": 80,
        profile.OTHER: 0,
    }
    assert found["num_tool_calls"].mean == 2
    assert found["num_turns"].mean == 3
    assert found["tool_errors"].counts == [0, 40, 0, 0]
    assert found["corrected"].counts == [40, 0]


def test_what_was_not_logged_is_null_not_zero(tiny: Recipe) -> None:
    found = profile.of_conversations(
        made(10, latency_s=None, tool_errors=None, feedback=None), tiny, "a window"
    ).features
    for name in ("latency_s", "tool_errors", "corrected"):
        assert (found[name].n, found[name].nulls, sum(found[name].counts)) == (0, 10, 0)
    assert found["latency_s"].mean is None


def test_examples_have_inputs_only(tiny: Recipe) -> None:
    found = profile.of_examples(tiny.examples("train", 20, 0), tiny, "examples")
    assert {feature.group for feature in found.features.values()} == {"input"}
    assert found.num_conversations == 20


def test_a_profile_survives_its_file_and_holds_no_text(tiny: Recipe) -> None:
    found = profile.of_conversations(made(note="value of {key} for Zacharias"), tiny, "a window")
    text = found.model_dump_json()
    assert Profile.model_validate_json(text) == found
    assert "zacharias" not in text.lower()


def test_a_recipe_may_not_take_our_names(tmp_path: Path) -> None:
    folder = tiny_recipe.make(tmp_path, "greedy")
    (folder / "examples.py").write_text((folder / "examples.py").read_text().replace('{"manners":', '{"tool_mix":'))
    with pytest.raises(UserError, match=r"features\(\) names a feature 'tool_mix'"):
        profile.of_conversations(made(), recipe.load(Section(path=str(folder))), "a window")


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
    assert profile.was_corrected(Conversation.model_validate(row)) is corrected


def test_words_fold_case_and_numbers() -> None:
    assert profile.words("Seen in 2019: Crohn's, BMI-31 Ödem") == ["seen", "in", "0", "crohn", "s", "bmi", "0", "ödem"]


def test_inputs_end_where_the_agent_begins() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert profile.input_messages(messages) == messages[:2]
    assert profile.user_text(profile.input_messages(messages)) == "a"


def test_the_sample_depends_on_ids_not_on_order() -> None:
    ids = [f"c-{n}" for n in range(1000)]
    chosen = {ids[n] for n in profile.sampled(ids)}
    backwards = ids[::-1]
    assert len(chosen) == profile.SAMPLE
    assert {backwards[n] for n in profile.sampled(backwards)} == chosen


def test_rare_values_join_the_rest() -> None:
    rows = [[f"v{n:03d}"] * (2 if n < 5 else 1) for n in range(profile.MAX_VALUES + 20)]
    found = profile.feature(Column("category", "input", "total_variation", rows), [str(n) for n in range(len(rows))])
    assert len(found.values) == profile.MAX_VALUES + 1
    assert (found.values[-1], found.counts[-1]) == (profile.OTHER, 20)
    assert sum(found.counts) == profile.MAX_VALUES + 20 + 5


@given(st.lists(st.one_of(st.none(), st.floats(-10, 1e6)), max_size=30))
def test_every_number_falls_into_one_bin(numbers: list[float | None]) -> None:
    found = profile.feature(
        Column("numeric", "agent", "psi", numbers, (0.5, 1.5, 100.0)), [str(n) for n in range(len(numbers))]
    )
    assert sum(found.counts) == found.n == sum(number is not None for number in numbers)
    assert len(found.counts) == len(found.edges) + 1


def test_pairs_of_words_tell_order() -> None:
    straight, turned = profile.text_matrix(["1 2 3", "3 2 1"]).toarray()
    assert straight[:4].tolist() == turned[:4].tolist()
    assert not np.array_equal(straight, turned)
