"""`rft new` gives a recipe on which the whole ladder, with the real engine, finds a better prompt,
trains, and is asked to promote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows import settings
from rft import config, recipe, stage_files
from rft.grading import preflight
from rft.reports import ChallengerReport, Decision, DriftReport
from rft.stages import examples
from rft.traffic import feedback, ingest, reading
from tasks.dependencies import STAGES
from tasks.ledger import remote
from tasks.runs.clone import Clone
from tests import ladder

QUICK = (
    "policy.warm_start.demonstrations=1600",
    "policy.warm_start.steps=200",
    "baseline.examples=16",
    "baseline.k=3",
    "prompt.rounds=1",
    "prompt.confirm_k=2",
    "train.steps=12",
    "train.validation_examples=0",
    "challenger.k=1",
    "challenger.shown=0",
)
"""Not fewer test examples than the template's: of 144, one that greedy decoding loses settles
nothing. Nor fewer steps of warm start: after 140 the new prompt alone earns 0.93, and training
cannot be shown to add to that."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Clone:
    """This repository as it stands, with the new agent committed."""
    root = tmp_path_factory.mktemp("new") / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (repository / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, root / name)
    made = Clone(root)
    remote.pin(made, remote.Shared(), None)  # not the ledger of whoever runs these tests
    made.git("init", "--quiet")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message", "start")
    done = rft(made, "new", "agents/parcels")
    assert done.returncode == 0, done.stderr
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message", "an agent of my own")
    return Clone(root, "agents/parcels")


def rft(clone: Clone, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("MLFLOW_TRACKING_URI", "RFT_STATE")}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=clone.root, env=kept, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_its_parts_hold(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings parse, the grader refuses every cheat over real HTTP, splits are apart, its traffic
    can be read and graded."""
    monkeypatch.chdir(clone.home)
    params = config.load("params.yaml")
    assert (params.agent_name, params.recipe.path) == ("parcels", "recipe")
    loaded = recipe.load(params.recipe)
    result = preflight.preflight(params, loaded, num_examples=8)
    assert result.targets_pass
    assert result.accepted == []
    assert len(result.exploits) >= 10
    ids = {
        split: {example.id for example in loaded.examples(split, 800, 0)} for split in ("train", "validation", "test")
    }
    assert ids["train"].isdisjoint(ids["validation"] | ids["test"])
    assert ids["validation"].isdisjoint(ids["test"])
    apart = examples.check_blocks(examples.tested(loaded, params.examples.model_copy(update={"blocks": 2})), False)
    assert set(apart.values()) == {0}
    snapshot = ingest.ingest(params.traffic.file, params.traffic, Path.cwd(), Path(".rft/snapshots"))
    graded = [example for _, example in feedback.usable(reading.conversations(snapshot), loaded)]
    assert len(graded) >= params.drift.min_feedback
    gate = yaml.safe_load((clone.home / "params.yaml").read_text())["gate"]
    unset = {"num_bootstrap", "prices", "max_abstention_increase"}  # its grader knows no abstention
    assert set(gate) | unset == set(config.Gate.model_fields), "every threshold is written down"


@pytest.mark.story
def test_the_whole_ladder_runs_on_it(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage, in this process: each in one of its own, as `rft run` starts them, would load
    PyTorch anew. That is what `rft demo` does in .ci/run."""
    monkeypatch.chdir(clone.home)
    params = settings.resolve(clone, overrides=QUICK)
    snapshot = ingest.ingest(params.traffic.file, params.traffic, Path.cwd(), Path(".rft/snapshots"))
    shutil.copytree(snapshot, stage_files.SNAPSHOT)
    for stage in STAGES:
        ladder.run(stage, params)
    assert stage_files.read(DriftReport).verdict == "continue"
    report = stage_files.read(ChallengerReport)
    arms = {arm.name: arm.sampled.metrics["score/mean"] for arm in report.arms}
    assert arms["champion_new_prompt"].value > arms["champion"].value + 0.1
    assert (arms["challenger"].low or 0) > (arms["champion_new_prompt"].high or 1), (
        "training adds to what the prompt alone gives"
    )
    decision = stage_files.read(Decision)
    assert decision.decision == "promote", decision.reason
    assert clone.git("status", "--porcelain").strip() == ""
