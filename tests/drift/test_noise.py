"""Does chance alone stay within what the draws say? With users who resemble themselves, with rare
values, and with a long window against a short one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rft.drift import effects, noise, owners
from rft.drift.noise import Side
from rft.drift.owners import Owners
from rft.reports import Feature
from rft.traffic.schema import GROUPS

SHARES = 1 / np.arange(1, 41) / (1 / np.arange(1, 41)).sum()


def drawn(rng: np.random.Generator, num_users: int, alike: float, per_user: int = 10) -> Side:
    """Words of so many users, each of whom says one favorite word in a share `alike`."""
    favorite_U = rng.choice(len(SHARES), num_users, p=SHARES)
    word_UC = rng.choice(len(SHARES), (num_users, per_user), p=SHARES)
    word_UC = np.where(rng.random(word_UC.shape) < alike, favorite_U[:, None], word_UC)
    groups_U = rng.integers(0, GROUPS, num_users)
    place = (groups_U[:, None] * len(SHARES) + word_UC).ravel()
    cells_GB = np.bincount(place, minlength=GROUPS * len(SHARES)).reshape(GROUPS, len(SHARES)).astype(np.float64)
    return Side(cells_GB.sum(axis=0), cells_GB[cells_GB.sum(axis=1) > 0])


def p_of(reference: Side, current: Side, seed: int = 0, join: bool = True) -> float:
    if join:
        bin_B = noise.dense_bins(reference, current)
        reference, current = reference.joined(bin_B), current.joined(bin_B)
    drawn_DB = noise.null_draws(reference, current, 400, np.random.default_rng(seed))
    null_D = 0.5 * np.abs(drawn_DB[0] - drawn_DB[1]).sum(axis=1)
    return noise.p_value(float(effects.total_variation(reference.counts_B, current.counts_B)), null_D)


def test_a_p_value_is_never_nothing() -> None:
    assert noise.p_value(2.0, np.zeros(99)) == pytest.approx(0.01)
    assert noise.p_value(0.0, np.zeros(99)) == 1.0


@pytest.mark.parametrize(
    ("num_reference", "num_current", "alike"),
    [(100, 100, 0.0), (100, 100, 0.6), (40, 40, 0.6), (2000, 60, 0.0), (2000, 60, 0.6)],
)
def test_chance_alone_is_called_at_the_rate_that_p_says(num_reference: int, num_current: int, alike: float) -> None:
    rng = np.random.default_rng(1)
    p_values = np.array([p_of(drawn(rng, num_reference, alike), drawn(rng, num_current, alike)) for _ in range(150)])
    # A short window beside a long one: the stretch of rare values errs on the safe side.
    assert 0.01 <= np.mean(p_values < 0.1) <= 0.17
    assert 0.38 <= np.mean(p_values) <= 0.7


def test_dependence_on_one_side_only_is_measured_there() -> None:
    """R17: the design effect of the window alone said nothing of a long reference by few users."""
    rng = np.random.default_rng(2)
    p_values = [p_of(drawn(rng, 1000, 0.0), drawn(rng, 50, 0.8)) for _ in range(60)]
    p_values += [p_of(drawn(rng, 50, 0.8), drawn(rng, 1000, 0.0)) for _ in range(60)]
    assert 0.02 <= np.mean(np.array(p_values) < 0.1) <= 0.19


def test_without_groups_users_who_repeat_themselves_cry_wolf() -> None:
    rng = np.random.default_rng(3)
    sides = [(drawn(rng, 60, 0.8), drawn(rng, 60, 0.8)) for _ in range(40)]
    alone = [p_of(Side(a.counts_B, None), Side(b.counts_B, None)) for a, b in sides]
    assert np.mean(np.array(alone) < 0.1) > 0.8
    half = [p_of(Side(a.counts_B, None), b) for a, b in sides]
    assert np.mean(np.array(half) < 0.1) < 0.3


def test_a_real_shift_is_seen() -> None:
    rng = np.random.default_rng(4)
    reference, current = drawn(rng, 100, 0.3), drawn(rng, 100, 0.3)
    assert current.cells_GB is not None
    moved = Side(np.roll(current.counts_B, 1), np.roll(current.cells_GB, 1, axis=1))
    assert p_of(reference, moved) < 0.01


def test_rare_values_are_joined_and_others_are_not() -> None:
    counts_B = np.array([500.0, 480, 3, 2, 3, 1, 2, 2, 3, 2])
    bin_B = noise.dense_bins(Side(counts_B, None), Side(counts_B, None))
    assert list(bin_B[:2]) == [0, 1]
    joint_B = effects.joined(counts_B, bin_B, int(bin_B.max()) + 1)
    assert joint_B.min() >= noise.EXPECTED
    assert joint_B.sum() == counts_B.sum()


def test_a_value_that_only_a_short_window_has_stands_alone() -> None:
    long_B, short_B = np.array([9000.0, 1000, 0, 5]), np.array([200.0, 20, 80, 0])
    bin_B = noise.dense_bins(Side(long_B, None), Side(short_B, None))
    assert np.count_nonzero(bin_B == bin_B[2]) == 1


def test_where_names_were_lost_rare_values_join_the_rest() -> None:
    counts_B = np.array([500.0, 480, 3, 2, 90])
    bin_B = noise.dense_bins(Side(counts_B, None), Side(counts_B, None), rest=4)
    assert bin_B[2] == bin_B[3] == bin_B[4]


def test_a_short_window_that_met_less_than_expected_is_no_alarm() -> None:
    """One error among 300 where eight were expected: its own residuals say that nothing varies."""
    rng = np.random.default_rng(5)
    p_values: list[float] = []
    for _ in range(200):
        sides: list[Side] = []
        for size in (10_000, 300):
            cells = np.bincount(rng.integers(0, GROUPS, size) * 2 + (rng.random(size) < 0.025), minlength=2 * GROUPS)
            cells_GB = cells.reshape(GROUPS, 2).astype(np.float64)
            sides.append(Side(cells_GB.sum(axis=0), cells_GB[cells_GB.sum(axis=1) > 0]))
        p_values.append(p_of(sides[0], sides[1]))
    assert np.mean(np.array(p_values) < 0.02) <= 0.045


def test_cumulative_draws_are_the_sums_of_draws() -> None:
    rng = np.random.default_rng(6)
    reference, current = drawn(rng, 3000, 0.0), drawn(rng, 3000, 0.0)
    plain = noise.null_draws(reference, current, 50, np.random.default_rng(0))[0]
    summed = noise.null_draws(reference, current, 50, np.random.default_rng(0), cumulative=True)[0]
    assert np.abs(np.cumsum(plain, axis=1) - summed).max() < 0.003
    assert summed[:, -1] == pytest.approx(1.0)


def test_the_design_effect_of_users_is_how_much_they_repeat() -> None:
    rng = np.random.default_rng(7)
    alone, same = drawn(rng, 5000, 0.0, 1), drawn(rng, 5000, 1.0, 4)
    for side, expected in ((alone, 1.0), (same, 4.0)):
        assert noise.design_effect(side, effects.shares(side.counts_B)) == pytest.approx(expected, rel=0.2)


def test_cells_are_read_as_they_were_written() -> None:
    matrix: Any = np.zeros((GROUPS, 3), dtype=np.int64)
    matrix[5], matrix[200] = [0, 2, 7], [1, 0, 0]
    cells = owners.cells_of(matrix)
    assert (cells[5], cells[200], cells[0]) == ([1, 2, 2, 7], [0, 1], [])
    feature = Feature(
        kind="category", group="input", statistic="total_variation", values=["a", "b", "c"], counts=[1, 2, 7],
        cells=cells, n=10,
    )  # fmt: skip
    assert (owners.matrix(feature.cells, len(feature.counts)) == matrix).all()
    assert noise.side(feature).num_groups == 2


def test_draws_are_the_same_whatever_the_order_of_adding() -> None:
    """Sums of whole numbers are exact, so a permuted order of groups changes no bit but the
    signs'."""
    rng = np.random.default_rng(8)
    reference, current = drawn(rng, 300, 0.2), drawn(rng, 300, 0.2)
    once, again = (noise.null_draws(reference, current, 100, np.random.default_rng(1)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(once, again, strict=True))


# -- days ------------------------------------------------------------------------------------------
def by_days(rng: np.random.Generator, num_days: int, differ: float, per_day: int = 200) -> Side:
    """Conversations of a category, each of a user of its own. A day is busy with one value."""
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    busy_T = rng.choice(4, num_days)
    day_N = np.repeat(np.arange(num_days), per_day)
    value_N = np.where(rng.random(len(day_N)) < differ, busy_T[day_N], rng.choice(4, len(day_N), p=shares))
    counts_RB = Owners(rng.integers(0, GROUPS, len(day_N)), day_N).count(value_N, 4)
    fields = owners.fields(counts_RB)
    return noise.side(Feature(kind="category", group="input", statistic="total_variation", n=len(day_N), **fields))


def blind(side: Side) -> Side:
    return Side(side.counts_B, side.cells_GB)


def test_what_differs_between_days_is_no_drift() -> None:
    rng = np.random.default_rng(8)
    pairs = [(by_days(rng, 14, 0.15), by_days(rng, 7, 0.15)) for _ in range(60)]
    assert np.mean([p_of(reference, current) < 0.02 for reference, current in pairs]) <= 0.1
    assert np.mean([p_of(blind(reference), blind(current)) < 0.02 for reference, current in pairs]) > 0.4


def test_days_that_are_alike_cost_little() -> None:
    rng = np.random.default_rng(9)
    factors = [noise.day_factor(by_days(rng, 14, 0.0)) for _ in range(40)]
    assert 1.0 <= np.mean(factors) < 1.15
    assert noise.day_factor(by_days(rng, 14, 0.3)) > 2


def test_a_shift_beyond_what_days_do_is_seen() -> None:
    rng = np.random.default_rng(10)
    reference, current = by_days(rng, 14, 0.05), by_days(rng, 7, 0.05)
    assert current.cells_GB is not None
    moved = Side(current.counts_B[::-1], current.cells_GB[:, ::-1], current.days_TB)
    assert p_of(reference, moved) < 0.01


def test_one_day_is_allowed_more_than_a_month() -> None:
    rng = np.random.default_rng(11)
    reference = by_days(rng, 28, 0.2)
    spreads: list[float] = []
    for num_days in (1, 28):
        current = by_days(rng, num_days, 0.2, 5600 // num_days)
        assert current.of_one_day == pytest.approx(1 / num_days)
        drawn_DB = noise.null_draws(reference, current, 300, np.random.default_rng(0))[1]
        spreads.append(float(drawn_DB.std(axis=0).mean()))
    assert spreads[0] > 3 * spreads[1]


def test_a_few_days_measure_nothing() -> None:
    rng = np.random.default_rng(12)
    assert not noise.day_variance(by_days(rng, noise.MIN_DAYS - 1, 0.3)).any()
    assert noise.day_variance(by_days(rng, noise.MIN_DAYS, 0.3)).any()
