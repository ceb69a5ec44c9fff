"""Train reward beside test reward: overfitting is said where it is shown, and only there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rft import page, reports, stats
from rft.page.inputs import StageFiles
from rft.page.learned import Learned, learned
from rft.rollouts import log as rollout_log
from tests import sample_reports

RUN = {"run": "2026-04-06-brave-otter"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(sample_reports.stage_files("promote"), tmp_path, dirs_exist_ok=True)
    return tmp_path


def learned_from(root: Path) -> Learned:
    found = learned(StageFiles.read(root))
    assert found is not None
    return found


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    report = json.loads(path.read_text())
    edit(report)
    path.write_text(json.dumps(report))


def curve(root: Path, start: float, end: float, steps: int = 80, noise: float = 0.04, kept: int = 0) -> None:
    rng = np.random.default_rng(1)
    rewards = np.linspace(start, end, steps) + rng.normal(0, noise, steps)
    points = [[step + 1, float(reward)] for step, reward in enumerate(rewards)]
    change(root / "data/train/report.json", lambda train: train.update(curve=points, steps=steps, kept_step=kept))


def on_test(root: Path, gain: float) -> None:
    """Give the challenger the rewards of the new prompt, and this much more."""

    def edit(report: Any) -> None:
        _, prompted, trained = (arm["sampled"]["rows"] for arm in report["arms"])
        rng = np.random.default_rng(2)
        for before, after in zip(prompted, trained, strict=True):
            after["rewards"] = [reward + gain + float(rng.normal(0, 0.05)) for reward in before["rewards"]]

    change(root / "data/challenger/report.json", edit)


def validated(root: Path, *means: float) -> None:
    """Write train's log with one validation per mean, of 40 examples each."""
    template = pq.read_table(root / "data/baseline/rollouts.parquet").slice(0, 1).to_pylist()[0]
    known = rollout_log.LogRow.__dataclass_fields__
    rng, rows = np.random.default_rng(3), []
    for number, mean in enumerate(means, 1):
        for i in range(40):
            reward = mean + float(rng.normal(0, 0.05))
            own = {"stage": "train", "split": "validation", "step": 20 * number, "example_id": f"v-{i}", "sample": 0}
            fields = {name: value for name, value in template.items() if name in known}
            rows.append(rollout_log.LogRow(**fields | own | {"reward": reward, "rollout_id": f"{number:016}{i:016}"}))
    rollout_log.write(rows, root / "data/train/rollouts.parquet")


def test_a_rise_that_the_test_shows_too_is_no_sign_of_overfitting(root: Path) -> None:
    found = learned_from(root)
    assert found.verdict == "no sign of overfitting"
    report = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    arms = {arm.name: {row.example_id: row.rewards for row in arm.sampled.rows} for arm in report.arms}
    assert found.test is not None
    expected = stats.t_gain(arms["challenger"], arms["champion_new_prompt"])
    assert (found.test.by.value, found.test.by.low) == (pytest.approx(expected.value), pytest.approx(expected.low))
    text = page.render(root, RUN)
    assert found.description in text
    assert f"The champion earns {report.arms[0].sampled.metrics['reward/mean'].value:.3f} on the test." in text


def test_a_rise_of_which_little_arrives_on_the_test_is_overfitting(root: Path) -> None:
    curve(root, 0.3, 0.8)
    on_test(root, 0.05)
    found = learned_from(root)
    assert found.verdict == "overfitting"
    assert "less than half of it reached examples that were not trained on" in found.description
    assert f'<p class="bad"><b>! </b>{found.description}</p>' in page.render(root, RUN)


@pytest.mark.parametrize(
    ("end", "noise", "gain"),
    [
        (0.8, 0.04, 0.3),  # more than half arrives
        (0.35, 0.2, -0.02),  # the rise itself may be noise
        (0.2, 0.04, -0.1),  # it fell
    ],
)
def test_nothing_is_claimed_that_is_not_shown(root: Path, end: float, noise: float, gain: float) -> None:
    curve(root, 0.3, end, noise=noise)
    on_test(root, gain)
    assert learned_from(root).verdict == "no sign of overfitting"


def test_validation_that_falls_while_training_rises_is_overfitting(root: Path) -> None:
    curve(root, 0.3, 0.8)
    on_test(root, 0.45)
    assert learned_from(root).verdict == "no sign of overfitting"
    validated(root, 0.6, 0.62)
    assert learned_from(root).verdict == "no sign of overfitting"
    validated(root, 0.6, 0.7, 0.5)
    found = learned_from(root)
    assert found.verdict == "overfitting"
    assert re.search(r"rose by 0\.\d+ \[.*\] on the training examples, and fell by 0\.\d+ ", found.description)


def test_only_the_steps_up_to_the_kept_weights_count(root: Path) -> None:
    validated(root, 0.6, 0.7, 0.5)
    curve(root, 0.3, 0.8, kept=40)
    on_test(root, 0.3)
    found = learned_from(root)
    assert found.verdict == "no sign of overfitting"
    assert found.train is not None
    assert found.train.after < 0.6
    assert found.validation is not None
    assert found.validation.by.value == pytest.approx(0.1, abs=0.03)


def test_a_number_that_is_missing_is_not_measured(root: Path) -> None:
    text = page.render(root, RUN)
    assert "validation<small>greedy, first and last measurement</small>" in text
    assert text.count("! not measured") == 1  # no validation
    change(root / "data/train/report.json", lambda train: train.update(curve=train["curve"][:3]))
    assert learned_from(root).description == "Not measured: too few steps to tell a rise from noise."
    curve(root, 0.3, 0.8)
    for rest in ("challenger/report.json", "gate/decision.json"):
        (root / "data" / rest).unlink()
    assert learned_from(root).description == "Not measured: the test set was not opened."


def test_training_from_another_policy_than_the_champion_has_no_such_arms(root: Path) -> None:
    trained = reports.Champion(version=3, weights="lora", weights_path="weights", weights_sha256="a" * 64)
    reports.write(trained, root / "data/champion/champion.json")
    (root / "params.yaml").write_text("train:\n  from: policy\n")
    assert learned_from(root).description.startswith("Not measured: training did not begin from the champion")
    (root / "params.yaml").write_text("train:\n  from: champion\n")
    assert learned_from(root).verdict == "no sign of overfitting"


def test_a_run_that_trained_nothing_has_nothing_to_say() -> None:
    assert learned(StageFiles.read(sample_reports.stage_files("skipped"))) is None


def test_less_than_half_may_be_chance_where_training_is_noisy(root: Path) -> None:
    curve(root, 0.3, 0.9, noise=0.35)
    found = learned_from(root)
    assert found.train is not None
    on_test(root, 0.45 * found.train.by.value)
    found = learned_from(root)
    assert found.train is not None
    assert found.train.ends[0] > 0
    assert found.verdict == "no sign of overfitting"
