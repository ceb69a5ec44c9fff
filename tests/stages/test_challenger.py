"""Stage challenger: three arms on one frozen set, and what people are shown beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import config, reports, shelves
from rft.errors import ConfigError
from rft.rollouts import log as rollout_log
from tests import ladder as real
from tests import tiny_recipe


def test_the_three_arms_share_examples(ladder: Path):
    report = reports.read(reports.ChallengerReport, ladder / "data/challenger/report.json")
    assert [arm.name for arm in report.arms] == ["champion", "champion_new_prompt", "challenger"]
    assert len({arm.sampled.examples_sha256 for arm in report.arms}) == 1
    assert report.arms[0].weights_sha256 == report.arms[1].weights_sha256 != report.arms[2].weights_sha256


def test_people_are_shown_validation_examples_and_the_test_arms_do_not_notice(
    ladder: Path, ladder_recipe: Path, tmp_path: Path
):
    shown = reports.read(reports.Shown, ladder / shelves.path(reports.Shown))
    rows = rollout_log.read(ladder / shelves.SHOWN)
    with real.inside(ladder):
        first = [example.id for example in shelves.load_examples("validation")]
    assert shown.examples == len(first) == 12, "all, because there are fewer than the default"
    assert {name: [row.example_id for row in arm] for name, arm in shown.arms.items()} == dict.fromkeys(
        ("champion", "champion_new_prompt", "challenger"), first
    )
    assert [(row.arm, row.example_id) for row in rows] == [(name, id) for name in shown.arms for id in first]
    assert {(row.stage, row.split) for row in rows} == {("challenger", "validation")}
    assert [row.reward for row in rows] == [row.rewards[0] for arm in shown.arms.values() for row in arm]

    none = real.again(ladder, tmp_path, ladder_recipe, "challenger", challenger={"shown": 0})
    for name in ("report.json", "rollouts.parquet"):
        assert (none / "data/challenger" / name).read_bytes() == (ladder / "data/challenger" / name).read_bytes()
    assert reports.read(reports.Shown, none / shelves.path(reports.Shown)).examples == 0
    assert rollout_log.read(none / shelves.SHOWN) == []


def test_more_examples_than_there_are_cannot_be_shown(ladder_recipe: Path):
    with pytest.raises(ConfigError, match=r"challenger\.shown = 13 and examples\.validation = 12"):
        real.params(ladder_recipe, challenger={"shown": 13})
    assert real.params(ladder_recipe).challenger.shown == 12
    assert tiny_recipe.params(ladder_recipe, examples={"validation": 40}).challenger.shown == 24
    assert config.Challenger().shown == 24
