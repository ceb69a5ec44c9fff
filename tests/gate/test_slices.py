"""The veto of a slice: a loss that is shown rejects, luck does not, what is too small is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_recipe

from rft import __main__ as stages
from rft import config, reports
from rft.errors import UserError
from rft.gate import pool, slices
from rft.reports import Arm, Check, Evaluation, Row, wording
from rft.stages import examples
from tasks.runs import engine
from tests import sample_reports
from tests.sick_agents import examine

GATE = sample_reports.GATE
Rewards = dict[str, list[float | None]]
"""Slice -> the reward of each of its examples, with one rollout."""


def arm(name: str, rewards: Rewards) -> Arm:
    rows = [
        Row(
            example_id=f"{slice}-{number}",
            slice=slice,
            rewards=[reward],
            scores=[reward],
            solved=[None if reward is None else reward == 1],
            tool_calls=[1],
            tokens=[10],
            stop_reasons=["completed"],
        )
        for slice, some in rewards.items()
        for number, reward in enumerate(some)
    ]
    facts = {"metrics": {}, "max_at_k": [], "shares": {}, "stop_reasons": {}, "tool_calls": {}}
    one = Evaluation(name=name, temperature=1.0, k=1, examples_sha256="", unscored=0, rows=rows, **facts)
    return Arm.model_validate({"name": name, "prompt_sha256": "", "weights_sha256": "", "sampled": one, "greedy": one})


def judged(new: Rewards, old: Rewards, min_slice: int = 20, max_slice_loss: float = 0.05) -> list[Check]:
    gate = GATE.model_copy(update={"min_slice": min_slice, "max_slice_loss": max_slice_loss})
    return list(slices.vetoes(gate, arm("challenger", new), arm("champion", old)))


def scattered(size: int, mean: float, seed: int = 0) -> list[float | None]:
    """Rewards that differ by example, with exactly this mean."""
    noise = np.random.default_rng(seed).normal(0, 0.1, size)
    return [float(x) for x in mean + noise - noise.mean()]


# -- what rejects ----------------------------------------------------------------------------------
def test_a_loss_that_is_shown_rejects_and_one_that_is_not_stays_open() -> None:
    old: Rewards = {name: scattered(80, 0.6, seed) for seed, name in enumerate("abc")}
    new: Rewards = {"a": scattered(80, 0.3, 7), "b": scattered(80, 0.55, 8), "c": scattered(80, 0.9, 9)}
    a, b, c = judged(new, old)
    assert [check.passed for check in (a, b, c)] == [False, None, True]
    assert not b.is_unsettled
    assert wording.describe(a).startswith("slice a: failed, -0.300 [")
    assert wording.describe(a).endswith("Holm over 3)")


def test_a_loss_that_one_slice_shows_is_none_among_ten() -> None:
    """Holm: the more slices are looked at, the more each must show."""
    names = [f"s{number}" for number in range(10)]
    old: Rewards = {name: scattered(40, 0.6, seed) for seed, name in enumerate(names)}
    new: Rewards = {name: scattered(40, 0.6, 20 + seed) for seed, name in enumerate(names)}
    new["s0"] = scattered(40, 0.44, 20)
    (alone,) = judged({"s0": new["s0"]}, {"s0": old["s0"]})
    first = judged(new, old)[0]
    assert (alone.passed, first.passed) == (False, None)
    assert alone.value == first.value


@pytest.mark.parametrize("size", [2, 5, 12])
def test_a_handful_that_agrees_by_chance_shows_nothing(size: int) -> None:
    """All of them lost the same, so that a t test would be certain."""
    (check,) = judged({"a": [0.8] * size}, {"a": [1.0] * size}, min_slice=2)
    assert check.passed is None
    assert check.low is not None
    assert check.high is not None
    assert check.low < -0.2 < check.high


def test_equal_policies_on_binary_rewards_are_hardly_ever_rejected() -> None:
    """The essay's measurement in small: the plain t test rejects 6 % of slices of two."""
    rng = np.random.default_rng(0)
    for size in (2, 3, 8, 30):
        gains = rng.integers(0, 2, (2000, size)) - rng.integers(0, 2, (2000, size)).astype(float)
        assert np.mean([slices.test(row, 0.05).p <= 0.025 for row in gains]) <= 0.01


def test_a_slice_without_a_score_holds_the_promotion_up() -> None:
    """Nothing was measured, so nothing can be said of it."""
    a, b = judged({"a": [None] * 20, "b": scattered(30, 0.9)}, {"a": [0.5] * 20, "b": scattered(30, 0.5)})
    assert (a.passed, a.value, a.is_unsettled) == (None, None, True)
    assert "no example has a score in both arms" in a.detail
    assert b.passed
    assert "Holm" not in b.detail  # one slice is tested


# -- how many it takes -----------------------------------------------------------------------------
@pytest.mark.slow
def test_the_size_that_is_printed_shows_a_loss_of_twice_the_margin_in_four_of_five() -> None:
    rng = np.random.default_rng(3)
    size = slices.needed(0.3, 0.05, 0.0025)
    assert size is not None
    lost = [slices.test(rng.normal(-0.1, 0.3, size), 0.05).p <= 0.0025 for _ in range(2000)]
    assert np.mean(lost) == pytest.approx(0.8, abs=0.03)
    fewer = [slices.test(rng.normal(-0.1, 0.3, size // 2), 0.05).p <= 0.0025 for _ in range(500)]
    assert np.mean(fewer) < 0.6


def test_the_loss_that_is_printed_as_visible_is_shown_in_four_of_five() -> None:
    rng = np.random.default_rng(4)
    beyond = slices.detectable(60, 0.3, 0.05, 0.0025)
    assert beyond is not None
    lost = [slices.test(rng.normal(-0.05 - beyond, 0.3, 60), 0.05).p <= 0.0025 for _ in range(2000)]
    assert np.mean(lost) == pytest.approx(0.8, abs=0.03)
    size = slices.needed(0.3, 0.05, 0.0025)
    assert size is not None
    assert slices.detectable(size, 0.3, 0.05, 0.0025) == pytest.approx(0.05, abs=0.001)  # of twice the margin


def test_two_examples_show_not_even_the_loss_of_everything() -> None:
    assert slices.detectable(2, 0.3, 0.05, 0.0025) is None


def test_no_size_shows_a_loss_of_nothing() -> None:
    assert slices.needed(0.3, 0.0, 0.025) is None
    (check,) = judged({"a": scattered(40, 0.6, 1)}, {"a": scattered(40, 0.6)}, max_slice_loss=0.0)
    assert "slice a (40 examples, no number would do)" in wording.unprotected([check])


def test_what_is_too_small_to_be_protected_is_named() -> None:
    old: Rewards = {"a": scattered(30, 0.6), "b": scattered(600, 0.6, 1)}
    a, b = judged({"a": scattered(30, 0.58, 2), "b": scattered(600, 0.62, 3)}, old)
    assert a.needed_for_veto is not None
    assert a.n < a.needed_for_veto
    assert b.passed
    message = wording.unprotected([a, b])
    assert f"slice a (30 examples, {a.needed_for_veto:,} needed)" in message
    assert "slice b" not in message
    assert wording.unprotected([b]) == ""
    question = b.model_copy(update={"name": "mean reward", "kind": "superiority", "passed": True})
    assert wording.reason("promote", "challenger", [question, a, b]).endswith(
        "the other 1 check passed; no loss beyond the margin is shown in slice a; too small to be protected: slice a"
    )


# -- the pool --------------------------------------------------------------------------------------
def test_small_slices_are_judged_together() -> None:
    old: Rewards = {"a": scattered(30, 0.6), "b": scattered(19, 0.6, 1), "c": scattered(5, 0.6, 2)}
    new: Rewards = {"a": scattered(30, 0.9, 3), "b": scattered(19, 0.1, 4), "c": scattered(5, 0.1, 5)}
    a, pooled = judged(new, old)
    assert (a.name, pooled.name, pooled.n, pooled.passed) == ("slice a", "small slices", 24, False)
    assert pooled.detail.startswith("together b (19), c (5); 24 examples x 1 rollout")


def test_a_single_small_slice_keeps_its_name() -> None:
    assert [one.name for one in pool.judged({"a": 30, "b": 4}, 20)] == ["slice a", "slice b"]
    assert [one.name for one in pool.judged({"all": 12}, 20)] == ["slice all"]


@pytest.mark.slow
def test_a_slice_of_one_is_an_error_wherever_the_examples_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tiny_recipe.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    source = (made / "examples.py").read_text()
    alone = source.replace('"even" if number % 2 == 0', '"lonely" if number == 4')
    assert alone != source
    (made / "examples.py").write_text(alone)
    sizes = {"train": 20, "validation": 10, "test": 2000}  # all there are, so that the lonely one is among them
    params = tiny_recipe.params(made, examples=sizes)
    message = r"slice 'lonely' has 1 test example, and no other slice has fewer than gate\.min_slice = 20 .* or raise "
    with pytest.raises(UserError, match=message + r"gate\.min_slice above 1,999 examples\."):
        examples.run(params)
    assert not (tmp_path / "data/examples").exists()
    found = examine(params, "recipe")["recipe"]
    assert found.status == "fail"
    assert "slice 'lonely' has 1 test example" in found.words
    (tmp_path / "params.yaml").write_text(json.dumps(params.model_dump(mode="json", by_alias=True)))
    report = reports.ExamplesReport(
        source="recipe", counts={"test": 2000}, sha256={}, leakage={}, slices={"test": {"lonely": 1, "odd": 1999}}
    )
    reports.write(report, tmp_path / "data/examples/report.json")
    engine.write(tmp_path, config.Recipe(path=str(made)), tmp_path / "state")
    assert stages.main(["gate"]) == 2
    assert "slice 'lonely' has 1 test example" in capsys.readouterr().err
