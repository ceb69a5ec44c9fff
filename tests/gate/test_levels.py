"""The level of the question: what a look costs, and which interval it gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rft import config, reports, stats
from rft.errors import ConfigError
from rft.gate import decide, levels, sample_size
from rft.reports import Check, Decision
from tests import sample_reports

GATE = sample_reports.GATE


def decided(**thresholds: object) -> Decision:
    root = sample_reports.stage_files("promote") / "data"
    return decide.decide(
        GATE.model_copy(update=thresholds),
        reports.read(reports.DriftReport, root / "drift/report.json"),
        reports.read(reports.BaselineReport, root / "baseline/report.json"),
        reports.read(reports.PromptReport, root / "prompt/report.json"),
        reports.read(reports.TrainReport, root / "train/report.json"),
        reports.read(reports.ChallengerReport, root / "challenger/report.json"),
        json.loads((root / "challenger/timing.json").read_text()),
    )


def test_a_look_pays_for_two_candidates() -> None:
    assert levels.question(GATE) == pytest.approx(0.05 / 5 / 2)
    question, *others = decided().checks
    assert (question.name, question.level) == ("mean reward", pytest.approx(0.005))
    assert {check.level for check in others if check.low is not None} == {0.025}
    assert question.detail.endswith(
        "; one-sided 0.5 %: alpha 5 % pays for 5 looks at this test set, of two candidates each"
    )


def test_more_looks_ask_for_more_and_change_nothing_else() -> None:
    few, many = decided(looks=1).checks, decided(looks=50).checks
    assert [check.passed for check in few] == [check.passed for check in many]
    for one, other in zip(few[1:], many[1:], strict=True):
        assert one == other
    assert _width(many[0]) > 1.5 * _width(few[0])


def test_the_question_s_interval_is_student_s_at_every_level() -> None:
    """Nothing of it is drawn, so neither a seed nor the number of draws decides a promotion."""
    one, other = (decided(looks=1, seed=seed, num_bootstrap=num).checks[0] for seed, num in ((0, 200), (1, 2000)))
    assert (one.low, one.high) == (other.low, other.high)
    assert one.n is not None
    far = stats.t_quantile(0.025, one.n - 1) / stats.t_quantile(0.005, one.n - 1)
    assert _width(one) == pytest.approx(far * _width(decided().checks[0]))


def test_the_detectable_effect_and_the_advice_know_the_level() -> None:
    loose, strict = decided(looks=1).checks[0], decided(looks=50).checks[0]
    assert loose.detectable is not None
    assert strict.detectable is not None
    assert strict.detectable > 1.3 * loose.detectable
    assert strict.value is not None
    assert strict.low is not None
    near = strict.model_copy(update={"passed": None, "margin": (strict.value + strict.low) / 2})
    size_factor = sample_size.size_factor(near)
    power = stats.minimum_detectable(1, 0.8, 1 - 0.001) / stats.minimum_detectable(1, 0.5, 1 - 0.001)
    assert size_factor == pytest.approx((2 * power) ** 2)


def test_a_single_example_has_no_interval_and_promotes_nothing() -> None:
    found = stats.t_gain({"a": [1.0]}, {"a": [0.0]}, 0.99)
    assert (found.value, found.low, found.high) == (1.0, None, None)


def test_a_check_of_an_earlier_version_had_its_95_percent() -> None:
    old = Check(name="mean reward", kind="superiority", passed=True, value=0.1, low=0.06, high=0.14, margin=0.05)
    assert old.confidence == pytest.approx(0.95)
    assert {"level", "needed_for_veto"}.isdisjoint(old.model_dump())


@pytest.mark.parametrize(
    ("key", "shown"), [("alpha", "alpha: 0.05"), ("looks", "looks: 5"), ("min_slice", "min_slice: 20")]
)
def test_settings_that_lack_one_are_told_what_to_write(key: str, shown: str) -> None:
    section = GATE.model_dump(mode="json")
    del section[key]
    message = (
        rf"'gate\.{key}' is missing, and has no default\. Write what you mean by it, such as {shown} \(docs/params\.md"
    )
    with pytest.raises(ConfigError, match=message):
        config.parse({"recipe": {}, "gate": section})


def test_a_run_of_before_is_read_with_what_it_was_decided_by(tmp_path: Path) -> None:
    """Else its agent could neither be exported nor tried, and its file cannot be edited."""
    section = GATE.model_dump(mode="json")
    for key in ("alpha", "looks", "min_slice"):
        del section[key]
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps({"recipe": {}, "gate": section}))
    assert levels.question(config.load(path, recorded=True).gate) == 0.025
    with pytest.raises(ConfigError, match=r"gate\.alpha"):
        config.load(path)
    path.write_text(json.dumps({"recipe": {}, "gate": section | {"looks": 9}}))
    assert config.load(path, recorded=True).gate.looks == 9


@pytest.mark.parametrize("change", [{"alpha": 0}, {"alpha": 1}, {"looks": 0}, {"min_slice": 1}])
def test_levels_that_mean_nothing_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"gate\.{next(iter(change))}"):
        config.parse({"recipe": {}, "gate": GATE.model_dump(mode="json") | change})


def _width(check: Check) -> float:
    assert check.low is not None
    assert check.high is not None
    return check.high - check.low
