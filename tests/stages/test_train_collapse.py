"""A training that collapses goes back once, then ends before the look; and a kill changes nothing
of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rft import config, reports
from rft.errors import UserError
from rft.trainer.collapse import Guard
from rft.trainer.learner import Diverged, Learner
from tests.ladder import again, inside, params, run, stage_hashes

pytestmark = pytest.mark.usefixtures("ready_server")

TRAIN = {"steps": 6, "checkpoint_every": 2, "validation_examples": 0, "schedule": "constant"}


def falls_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """The guard says so at these steps, whatever the rewards."""

    def saw(self: Guard, groups: Any, policy_version: int) -> str:
        return "the mean reward fell" if policy_version + 1 in steps else ""

    monkeypatch.setattr(Guard, "saw", saw)


def train_report(folder: Path) -> reports.TrainReport:
    return reports.read(reports.TrainReport, folder / "data/train/report.json")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data/train/metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_it_goes_back_once_with_a_tenth_of_the_learning_rate(
    ladder: Path,
    tmp_path: Path,
    ladder_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    falls_at(monkeypatch, 5)
    again(ladder, tmp_path, ladder_recipe, "train", train=TRAIN)
    report, steps = train_report(tmp_path), rows(tmp_path)
    [fall] = report.falls
    assert (fall.step, fall.reason, fall.lr) == (5, "the mean reward fell", pytest.approx(1e-4))
    assert fall.back_to in (0, 2, 4)
    assert (report.trained, report.collapsed, report.steps) == (True, "", 6)
    assert f"at step 5, the mean reward fell: went back to step {fall.back_to}" in report.reason
    later = [row["lr"] for row in steps[5:] if "lr" in row]  # none, where all rollouts of the last step earned alike
    assert later == [pytest.approx(1e-4)] * len(later)
    assert [row.get("collapse/back_to") for row in steps] == [None] * 4 + [fall.back_to, None]
    assert "COLLAPSE at step 5: the mean reward fell" in capsys.readouterr().out


@pytest.mark.slow
def test_the_weights_are_those_that_it_went_back_to(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    """At the last step nothing is learned after it."""
    short = TRAIN | {"steps": 4}
    again(ladder, tmp_path / "two", ladder_recipe, "train", train=short | {"steps": 2})
    monkeypatch.setattr("rft.trainer.collapse.best", lambda rows, steps: max(steps, default=0))
    falls_at(monkeypatch, 4)
    again(ladder, tmp_path / "four", ladder_recipe, "train", train=short)
    assert train_report(tmp_path / "four").kept_step == 2
    assert train_report(tmp_path / "four").sha256 == train_report(tmp_path / "two").sha256


@pytest.mark.slow
def test_the_second_time_it_ends_without_weights_and_without_a_look(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    falls_at(monkeypatch, 2, 4)
    again(ladder, tmp_path, ladder_recipe, "train", train=TRAIN)
    report = train_report(tmp_path)
    assert (report.trained, report.weights, report.path, report.steps) == (False, "none", None, 4)
    assert report.collapsed == "the mean reward fell"
    assert report.reason.startswith(
        "training collapsed at step 4, for the second time, with train.lr lowered from 0.001"
    )
    assert "--set train.lr=1e-05" in report.reason
    assert "training collapsed" in (tmp_path / "data/train/weights/none.txt").read_text()
    assert len(rows(tmp_path)) == 4, "what happened can be read"
    with inside(tmp_path), pytest.raises(UserError, match=r"data/train/report.json: training collapsed at step 4"):
        run("challenger", params(ladder_recipe, train=TRAIN))


@pytest.mark.slow
def test_weights_that_go_to_infinity_are_a_collapse(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    update, seen = Learner.update, list[int]()

    def diverges(self: Learner, *args: Any) -> dict[str, float]:
        if self.num_updates == 2 and not seen:
            seen.append(1)
            raise Diverged("update 3: the gradient is not finite. Lower train.lr.")
        return update(self, *args)

    monkeypatch.setattr(Learner, "update", diverges)
    falls_at(monkeypatch)
    again(ladder, tmp_path, ladder_recipe, "train", train=TRAIN | {"checkpoint_every": 100})
    report = train_report(tmp_path)
    assert report.falls[0].reason == "update 3: the gradient is not finite"
    assert (report.falls[0].back_to, report.trained) == (0, True)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C before the update of each of these steps, once."""
    left, update = list[int](), Learner.update

    def dies(self: Learner, *args: Any) -> dict[str, float]:
        seen.append(1)
        if left and len(seen) == left[0]:
            left.pop(0)
            raise KeyboardInterrupt
        return update(self, *args)

    seen = list[int]()
    monkeypatch.setattr(Learner, "update", dies)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [4, 6])
def test_a_kill_before_or_after_it_changes_nothing(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, killed_at: int, kills: list[int], monkeypatch: pytest.MonkeyPatch
):
    falls_at(monkeypatch, 4)
    again(ladder, tmp_path / "whole", ladder_recipe, "train", train=TRAIN)
    shutil.copytree(ladder / "data", tmp_path / "killed/data", ignore=shutil.ignore_patterns("train"))
    kills.append(len(rows(tmp_path / "whole")) + killed_at)
    with inside(tmp_path / "killed"):
        with pytest.raises(KeyboardInterrupt):
            run("train", params(ladder_recipe, train=TRAIN))
        run("train", params(ladder_recipe, train=TRAIN))
    assert stage_hashes(tmp_path / "killed", "train") == stage_hashes(tmp_path / "whole", "train")


def test_the_default_learning_rate_follows_the_width():
    from rft.trainer import rates

    assert rates.default("lora", 128) == 2e-3
    assert rates.default("lora", 576) == pytest.approx(2.1e-4)
    assert rates.default("full", 128) == 4e-4
    assert rates.default("full", 4096) == pytest.approx(3.9e-7)
    assert rates.resolved(config.Train(lr=0.5), 128).lr == 0.5
    assert rates.resolved(config.Train(), 128).lr == 2e-3
