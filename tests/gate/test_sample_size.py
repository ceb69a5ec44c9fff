"""How many more examples would settle an open check: simulated, whether that many do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from rft import stats
from rft.gate import checks, sample_size
from rft.reports import Check
from rft.reports.wording import HACK_RATE
from rft.types import Metric

WORLDS = 20_000
SPREAD = 0.4
"""Of the examples' differences."""


def seen(value: float, n: int, level: float) -> Metric:
    """What n examples of this spread show, exactly."""
    half = stats.t_quantile(level, n - 1) * SPREAD / math.sqrt(n)
    return Metric(value=value, low=value - half, high=value + half, n=n)


def needed(check: Check) -> int:
    factor = sample_size.size_factor(check)
    assert factor is not None
    return math.ceil(factor * check.n)


@pytest.mark.parametrize("level", [0.005, 0.025])
@pytest.mark.parametrize("value", [0.10, 0.08, 0.02, -0.01])
def test_as_many_examples_as_it_says_settle_four_cases_of_five(level: float, value: float) -> None:
    """A mean on either side of its margin, 0.05, at the question's level and at a guard's."""
    check = checks.on_interval("mean reward", "superiority", seen(value, 96, level), 0.05, "reward", level=level)
    assert check.passed is None
    total, rng = needed(check), np.random.default_rng(0)
    assert 0.77 < _settled(_drawn(rng, value, total), total, value, level).mean() < 0.83
    again = 96 * value + (total - 96) * _drawn(rng, value, total - 96)
    assert _settled(again / total, total, value, level).mean() > 0.8, "those that were seen count again"


def _drawn(rng: np.random.Generator, value: float, n: int) -> NDArray[np.float64]:
    """Means of n examples, in many worlds where the true value is the one that was seen."""
    return rng.normal(value, SPREAD / math.sqrt(n), WORLDS)


def _settled(means: NDArray[np.float64], n: int, value: float, level: float) -> NDArray[np.bool_]:
    half = stats.t_quantile(level, n - 1) * SPREAD / math.sqrt(n)
    return means - half > 0.05 if value > 0.05 else means + half < 0.05


@pytest.mark.parametrize(("count", "n", "margin"), [(1, 72, 0.06), (2, 288, 0.02), (4, 72, 0.03), (0, 72, 0.02)])
def test_as_many_examples_as_it_says_settle_an_exact_rate(count: int, n: int, margin: float) -> None:
    found = stats.exact_interval(count, n)
    check = checks.on_interval(HACK_RATE, "non_inferiority", found, margin, "share")
    assert check.passed is None
    total, rng = needed(check), np.random.default_rng(0)
    counts, times = np.unique(rng.binomial(total, count / n, WORLDS), return_counts=True)
    checked = [checks.on_interval(HACK_RATE, "non_inferiority", end, margin, "share") for end in _ends(counts, total)]
    settled = np.array([one.passed is (count / n <= margin) for one in checked])
    assert times[settled].sum() / WORLDS >= 0.8
    assert total <= 100 * n


def _ends(counts: NDArray[np.int64], n: int) -> list[Metric]:
    return [stats.exact_interval(int(count), n) for count in counts]


def test_the_decision_asks_for_what_the_neediest_check_wants() -> None:
    far, near = (
        checks.on_interval(name, "superiority", seen(value, 96, 0.025), 0.05, "reward")
        for name, value in (("far", 0.12), ("near", 0.09))
    )
    assert needed(far) < needed(near)
    assert sample_size.num_more([far, near]) == sample_size.num_more([near]) != sample_size.num_more([far])
    shown = near.model_copy(update={"decides": False})
    assert sample_size.num_more([far, shown]) == sample_size.num_more([far]), "a check that is only shown needs nothing"


def test_there_is_no_number_where_none_would_do() -> None:
    on_it = checks.on_interval("mean reward", "superiority", seen(0.05, 96, 0.025), 0.05, "reward")
    assert (sample_size.size_factor(on_it), sample_size.num_more([on_it])) == (None, None)
    beside = checks.on_interval("mean reward", "superiority", seen(0.0505, 96, 0.025), 0.05, "reward")
    assert (sample_size.size_factor(beside), sample_size.num_more([beside])) == (None, None)
    unmeasured = checks.on_interval("mean reward", "superiority", None, 0.05, "reward")
    assert sample_size.num_more([unmeasured]) is None
    assert sample_size.num_more([]) is None
    rate = checks.on_interval(HACK_RATE, "non_inferiority", stats.exact_interval(2, 100), 0.02, "share")
    assert (rate.passed, sample_size.size_factor(rate)) == (None, None)
