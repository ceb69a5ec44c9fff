"""Effects against scipy and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from rft.drift import effects

COUNTS = arrays.arrays(np.int64, 8, elements=st.integers(0, 50)).filter(lambda counts: counts.sum() > 0)


@given(COUNTS, COUNTS)
def test_effects_are_no_less_than_nothing_and_nothing_between_equals(a: Any, b: Any) -> None:
    places = np.arange(8)
    for effect in (effects.total_variation, effects.psi, lambda x, y: effects.wasserstein(x, y, places)):
        assert effect(a, b) >= 0
        assert effect(a, a) == 0
        assert effect(a, b) == pytest.approx(effect(b, a))
    assert effects.total_variation(a, b) <= 1


@pytest.mark.slow
@given(COUNTS, COUNTS, st.lists(st.floats(-100, 100), min_size=8, max_size=8, unique=True).map(sorted))
def test_wasserstein_is_scipys(a: Any, b: Any, places: list[float]) -> None:
    assert effects.wasserstein(a, b, places) == pytest.approx(
        stats.wasserstein_distance(places, places, a, b), abs=1e-9
    )


def test_total_variation_is_the_part_that_moved() -> None:
    assert effects.total_variation([50, 50, 0], [50, 20, 30]) == pytest.approx(0.3)


def test_psi_of_the_textbook() -> None:
    # Half and half against 0.7 and 0.3: (0.2) ln(0.7/0.5) + (-0.2) ln(0.3/0.5)
    assert effects.psi([50_000, 50_000], [70_000, 30_000]) == pytest.approx(
        0.2 * np.log(1.4) - 0.2 * np.log(0.6), rel=1e-3
    )


@given(arrays.arrays(np.int64, (3, 8), elements=st.integers(0, 50)), st.integers(1, 12))
def test_quantile_bins_lose_no_count_and_keep_the_order(counts: Any, num_bins: int) -> None:
    new = effects.equal_bins(counts[0], num_bins)
    assert effects.joined(counts, new, int(new.max()) + 1).sum(axis=-1) == pytest.approx(counts.sum(axis=-1))
    assert list(new) == sorted(new)
    assert new.max() < num_bins


def test_quantile_bins_hold_equal_counts() -> None:
    new = effects.equal_bins(np.full(100, 7), 10)
    assert list(effects.joined(np.full(100, 7), new, 10)) == [70.0] * 10


def test_the_place_of_a_bin_is_its_middle() -> None:
    assert list(effects.positions([1.0, 2.0, 4.0])) == [0.5, 1.5, 3.0, 5.0]
    assert list(effects.positions([1.0])) == [0.5, 1.5]
