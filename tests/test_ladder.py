"""Every stage of the ladder, run for real on the tiny recipe: a policy is built, learns, and is gated; then parts are killed and run again.

The stages are pure functions from files to files, so this is what `dvc repro` does, without DVC: one folder, one process.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rft import config, embedded, model, progress, reports, train
from rft.errors import RftError, UserError
from tests import small_policy, tiny_recipe

STAGES = ("examples", "policy", "baseline", "prompt", "train", "challenger")
SECTIONS: dict[str, Any] = {
    "examples": {"train": 64, "validation": 12, "test": 8},
    "rollout": {"max_turns": 3, "max_tokens": 200, "max_turn_tokens": 24, "batch": 16},
    "policy": {
        "architecture": small_policy.ARCHITECTURE.model_dump(),
        "warm_start": {"demonstrations": 256, "steps": 120, "batch": 8, "lr": 1e-2, "checkpoint_every": 40},
    },
    "baseline": {"examples": 8, "k": 3, "not_worth_above": 1.0, "not_yet_below": 0.0},
    "prompt": {"rounds": 2, "first_examples": 2, "k": 1, "confirm_k": 1},
    "train": {
        "steps": 4,
        "examples_per_step": 4,
        "group_size": 4,
        "checkpoint_every": 2,
        "validate_every": 2,
        "validation_examples": 4,
        "weights": "full",
        "lr": 1e-3,
    },
    "challenger": {"k": 2},
}


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def params(recipe: Path, **changes: dict[str, Any]) -> config.Params:
    return tiny_recipe.params(recipe, **{name: section | changes.get(name, {}) for name, section in SECTIONS.items()})


def run(stage: str, settings: config.Params) -> None:
    importlib.import_module(f"rft.{stage}").run(settings)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> Path:
    """The shelves after all stages."""
    folder = tmp_path_factory.mktemp("ladder")
    with inside(folder):
        for stage in STAGES:
            run(stage, params(recipe))
    return folder


def shelf(folder: Path, name: str) -> dict[str, str]:
    """Hashes of what a stage wrote, without wall times."""
    return {path.name: progress.tree_sha256(path) for path in sorted((folder / "data" / name).iterdir()) if path.name != "timing.json"}


def again(ladder: Path, folder: Path, recipe: Path, stage: str, **changes: dict[str, Any]) -> Path:
    """A copy of the shelves in which the stage is run once more."""
    shutil.copytree(ladder / "data", folder / "data")
    shutil.rmtree(folder / "data" / stage)
    with inside(folder):
        run(stage, params(recipe, **changes))
    return folder


def test_the_policy_learned_its_demonstrations(ladder: Path):
    report = reports.read(reports.PolicyReport, ladder / "data/policy/report.json")
    assert report.final_loss is not None
    assert report.final_loss < report.losses[0][1] / 2
    assert report.num_parameters < 200_000


def test_no_work_is_left_behind(ladder: Path):
    assert list((ladder / ".rft/progress").iterdir()) == []


def test_baseline_counts_add_up(ladder: Path):
    report = reports.read(reports.BaselineReport, ladder / "data/baseline/report.json")
    assert sum(report.sampled.tool_calls.values()) == sum(report.sampled.stop_reasons.values()) == 8 * 3
    assert [k for k, _ in report.sampled.max_at_k] == [1, 2, 3]
    assert sum(report.sampled.shares.values()) == pytest.approx(1)


def test_every_sampled_rollout_is_trained_on_or_left_out_with_a_reason(ladder: Path):
    table = pq.read_table(ladder / "data/train/rollouts.parquet").to_pylist()
    assert len(table) == 4 * 4 * 4
    assert all(row["trained"] != bool(row["left_out"]) for row in table)
    assert all(len(row["ids"]) == len(row["mine"]) and sum(row["mine"]) == len(row["logprobs"]) for row in table)


def test_metrics_have_no_wall_times_and_one_line_a_step(ladder: Path):
    lines = [json.loads(line) for line in (ladder / "data/train/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert not any("time" in key or "_s" in key.split("/")[-1][-2:] for line in lines for key in line)
    assert "validation/reward" in lines[-1]


def test_sampler_and_trainer_agree(ladder: Path):
    lines = [json.loads(line) for line in (ladder / "data/train/metrics.jsonl").read_text().splitlines()]
    seen = [line["logprob_mismatch"] for line in lines if "logprob_mismatch" in line]
    assert seen
    assert max(seen) < 1e-4


def test_the_three_arms_share_examples(ladder: Path):
    report = reports.read(reports.ChallengerReport, ladder / "data/challenger/report.json")
    assert [arm.name for arm in report.arms] == ["champion", "champion_new_prompt", "challenger"]
    assert len({arm.sampled.examples_sha256 for arm in report.arms}) == 1
    assert report.arms[0].weights_sha256 == report.arms[1].weights_sha256 != report.arms[2].weights_sha256


@pytest.mark.parametrize("stage", ["examples", "policy", "baseline", "prompt", "train"])
def test_equal_inputs_give_equal_bytes(ladder: Path, tmp_path: Path, recipe: Path, stage: str):
    assert shelf(again(ladder, tmp_path, recipe, stage), stage) == shelf(ladder, stage)


@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_training_that_was_cut_off_ends_the_same(ladder: Path, tmp_path: Path, recipe: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch):
    learn = train.Trainer._learn

    def dies(self: train.Trainer, samples: Any) -> dict[str, float]:
        if self.step == killed_after:
            raise KeyboardInterrupt
        return learn(self, samples)

    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/train")
    with inside(tmp_path):
        monkeypatch.setattr(train.Trainer, "_learn", dies)
        with pytest.raises(KeyboardInterrupt):
            run("train", params(recipe))
        monkeypatch.undo()
        assert not (tmp_path / "data/train/report.json").exists()
        run("train", params(recipe))
    assert shelf(tmp_path, "train") == shelf(ladder, "train")


def test_lora_trains_an_adapter_of_this_base(ladder: Path, tmp_path: Path, recipe: Path):
    again(ladder, tmp_path, recipe, "train", train={"weights": "lora", "lr": 1e-2, "lora": {"r": 4, "alpha": 8}})
    report = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (report.trained, report.weights) == (True, "lora")
    base, _ = model.load(str(ladder / "data/policy/model"), config.Policy(), small_policy.device())
    before = model.weights_sha256(base)
    merged = model.with_weights(base, "lora", tmp_path / "data/train/weights", small_policy.device())
    assert model.weights_sha256(merged) != before


def test_an_adapter_of_another_base_is_refused(ladder: Path, tmp_path: Path, recipe: Path):
    again(ladder, tmp_path, recipe, "train", train={"weights": "lora", "steps": 1, "lr": 1e-2, "lora": {"r": 4, "alpha": 8}})
    chat = small_policy.build(recipe)[1]
    wider = config.Architecture(**small_policy.ARCHITECTURE.model_dump() | {"hidden": 96})
    other = embedded.build_model(wider, chat.tokenizer, 0)
    with pytest.raises(UserError, match="another base model"):
        model.with_weights(other, "lora", tmp_path / "data/train/weights", small_policy.device())


def test_a_baseline_that_is_not_ready_trains_nothing(ladder: Path, tmp_path: Path, recipe: Path):
    shutil.copytree(ladder / "data", tmp_path / "data")
    path = tmp_path / "data/baseline/report.json"
    report = reports.read(reports.BaselineReport, path)
    reports.write(report.model_copy(update={"readiness": "not yet", "reason": "nothing is ever solved"}), path)
    with inside(tmp_path):
        run("train", params(recipe))
    written = reports.read(reports.TrainReport, tmp_path / "data/train/report.json")
    assert (written.trained, written.weights, written.path) == (False, "none", None)
    assert "nothing is ever solved" in written.reason


def test_readiness_in_words(ladder: Path, tmp_path: Path, recipe: Path):
    again(ladder, tmp_path, recipe, "baseline", baseline={"not_worth_above": 0.0})
    report = reports.read(reports.BaselineReport, tmp_path / "data/baseline/report.json")
    mean = report.sampled.metrics["score/mean"].value
    assert report.readiness == ("not worth it" if mean > 0 else "not yet" if report.sampled.max_at_k[-1][1] < 0.02 else "ready")


def test_a_given_model_is_a_pointer_with_a_hash(ladder: Path, tmp_path: Path, recipe: Path):
    given = small_policy.save(*small_policy.build(recipe), tmp_path / "given")
    with inside(tmp_path):
        run("policy", params(recipe, policy={"model": str(given)}))
    report = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
    assert (report.kind, report.model, report.sha256) == ("given", str(given), progress.tree_sha256(given))


def test_a_model_folder_without_a_tokenizer_is_named(tmp_path: Path, recipe: Path):
    given = small_policy.save(*small_policy.build(recipe), tmp_path / "given")
    for path in given.glob("tokenizer*"):
        path.unlink()
    with inside(tmp_path), pytest.raises(UserError, match="tokenizer"):
        run("policy", params(recipe, policy={"model": str(given)}))


def test_a_hub_id_out_of_reach_is_one_message(tmp_path: Path, recipe: Path):
    with inside(tmp_path), pytest.raises(UserError, match="cannot be loaded"):
        run("policy", params(recipe, policy={"model": "nobody/no-such-model"}))


def test_a_missing_shelf_names_the_stage_that_writes_it(tmp_path: Path, recipe: Path):
    with inside(tmp_path), pytest.raises(RftError, match="rft stage"):
        run("train", params(recipe))
