"""The gate on whole, consistent files: three-valued, pre-registered, the same bytes every
time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rft import config, reports, stage_files
from rft.errors import ConfigError, UserError
from rft.gate import checks, decide, sample_size
from rft.reports import ChallengerReport, Decision, plain, wording
from rft.stages import gate
from tasks.runs import engine
from tests import sample_reports


@dataclass(frozen=True)
class Evidence:
    drift: reports.DriftReport
    baseline: reports.BaselineReport
    prompt: reports.PromptReport
    train: reports.TrainReport
    challenger: reports.ChallengerReport
    timings: dict[str, Any]

    @classmethod
    def from_stage_files(cls, root: Path) -> Evidence:
        return cls(
            reports.read(reports.DriftReport, root / "data/drift/report.json"),
            reports.read(reports.BaselineReport, root / "data/baseline/report.json"),
            reports.read(reports.PromptReport, root / "data/prompt/report.json"),
            reports.read(reports.TrainReport, root / "data/train/report.json"),
            reports.read(reports.ChallengerReport, root / "data/challenger/report.json"),
            json.loads((root / "data/challenger/timing.json").read_text()),
        )

    def decide(self, **thresholds: Any) -> Decision:
        section = sample_reports.GATE.model_copy(update=thresholds)
        return decide.decide(section, self.drift, self.baseline, self.prompt, self.train, self.challenger, self.timings)

    def with_rows(self, arm: str, change: Callable[[reports.Row], dict[str, Any]]) -> Evidence:
        """The same with every sampled row of one arm changed."""
        arms = [
            one.model_copy(update={"sampled": _changed(one.sampled, change)}) if one.name == arm else one
            for one in self.challenger.arms
        ]
        return replace(self, challenger=self.challenger.model_copy(update={"arms": arms}))


def _changed(evaluation: reports.Evaluation, change: Callable[[reports.Row], dict[str, Any]]) -> reports.Evaluation:
    return evaluation.model_copy(update={"rows": [row.model_copy(update=change(row)) for row in evaluation.rows]})


def _check(decision: Decision, name: str) -> reports.Check:
    return next(check for check in decision.checks if check.name == name)


# -- three values ----------------------------------------------------------------------------------
@pytest.mark.parametrize("scenario", ["promote", "reject", "inconclusive", "prompt_only", "skipped"])
def test_decisions_stay_what_they_were(golden: Callable[[str, str], None], scenario: sample_reports.Scenario) -> None:
    found = reports.read(Decision, sample_reports.stage_files(scenario) / "data/gate/decision.json")
    lines = [f"{found.decision} {found.candidate}", found.reason, *(wording.describe(check) for check in found.checks)]
    golden(f"gate_{scenario}.txt", "\n".join(lines) + "\n")


def test_a_clear_gain_with_nothing_worse_is_promoted() -> None:
    found = Evidence.from_stage_files(sample_reports.stage_files("promote")).decide()
    assert (found.decision, found.candidate) == ("promote", "challenger")
    assert all(check.passed for check in found.checks)


def _drifted(**by: bool) -> list[Any]:
    """A feature of the input, by what it was compared with: whether it drifted."""
    one = reports.FeatureDrift(
        feature="opening",
        group="input",
        statistic="total_variation",
        effect=0.8,
        threshold=0.15,
        p_value=0.001,
        q_value=0.001,
        n_reference=288,
        n_current=600,
        drifted=False,
    )
    return [one.model_copy(update={"against": name, "drifted": drifted}) for name, drifted in by.items()]


def _after(verdict: str, **by: bool) -> Decision:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    return replace(
        evidence, drift=evidence.drift.model_copy(update={"verdict": verdict, "features": _drifted(**by)})
    ).decide()


@pytest.mark.parametrize("by", [{"train": True, "test": True}, {"train": True}])
def test_test_examples_of_before_the_drift_are_told_and_decide_nothing(by: dict[str, bool]) -> None:
    """N7: trained on the window, tested on examples that lack its new category, and no word."""
    found = _after("refresh", **by)
    check = _check(found, wording.LIKE_PRODUCTION)
    assert (found.decision, check.passed, check.decides) == ("promote", False, False)
    assert "they lack what has drifted (opening)" in check.detail
    assert "another examples.block" in check.detail
    assert any(line.startswith("test examples like production: they lack") for line in plain.unseen(found))


@pytest.mark.parametrize(
    ("verdict", "by"),
    [
        ("refresh", {"train": True, "test": False}),  # fresh ones
        ("refresh", {"train": False, "test": True}),  # kept apart by the recipe
        ("continue", {"train": True, "test": True}),
        ("refresh", {}),
    ],
)
def test_test_examples_that_have_what_drifted_are_not(verdict: str, by: dict[str, bool]) -> None:
    assert wording.LIKE_PRODUCTION not in [check.name for check in _after(verdict, **by).checks]


def test_few_examples_settle_nothing_and_the_reason_says_how_many_would() -> None:
    found = Evidence.from_stage_files(sample_reports.stage_files("inconclusive")).decide()
    assert found.decision == "inconclusive"
    assert found.reason.endswith(
        "About 226 more test examples would settle it: `rft runs extend RUN` adds blocks of them to these; where the "
        "recipe offers none, raise examples.test from 24 to 250"
    )
    assert found.more_examples == 226
    assert Evidence.from_stage_files(sample_reports.stage_files("promote")).decide().more_examples is None
    assert None in [check.passed for check in found.checks]


@pytest.mark.slow
def test_an_interval_that_ends_at_its_margin_is_not_worse_but_not_superior() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    reward, greedy, calls = (
        _check(evidence.decide(), name) for name in ("mean reward", "greedy score", "P95 tool calls")
    )
    assert reward.low is not None
    assert greedy.low is not None
    at = evidence.decide(min_gain=reward.low, max_greedy_loss=-greedy.low, max_calls_p95_increase=calls.high)
    assert [_check(at, name).passed for name in (reward.name, greedy.name, calls.name)] == [None, True, True]


def test_a_value_at_its_margin_is_not_a_matter_of_more_examples() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    gain = _check(evidence.decide(), "mean reward").value
    found = evidence.decide(min_gain=gain)
    assert found.decision == "inconclusive"
    assert "Of mean reward the value lies so near the margin that more examples would hardly tell" in found.reason


@pytest.mark.slow
def test_n7_nobody_is_told_to_find_ten_thousand_examples() -> None:
    """A number that no one has is not advice: then the candidate must change."""
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    gain = _check(evidence.decide(), "mean reward")
    assert gain.value is not None
    assert gain.low is not None
    width = gain.value - gain.low
    near, nearer = (evidence.decide(min_gain=gain.value - width * part) for part in (0.6, 0.2))
    assert near.decision == nearer.decision == "inconclusive"
    asked = re.search(r"raise examples.test from 72 to ([\d,]+)$", near.reason)
    assert asked
    assert 72 < int(asked[1].replace(",", "")) <= 1000
    assert "raise examples.test" not in nearer.reason
    assert nearer.more_examples is None
    assert nearer.reason.endswith("or a margin that 72 examples can show, written down before the next run")


def test_n7_what_was_not_measured_is_mended_first() -> None:
    unscored = Evidence.from_stage_files(sample_reports.stage_files("promote")).with_rows(
        "champion", lambda row: {"rewards": [None] * len(row.rewards)}
    )
    checks = unscored.decide(max_unscored_share=1).checks
    assert sample_size.advice(checks).startswith(
        "First see why nothing was measured: mean reward (no example has a score in both arms); "
    )


@pytest.mark.parametrize(
    ("threshold", "value", "name"),
    [
        ("min_gain", 0.9, "mean reward"),
        ("max_calls_p95_increase", -20, "P95 tool calls"),
        ("max_tokens_increase", -0.9, "token cost"),
        ("require_drift", ["refresh"], "drift"),
    ],
)
def test_one_failed_check_rejects_and_is_named(threshold: str, value: Any, name: str) -> None:
    found = Evidence.from_stage_files(sample_reports.stage_files("promote")).decide(**{threshold: value})
    assert found.decision == "reject"
    assert [check.name for check in found.checks if check.passed is False] == [name]
    assert name in found.reason


def test_a_hack_blocks_promotion_even_when_the_reward_rose() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote")).with_rows(
        "challenger", lambda row: {"hacks": 1}
    )
    assert _check(evidence.decide(), "hack rate").passed is False
    assert evidence.decide().decision == "reject"


def test_a_slice_that_falls_behind_rejects_however_good_the_rest() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    before = {row.example_id: row.rewards for row in evidence.challenger.arms[0].sampled.rows}
    evidence = evidence.with_rows(
        "challenger",
        lambda row: {"rewards": [(x or 0) - 0.3 for x in before[row.example_id]]} if row.slice == "3" else {},
    )
    evidence = replace(evidence, prompt=evidence.prompt.model_copy(update={"found": False}))
    found = evidence.decide(min_gain=0)
    assert _check(found, "mean reward").passed
    assert _check(found, "slice 3").passed is False
    assert found.decision == "reject"


def test_unscored_rollouts_are_left_out_counted_and_limited() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    some = evidence.with_rows("challenger", lambda row: {"rewards": [None, *row.rewards[1:]]}).decide()
    assert _check(some, "mean reward").value == pytest.approx(_check(evidence.decide(), "mean reward").value, abs=0.05)
    assert _check(some, "unscored share").value == pytest.approx(0.2)
    assert some.decision == "reject"


def test_a_slice_without_any_score_is_open_and_not_passed() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote")).with_rows(
        "challenger", lambda row: {"rewards": [None] * 4} if row.slice == "1" else {}
    )
    found = _check(evidence.decide(max_unscored_share=1.0), "slice 1")
    assert (found.passed, found.value) == (None, None)


# -- a scale of its own ----------------------------------------------------------------------------
def _rescaled(evidence: Evidence, low: float, high: float) -> Evidence:
    """The same rollouts, graded on `low` to `high`."""

    def moved(values: list[float | None]) -> list[float | None]:
        return [None if x is None else low + (high - low) * x for x in values]

    def rescaled(one: reports.Evaluation) -> reports.Evaluation:
        rows = [row.model_copy(update={"rewards": moved(row.rewards), "scores": moved(row.scores)}) for row in one.rows]
        return one.model_copy(update={"rows": rows, "range": (low, high)})

    arms = [
        arm.model_copy(update={"sampled": rescaled(arm.sampled), "greedy": rescaled(arm.greedy)})
        for arm in evidence.challenger.arms
    ]
    return replace(evidence, challenger=evidence.challenger.model_copy(update={"arms": arms}))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["promote", "reject", "inconclusive", "prompt_only"])
@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-2.0, 2.0)])
def test_thresholds_are_shares_of_the_range(scenario: sample_reports.Scenario, low: float, high: float) -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files(scenario))
    plain, scaled = evidence.decide(), _rescaled(evidence, low, high).decide()
    assert (scaled.decision, scaled.candidate) == (plain.decision, plain.candidate)
    for ours, theirs in zip(plain.checks, scaled.checks, strict=True):
        assert (ours.name, ours.passed, ours.margin) == (theirs.name, theirs.passed, theirs.margin)
        assert theirs.value == (None if ours.value is None else pytest.approx(ours.value, abs=1e-9))


def test_on_a_scale_of_its_own_a_gain_is_said_to_be_of_the_range() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    plain, scaled = evidence.decide(), _rescaled(evidence, 0.0, 5.0).decide()
    for name in ("mean reward", "greedy score", "slice 3"):
        expected = wording.describe(_check(plain, name)).replace("] against", "] of the range against")
        assert wording.describe(_check(scaled, name)) == expected != wording.describe(_check(plain, name))
    assert wording.describe(_check(scaled, "P95 tool calls")) == wording.describe(_check(plain, "P95 tool calls"))
    assert "of the range" in scaled.reason
    assert "of the range" not in "".join([plain.reason, *map(wording.describe, plain.checks)])


def test_arms_on_two_scales_cannot_be_compared() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    scaled = _rescaled(evidence, 0.0, 5.0)
    arms = [scaled.challenger.arms[0], *evidence.challenger.arms[1:]]
    mixed = replace(evidence, challenger=evidence.challenger.model_copy(update={"arms": arms}))
    with pytest.raises(
        UserError,
        match=r"data/challenger/report\.json: .* different ranges: 0 to 5 \(champion\), 0 to 1 \(challenger\)",
    ):
        mixed.decide()


# -- which rung is judged --------------------------------------------------------------------------
def test_when_training_adds_nothing_the_prompt_alone_is_judged() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("prompt_only"))
    found = evidence.decide()
    assert (found.decision, found.candidate) == ("promote", "champion_new_prompt")
    rung = _check(found, "training over the new prompt alone")
    assert rung.passed is not True
    assert not rung.decides
    request = decide.promotion_request(found, evidence.prompt, evidence.train, evidence.challenger)
    assert request is not None
    assert (request.weights, request.weights_path, request.weights_sha256) == ("none", None, None)


def test_training_must_earn_its_price_over_the_prompt() -> None:
    assert (
        Evidence.from_stage_files(sample_reports.stage_files("promote")).decide(prompt_only_margin=0.9).candidate
        == "champion_new_prompt"
    )


def test_without_a_new_prompt_the_challenger_is_judged_against_the_champion() -> None:
    found = Evidence.from_stage_files(sample_reports.stage_files("reject")).decide()
    assert (found.decision, found.candidate) == ("reject", "challenger")


def test_with_nothing_trained_and_no_new_prompt_the_champion_stays() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("skipped"))
    found = evidence.decide()
    assert (found.decision, found.candidate) == ("reject", "none")
    assert evidence.train.reason in found.reason
    assert decide.promotion_request(found, evidence.prompt, evidence.train, evidence.challenger) is None


def test_with_nothing_trained_a_new_prompt_is_judged() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("prompt_only"))
    untrained = evidence.train.model_copy(update={"trained": False, "weights": "none", "reason": "not worth it"})
    found = replace(evidence, train=untrained).decide()
    assert (found.decision, found.candidate) == ("promote", "champion_new_prompt")


# -- what a decision rests on ----------------------------------------------------------------------
def test_arms_on_different_examples_are_rejected_before_any_number_is_compared() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    arms = [*evidence.challenger.arms[:2], evidence.challenger.arms[2]]
    arms[2] = arms[2].model_copy(update={"sampled": arms[2].sampled.model_copy(update={"examples_sha256": "0" * 64})})
    found = replace(evidence, challenger=evidence.challenger.model_copy(update={"arms": arms})).decide()
    assert found.decision == "reject"
    assert "same frozen test" in found.reason


def test_a_missing_arm_is_an_error_that_names_the_file() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    cut = ChallengerReport(test_sha256=evidence.challenger.test_sha256, arms=evidence.challenger.arms[:2])
    with pytest.raises(UserError, match=r"data/challenger/report\.json: has no arm 'challenger'"):
        replace(evidence, challenger=cut).decide()


def test_the_order_of_rows_changes_nothing_but_their_own_hash() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    arms = [
        arm.model_copy(update={"sampled": arm.sampled.model_copy(update={"rows": arm.sampled.rows[::-1]})})
        for arm in evidence.challenger.arms
    ]
    turned = replace(evidence, challenger=evidence.challenger.model_copy(update={"arms": arms}))
    assert turned.decide().checks == evidence.decide().checks


@pytest.mark.slow
def test_wall_times_enter_the_decision_only_when_they_vote() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    slow = {"p50": 9.0, "p95": 9.0, "n": 1}
    slower = replace(
        evidence, timings={"rollout_s": {**evidence.timings["rollout_s"], "challenger/challenger/sampled": slow}}
    )
    assert slower.decide() == evidence.decide()
    assert not checks.latency(sample_reports.GATE, slower.timings, "challenger").passed
    voting = slower.decide(latency_decides=True)
    assert voting.decision == "reject"
    assert "P95 latency" in voting.reason
    assert replace(evidence, timings={}).decide(latency_decides=True).decision == "inconclusive"


@pytest.mark.slow
def test_the_request_names_everything_by_hash() -> None:
    evidence = Evidence.from_stage_files(sample_reports.stage_files("promote"))
    found = evidence.decide()
    request = decide.promotion_request(found, evidence.prompt, evidence.train, evidence.challenger)
    assert request is not None
    assert request.decision_sha256 == found.digest()
    assert request.weights_sha256 == evidence.train.sha256
    assert request.test_sha256 == evidence.challenger.test_sha256
    assert found.hashes["challenger"] == evidence.challenger.digest()
    assert evidence.decide(min_gain=0.06).hashes["gate"] != found.hashes["gate"]


# -- the stage -------------------------------------------------------------------------------------
def _run(root: Path) -> subprocess.CompletedProcess[str]:
    """`python -m rft gate` in `root`, which holds params.yaml and the stages' files."""
    section = {"recipe": {}, "gate": sample_reports.GATE.model_dump(mode="json")}
    (root / "params.yaml").write_text(yaml.safe_dump(section))
    engine.write(root, config.Recipe(path=str(root / "recipe")), root / "state")
    environment = {**os.environ, "PYTHONPATH": str(Path(gate.__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-m", "rft", "gate"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_stage_writes_the_same_bytes_again(tmp_path: Path) -> None:
    shutil.copytree(sample_reports.stage_files("promote") / "data", tmp_path / "data")
    stage_folder = tmp_path / "data/gate"
    before = {path.name: path.read_bytes() for path in stage_folder.iterdir()}
    shutil.rmtree(stage_folder)
    registered = reports.Registration(registered=True, entry=2, look=1, looks=5, by_policy=True)
    reports.write(registered, tmp_path / stage_files.path(reports.Registration))
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in stage_folder.iterdir()} == before
    assert "[gate] 1/15 mean reward: passed" in done.stdout
    assert "promote: the challenger is better" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("registered", [False, True])
def test_what_was_not_registered_under_the_policy_asks_nobody(tmp_path: Path, registered: bool) -> None:
    shutil.copytree(sample_reports.stage_files("promote") / "data", tmp_path / "data")
    by_hand = reports.Registration(registered=registered, entry=int(registered), look=1, looks=5, by_policy=False)
    reports.write(by_hand, tmp_path / stage_files.path(reports.Registration))
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "promote: the challenger is better" in done.stdout
    assert "nobody is asked to promote it" in done.stdout
    assert json.loads((tmp_path / "data/gate/request.json").read_text()) is None


@pytest.mark.slow
def test_without_the_registration_that_git_holds_nothing_is_decided(tmp_path: Path) -> None:
    shutil.copytree(sample_reports.stage_files("promote") / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/gate")
    (tmp_path / stage_files.path(reports.Registration)).unlink()
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "git checkout -- data/registration/registration.json" in done.stderr
    assert not (tmp_path / "data/gate").exists()


def test_no_request_is_a_file_that_says_so() -> None:
    assert json.loads((sample_reports.stage_files("reject") / "data/gate/request.json").read_text()) is None


@pytest.mark.slow
def test_a_missing_report_is_one_message_with_the_remedy(tmp_path: Path) -> None:
    shutil.copytree(sample_reports.stage_files("promote") / "data", tmp_path / "data")
    (tmp_path / "data/challenger/timing.json").write_text('{"rollout_s": {')
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "data/challenger/timing.json: line 1: not JSON" in done.stderr
    assert "rft stage run challenger" not in done.stderr, "the test examples are opened by a run alone"
    assert "rft run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_threshold_is_a_configuration_error() -> None:
    section = sample_reports.GATE.model_dump(mode="json")
    del section["max_slice_loss"]
    with pytest.raises(ConfigError, match=r"'gate\.max_slice_loss' is missing, and has no default"):
        config.parse({"recipe": {}, "gate": section})
