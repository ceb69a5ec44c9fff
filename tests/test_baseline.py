"""Stage baseline, and that every stage with rollouts is a function of its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import reports
from tests.ladder import again, shelf


def test_baseline_counts_add_up(ladder: Path):
    report = reports.read(reports.BaselineReport, ladder / "data/baseline/report.json")
    assert sum(report.sampled.tool_calls.values()) == sum(report.sampled.stop_reasons.values()) == 8 * 3
    assert [k for k, _ in report.sampled.max_at_k] == [1, 2, 3]
    assert sum(report.sampled.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("stage", ["examples", "policy", "baseline", "prompt", "train"])
def test_equal_inputs_give_equal_bytes(ladder: Path, tmp_path: Path, ladder_recipe: Path, stage: str):
    assert shelf(again(ladder, tmp_path, ladder_recipe, stage), stage) == shelf(ladder, stage)


def test_readiness_in_words(ladder: Path, tmp_path: Path, ladder_recipe: Path):
    again(ladder, tmp_path, ladder_recipe, "baseline", baseline={"not_worth_above": 0.0})
    report = reports.read(reports.BaselineReport, tmp_path / "data/baseline/report.json")
    mean = report.sampled.metrics["score/mean"].value
    assert report.readiness == ("not worth it" if mean > 0 else "not yet" if report.sampled.max_at_k[-1][1] < 0.02 else "ready")
