"""Intervals that cover what they promise, do not depend on order, and agree with brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import stats

SCORES = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=5)
ROWS = st.lists(SCORES, min_size=1, max_size=8).filter(lambda rows: any(x is not None for row in rows for x in row))
FULL = st.lists(st.lists(st.floats(-1, 1, allow_nan=False, width=32), min_size=1, max_size=5), min_size=1, max_size=6)
QUICK = {"num": 200}


def test_an_unscored_rollout_is_left_out_and_never_a_zero() -> None:
    found = stats.mean_interval([[1.0, None], [None, None], [0.0, 1.0]])
    assert found.value == 0.75
    assert found.n == 2


def test_every_example_weighs_the_same_however_many_of_its_rollouts_are_scored() -> None:
    assert stats.mean_interval([[1.0], [0.0, 0.0, 0.0]]).value == 0.5


def test_nothing_scored_is_an_error_and_not_a_number() -> None:
    with pytest.raises(ValueError, match="no example has a score"):
        stats.mean_interval([[None], [None]])


@settings(max_examples=25)
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_examples_and_rollouts_changes_no_bit(rows: list[list[float | None]], random: object) -> None:
    shuffled = [list(row) for row in rows]
    for row in shuffled:
        random.shuffle(row)  # type: ignore[attr-defined]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert stats.mean_interval(shuffled, **QUICK) == stats.mean_interval(rows, **QUICK)
    assert stats.quantile_interval(shuffled, 0.95, **QUICK) == stats.quantile_interval(rows, 0.95, **QUICK)


@settings(max_examples=25)
@given(ROWS)
def test_an_interval_holds_its_value_and_stays_within_what_was_observed(rows: list[list[float | None]]) -> None:
    found = stats.quantile_interval(rows, 0.5, **QUICK)
    seen = {x for row in rows for x in row if x is not None}
    assert {found.value, found.low, found.high} <= seen
    assert found.low <= found.value <= found.high  # type: ignore[operator]


@settings(max_examples=25)
@given(FULL)
def test_the_gain_of_the_other_arm_is_the_opposite(rows: list[list[float]]) -> None:
    a = {str(i): row for i, row in enumerate(rows)}
    b = {str(i): row[::-1][:3] for i, row in enumerate(reversed(rows))}
    there, back = stats.paired_gain(a, b, num=4000), stats.paired_gain(b, a, num=4000)
    assert there.value == pytest.approx(-back.value)
    width = max(there.high - there.low, 1e-6)  # type: ignore[operator]
    assert there.low == pytest.approx(-back.high, abs=0.2 * width)  # type: ignore[operator]
    assert there.high == pytest.approx(-back.low, abs=0.2 * width)  # type: ignore[operator]


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    rows = np.random.default_rng(1).random((20, 4)).tolist()
    assert stats.mean_interval(rows, seed=3) == stats.mean_interval(rows, seed=3)
    assert stats.mean_interval(rows, seed=3) != stats.mean_interval(rows, seed=4)


def test_arms_on_different_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="same examples; 2 are in one only"):
        stats.paired_gain({"a": [1.0], "b": [1.0]}, {"a": [1.0], "c": [1.0]})


# -- coverage --------------------------------------------------------------------------------------
def _covered(intervals: list[stats.Metric], truth: float) -> float:
    return sum(one.low <= truth <= one.high for one in intervals) / len(intervals)  # type: ignore[operator]


def test_the_interval_of_a_mean_covers_about_as_often_as_it_says() -> None:
    """Rollouts that differ as much as examples do: the naive two-level bootstrap would cover about
    98 % here."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(400):
        ease = rng.beta(2, 2, 40)
        found.append(
            stats.mean_interval((rng.random((40, 4)) < ease[:, None]).astype(float).tolist(), num=400, seed=seed)
        )
    assert 0.92 <= _covered(found, 0.5) <= 0.975


def test_pairing_takes_the_difficulty_of_examples_out() -> None:
    rng = np.random.default_rng(1)
    paired, alone = [], []
    for seed in range(200):
        ease = rng.beta(1, 1, 40) * 0.8
        a, b = (
            {str(i): (rng.random(4) < p).astype(float).tolist() for i, p in enumerate(ease + gain)}
            for gain in (0.2, 0.0)
        )
        paired.append(stats.paired_gain(a, b, num=400, seed=seed))
        alone.append(stats.mean_interval(a.values(), num=400, seed=seed))
    assert 0.91 <= _covered(paired, 0.2) <= 0.985
    assert np.mean([x.high - x.low for x in paired]) < 1.3 * np.mean([x.high - x.low for x in alone])  # unpaired: 1.41


def test_examples_are_shared_by_all_seeds_so_more_seeds_do_not_hide_their_spread() -> None:
    rng = np.random.default_rng(2)
    gains = rng.normal(0.3, 0.2, 60)
    arms = ({str(i): [0.5 + g] for i, g in enumerate(gains)}, {str(i): [0.5] for i in range(60)})
    one, many = stats.gain_over_seeds([arms]), stats.gain_over_seeds([arms] * 6)
    assert many.value == pytest.approx(one.value)
    assert many.high - many.low == pytest.approx(one.high - one.low, rel=0.1)  # type: ignore[operator]
    assert many.n == 360


def test_a_seed_that_fails_widens_the_interval_over_seeds() -> None:
    base = {str(i): [0.2] for i in range(30)}
    good, bad = ({key: [0.2 + gain] for key in base} for gain in (0.4, 0.0))
    steady, shaky = (
        stats.gain_over_seeds([(good, base)] * 3),
        stats.gain_over_seeds([(good, base), (good, base), (bad, base)]),
    )
    assert steady.low == pytest.approx(0.4)
    assert shaky.low is not None
    assert shaky.low < 0.05


# -- quantiles, ratios, shares ---------------------------------------------------------------------
def test_a_percentile_of_counts_is_a_count() -> None:
    assert stats.percentile([1, 2, 3, 9], 0.95) == 9
    assert stats.percentile(range(1, 101), 0.95) == 95
    assert stats.percentile([4], 0.0) == 4


def test_the_difference_of_quantiles_and_the_ratio_of_means() -> None:
    a = {str(i): [2.0, 3.0, 4.0] for i in range(20)}
    b = {str(i): [4.0, 6.0, 8.0] for i in range(20)}
    calls = stats.quantile_difference(a, b, 0.95)
    assert (calls.value, calls.low, calls.high) == (-4, -4, -4)
    assert stats.relative_difference(a, b).value == pytest.approx(-0.5)
    with pytest.raises(ValueError, match="mean of zero"):
        stats.relative_difference(a, {key: [0.0] for key in a})


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(0, 288, 0, 0.012727), (1, 288, 0.0000879, 0.019193), (48, 48, 0.926027, 1), (3, 10, 0.066740, 0.652453)],
)
def test_an_exact_interval_is_clopper_and_pearson_s(count: int, n: int, low: float, high: float) -> None:
    """R1. From the definition: under each end, so many or so few happen with probability 2.5 %."""
    found = stats.exact_interval(count, n)
    assert (found.value, found.n) == (count / n, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))

    def fewer(share: float) -> float:
        return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(count + 1))

    assert count == n or fewer(found.high or 0) == pytest.approx(0.025)


def test_none_of_a_hundred_is_not_certainly_none() -> None:
    assert stats.limit_of_none(100) == stats.exact_interval(0, 100).high == pytest.approx(0.0362, abs=0.0001)
    for bad in ((1, 0), (0, 0), (-1, 5), (6, 5)):
        with pytest.raises(ValueError, match="is not a share"):
            stats.exact_interval(*bad)


@pytest.mark.parametrize(
    ("share", "n"), [(0.02, 183), (0.0128, 287), (0.5, 6), (0.99, 1), (1.0, 1), (0.0, None), (1e-9, 3688879453)]
)
def test_how_many_examples_rule_a_share_out(share: float, n: int | None) -> None:
    """R1: the least of which none says so."""
    assert stats.enough_to_rule_out(share) == n
    if n is not None and n > 1 and share > 1e-6:
        assert stats.limit_of_none(n) <= share < stats.limit_of_none(n - 1)


def test_shares_of_examples() -> None:
    found = stats.shares([[True, True], [False, None], [True, False], [False, False], [None]])
    assert found == {"always_failed": 0.5, "always_solved": 0.25, "mixed": 0.25}


# -- best of k -------------------------------------------------------------------------------------
@settings(max_examples=50)
@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=6))
def test_best_of_k_is_the_mean_over_all_choices(scores: list[float]) -> None:
    for k, value in stats.max_at_k([scores], range(1, len(scores) + 1)):
        brute = [max(choice) for choice in itertools.combinations(scores, k)]
        assert value == pytest.approx(sum(brute) / len(brute))


@settings(max_examples=50)
@given(ROWS)
def test_best_of_k_never_falls_and_ends_at_the_best(rows: list[list[float | None]]) -> None:
    curve = [value for _, value in stats.max_at_k(rows, range(1, 7))]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(curve))
    best = [max(scores) for row in rows if (scores := [x for x in row if x is not None])]
    assert curve[-1] == pytest.approx(sum(best) / len(best))
    assert curve[0] == pytest.approx(stats.mean_interval(rows, **QUICK).value)


def test_the_detectable_effect_is_found_with_the_power_that_it_claims() -> None:
    rng = np.random.default_rng(5)
    effect = stats.minimum_detectable(0.1)
    assert effect == pytest.approx(0.28, abs=0.001)
    assert np.mean(rng.normal(effect, 0.1, 20000) > 1.96 * 0.1) == pytest.approx(0.8, abs=0.02)


# -- example means alone ---------------------------------------------------------------------------
def test_student_s_interval_is_that_of_the_tables() -> None:
    """Nine values of mean 0 and standard error 1: the 97.5 % quantile of 8 degrees of freedom is
    2.306."""
    values = np.array([-1.0, 0.0, 1.0] * 3) * 3 / math.sqrt(0.75)
    low, high = stats.t_interval(values)
    assert (low, high) == (pytest.approx(-2.306, abs=0.001), pytest.approx(2.306, abs=0.001))
    assert stats.t_below(values, 2.306) == pytest.approx(0.025, abs=1e-4)
    assert stats.t_below(values, 0.0) == pytest.approx(0.5)


def test_a_gain_by_example_means_is_paired_and_leaves_the_unscored_out() -> None:
    a, b = {"x": [1.0, None], "y": [0.5], "z": [None]}, {"x": [0.0], "y": [0.5, 0.5], "z": [1.0]}
    found = stats.t_gain(a, b)
    assert (found.value, found.n) == (0.5, 2)
    assert stats.paired_differences(a, b).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="two arms must hold the same examples"):
        stats.t_gain(a, {"x": [0.0]})
    with pytest.raises(ValueError, match="no example has a score"):
        stats.t_gain({"x": [None]}, {"x": [1.0]})


def test_differences_without_spread_are_certain() -> None:
    assert stats.t_below(np.array([-0.1, -0.1]), 0.0) == 0
    assert stats.t_below(np.array([0.1, 0.1]), 0.1) == 1


def test_holm_s_steps() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []
