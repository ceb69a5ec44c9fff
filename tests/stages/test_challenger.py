"""Stage challenger: three arms on one frozen set, each as it is served, and what is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rft import config, reports, stage_files
from rft.errors import ConfigError
from rft.gate import evidence
from rft.reports import Arm
from rft.rollouts import log as rollout_log
from rft.rollouts.serving import NOT_SERVED
from tests import ladder as stages
from tests import tiny_recipe

pytestmark = pytest.mark.usefixtures("ready_server")

SERVE = {"method": "majority", "k": 5, "over": "output_text"}
NOISY = {"temperature": 1.35, "k": 4}


def arms(folder: Path) -> dict[str, Arm]:
    report = reports.read(reports.ChallengerReport, folder / "data/challenger/report.json")
    return {arm.name: arm for arm in report.arms}


def reward(arm: Arm) -> float:
    return arm.sampled.metrics["reward/mean"].value


def test_the_three_arms_share_examples(ladder: Path):
    report = reports.read(reports.ChallengerReport, ladder / "data/challenger/report.json")
    assert [arm.name for arm in report.arms] == ["champion", "champion_new_prompt", "challenger"]
    assert len({arm.sampled.examples_sha256 for arm in report.arms}) == 1
    assert report.arms[0].weights_sha256 == report.arms[1].weights_sha256 != report.arms[2].weights_sha256


@pytest.mark.slow
def test_people_are_shown_validation_examples_and_the_test_arms_do_not_notice(
    ladder: Path, ladder_recipe: Path, tmp_path: Path
):
    shown = reports.read(reports.Shown, ladder / stage_files.path(reports.Shown))
    rows = rollout_log.read(ladder / stage_files.SHOWN_ROLLOUTS)
    with stages.inside(ladder):
        first = [example.id for example in stage_files.load_examples("validation")]
    assert shown.examples == len(first) == 12, "all, because there are fewer than the default"
    assert {name: [row.example_id for row in arm] for name, arm in shown.arms.items()} == dict.fromkeys(
        ("champion", "champion_new_prompt", "challenger"), first
    )
    assert [(row.arm, row.example_id) for row in rows] == [(name, id) for name in shown.arms for id in first]
    assert {(row.stage, row.split) for row in rows} == {("challenger", "validation")}
    assert [row.reward for row in rows] == [row.rewards[0] for arm in shown.arms.values() for row in arm]

    none = stages.again(ladder, tmp_path, ladder_recipe, "challenger", challenger={"shown": 0})
    for name in ("report.json", "rollouts.parquet"):
        assert (none / "data/challenger" / name).read_bytes() == (ladder / "data/challenger" / name).read_bytes()
    assert reports.read(reports.Shown, none / stage_files.path(reports.Shown)).examples == 0
    assert rollout_log.read(none / stage_files.SHOWN_ROLLOUTS) == []


def test_more_examples_than_there_are_cannot_be_shown(ladder_recipe: Path):
    with pytest.raises(ConfigError, match=r"challenger\.shown = 13 and examples\.validation = 12"):
        stages.params(ladder_recipe, challenger={"shown": 13})
    assert stages.params(ladder_recipe).challenger.shown == 12
    assert tiny_recipe.params(ladder_recipe, examples={"validation": 40}).challenger.shown == 24
    assert config.Challenger().shown == 24


# -- as it is served -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def single(ladder: Path, ladder_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policies that are right in half of their rollouts, and wrong in many ways."""
    return stages.again(ladder, tmp_path_factory.mktemp("single"), ladder_recipe, "challenger", challenger=NOISY)


@pytest.fixture(scope="module")
def served(ladder: Path, ladder_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, its candidates served by majority."""
    return stages.again(
        ladder,
        tmp_path_factory.mktemp("served"),
        ladder_recipe,
        "challenger",
        challenger=NOISY,
        policy={"serve": SERVE},
    )


@pytest.mark.slow
def test_the_majority_of_five_beats_a_single_rollout_on_the_same_seed(single: Path, served: Path):
    before, after = arms(single), arms(served)
    for name in ("champion_new_prompt", "challenger"):
        assert reward(after[name]) > reward(before[name]), "of 32 rollouts each: an order"
        assert reward(after[name]) >= after[name].unserved["reward/mean"].value + 0.1
        assert after[name].sampled.k == 4
        assert after[name].unserved["reward/mean"].n == 8
        assert "8 examples x 4 answers, each the majority of 5 rollouts over output_text" in evidence.size(after[name])
    assert after["champion"] == before["champion"], "which is served by single rollouts, as it was"
    assert after["challenger"].greedy == before["challenger"].greedy, "greedy decoding has one rollout"


def test_costs_are_those_of_all_rollouts_and_the_log_says_which_was_served(served: Path):
    rows = [
        row
        for row in rollout_log.read(served / "data/challenger/rollouts.parquet")
        if row.temperature and row.arm == "challenger"
    ]
    arm = arms(served)["challenger"]
    assert len(rows) == 8 * 4 * 5
    assert sum(row.left_out == NOT_SERVED for row in rows) == 8 * 4 * 4
    for example in arm.sampled.rows:
        own = sorted((row for row in rows if row.example_id == example.example_id), key=lambda row: row.sample)
        assert [row.reward for row in own if not row.left_out] == example.rewards
        for n in range(4):
            group = own[5 * n : 5 * n + 5]
            assert len([row for row in group if not row.left_out]) == 1
            assert example.tokens[n] == sum(row.num_tokens for row in group)
            assert example.turns[n] == sum(row.num_turns for row in group)
            assert example.context_tokens[n] == sum(row.num_context_tokens or 0 for row in group)
    tallied = next(one for one in rollout_log.tally(rows) if one.arm == "challenger")
    assert (tallied.sampled, tallied.compared) == (160, 32)
    timing = json.loads((served / "data/challenger/timing.json").read_text())["rollout_s"]
    assert timing["challenger/challenger/sampled"]["n"] == 32


@pytest.mark.slow
def test_the_champion_is_measured_as_it_was_promoted_to_be_served(
    ladder: Path, ladder_recipe: Path, tmp_path: Path, served: Path
):
    """Against candidates that are served by single rollouts."""
    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/challenger")
    (tmp_path / "data/champion").mkdir()
    champion: dict[str, Any] = {"serve": SERVE}
    (tmp_path / "data/champion/champion.json").write_text(json.dumps(champion))
    with stages.inside(tmp_path):
        stages.run("challenger", stages.params(ladder_recipe, challenger=NOISY))
    found = arms(tmp_path)
    assert found["champion"].serve.k == 5
    assert found["challenger"].serve.is_single
    assert not found["challenger"].unserved
    assert found["champion"].sampled.metrics == arms(served)["champion_new_prompt"].sampled.metrics


def test_with_single_rollouts_nothing_of_it_is_in_the_report(single: Path):
    written = json.loads((single / "data/challenger/report.json").read_text())
    assert set(written["arms"][0]) == {"name", "prompt_sha256", "weights_sha256", "sampled", "greedy"}
    rows = rollout_log.read(single / "data/challenger/rollouts.parquet")
    assert {row.left_out for row in rows} == {""}
