"""Stage challenger: three arms on one frozen set."""

from __future__ import annotations

from pathlib import Path

from rft import reports


def test_the_three_arms_share_examples(ladder: Path):
    report = reports.read(reports.ChallengerReport, ladder / "data/challenger/report.json")
    assert [arm.name for arm in report.arms] == ["champion", "champion_new_prompt", "challenger"]
    assert len({arm.sampled.examples_sha256 for arm in report.arms}) == 1
    assert report.arms[0].weights_sha256 == report.arms[1].weights_sha256 != report.arms[2].weights_sha256
