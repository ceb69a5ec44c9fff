"""What the doctor says of learning rates, groups and warm starts that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rft.errors import ConfigError
from tests import tiny_recipe
from tests.sick_agents import examine, settings


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("doctor"))


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"train": {"lr": 1}}, "fail", "train.lr = 1 is 500 times what suits a policy of this width (0.002)"),
        ({"train": {"lr": 0.02}}, "warn", "train.lr = 0.02 is 10 times what suits"),
        (
            {"train": {"lr": 1e-5}},
            "warn",
            "in 4 steps no weight moves by more than 4e-05, so hardly anything",
        ),
        ({"train": {"lr": 1e-9}}, "fail", "so nothing will be learned"),
        ({"policy": {"warm_start": {"lr": 1}}}, "fail", "policy.warm_start.lr = 1 is 500 times what suits"),
    ],
)
def test_a_rate_far_from_what_suits_is_told_before_compute(
    recipe: Path, changes: dict[str, Any], status: str, message: str
):
    found = examine(settings(recipe, **changes), "configuration")["configuration"]
    assert (found.status, message in found.words) == (status, True), found.words
    assert "near 0.002." in found.remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"lr": 0}}, "'train.lr' = 0: Input should be greater than 0. Without a learning rate no weight"),
        ({"train": {"group_size": 1}}, "'train.group_size' = 1: .* a group of one can never differ"),
        ({"policy": {"warm_start": {"steps": 0}}}, "'policy.warm_start.steps' = 0: .* every score would be 0"),
    ],
)
def test_settings_that_cannot_be_say_what_they_would_do(recipe: Path, changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(recipe, **changes)
