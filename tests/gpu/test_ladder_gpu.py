"""The stages with a policy on a GPU: it learns what it learns on a CPU, the sampler's
log-probabilities are the trainer's, and a run that is to be repeated is.

`make test ARGS='-m gpu'`. Without a CUDA GPU each is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rft import reports
from rft.errors import ConfigError
from tests.ladder import again, inside, params, run, stage_hashes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


def test_the_policy_learns(ladder: Path):
    baseline = reports.read(reports.BaselineReport, ladder / "data/baseline/report.json")
    train = reports.read(reports.TrainReport, ladder / "data/train/report.json")
    assert baseline.readiness == "ready"
    assert train.trained
    assert train.weight_change > 0


def test_sampler_and_trainer_agree(ladder: Path):
    lines = [json.loads(line) for line in (ladder / "data/train/metrics.jsonl").read_text().splitlines()]
    seen = [line["logprob_mismatch"] for line in lines if "logprob_mismatch" in line]
    assert seen
    assert max(seen) < 1e-4


def test_equal_inputs_give_equal_bytes_where_that_is_asked_for(tmp_path: Path, ladder_recipe: Path):
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        with inside(tmp_path / name):
            for stage in ("examples", "policy", "baseline"):
                run(stage, params(ladder_recipe, rollout={"deterministic": True}))
        found.append({stage: stage_hashes(tmp_path / name, stage) for stage in ("policy", "baseline")})
    assert found[0] == found[1]


def test_more_processes_than_gpus_are_refused(tmp_path: Path, ladder: Path, ladder_recipe: Path):
    most = torch.cuda.device_count() + 1
    with pytest.raises(ConfigError, match=f"'train.processes' = {most}: .* PyTorch sees {most - 1} here"):
        again(ladder, tmp_path, ladder_recipe, "train", train={"processes": most})
