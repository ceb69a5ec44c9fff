"""Adaptive bins and exact sums: the same for any split of the rows, fine enough for any scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rft.drift import bins, owners
from rft.drift.bins import MAX_BINS, Histogram, Moments, on_common_edges
from rft.drift.owners import Owners
from rft.reports import Feature
from rft.traffic.schema import GROUPS

NUMBERS = st.lists(
    st.one_of(
        st.floats(-bins.LIMIT, bins.LIMIT, exclude_min=True, exclude_max=True, width=64),
        st.integers(-5, 3000).map(float),
        st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e-300, 2.0**-120, 2.0**-121, 1.7e9]),
    ),
    max_size=300,
)


def histogram(numbers: Sequence[float], groups: Sequence[int] | None = None) -> Histogram:
    found = Histogram()
    array = np.array(numbers, dtype=np.float64)
    group_N = np.zeros(len(array), np.int64) if groups is None else np.asarray(groups, dtype=np.int64)
    found.add(array, Owners(group_N, group_N % 7))
    return found


def feature(numbers: Sequence[float]) -> Feature:
    edges, counts_RB = histogram(numbers).on_edges()
    bare = Feature(kind="numeric", group="input", statistic="wasserstein_sd", n=len(numbers), edges=edges)
    return bare.model_copy(update=owners.fields(counts_RB))


@given(NUMBERS, st.integers(0, 40))
def test_each_number_lies_in_its_bin(numbers: list[float], level: int) -> None:
    codes = bins.codes_of(np.array(numbers, dtype=np.float64), level)
    low, high = bins.edges_of(codes, level)
    for number, below, above in zip(numbers, low, high, strict=True):
        assert below <= number <= above
        assert number < above if number >= 0 else number > below


@given(NUMBERS, st.integers(0, 40), st.integers(0, 400))
def test_partitions_are_nested(numbers: list[float], level: int, more: int) -> None:
    array = np.array(numbers, dtype=np.float64)
    direct = bins.codes_of(array, level + more)
    assert np.array_equal(bins.coarser(bins.codes_of(array, level), level, level + more), direct)


@given(NUMBERS, st.lists(st.integers(0, 300), max_size=5), st.randoms())
def test_any_split_gives_the_same_histogram(numbers: list[float], cuts: list[int], random: object) -> None:
    whole = histogram(numbers, [number % GROUPS for number in range(len(numbers))])
    bounds = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    pieces = [
        histogram(numbers[first:last], [number % GROUPS for number in range(first, last)])
        for first, last in itertools.pairwise(bounds)
    ]
    random.shuffle(pieces)  # pyright: ignore[reportAttributeAccessIssue]
    total = Histogram()
    for piece in pieces:
        total.merge(piece)
    assert total.on_edges()[0] == whole.on_edges()[0]
    assert np.array_equal(total.on_edges()[1], whole.on_edges()[1])
    assert len(total.codes) <= MAX_BINS


def test_a_few_rows_and_many_end_in_the_bins_of_all() -> None:
    numbers = np.random.default_rng(0).normal(size=500).tolist()
    whole = histogram(numbers).on_edges()
    for pieces in ([numbers[:5], numbers[5:]], [numbers[5:], numbers[:5]]):
        total = Histogram()
        for piece in pieces:
            total.merge(histogram(piece))
        assert total.on_edges()[0] == whole[0]
        assert np.array_equal(total.on_edges()[1], whole[1])


def test_bins_fit_the_numbers() -> None:
    rng = np.random.default_rng(0)
    years = histogram((rng.integers(0, 40, 5000) + 1990.0).tolist())
    assert len(years.codes) == 40
    seconds = histogram((1.7e9 + 1e5 * rng.random(5000)).tolist())
    assert len(seconds.codes) > 20
    normal = feature(rng.normal(size=5000).tolist())
    near_one = [edge for edge in normal.edges if 0.9 < edge < 1.9]
    assert len(near_one) >= 3
    prices = histogram(np.exp(2 * rng.normal(size=5000)).tolist())
    assert len(prices.codes) > 30


def test_one_value_and_none_have_bins() -> None:
    assert feature([]).counts == [0]
    constant = feature([0.1] * 7)
    assert constant.counts == [0, 7, 0]
    assert constant.edges[0] <= 0.1 < constant.edges[1]


# -- common edges ----------------------------------------------------------------------------------
@given(NUMBERS, NUMBERS)
@example([float(year) for year in range(1990, 2030)], [float(year) for year in range(3000)])
@example([1.0, 2.0], [1e6 + number for number in range(200)])
def test_common_edges_keep_every_count(before: list[float], after: list[float]) -> None:
    reference, current = feature(before), feature(after)
    left, right = on_common_edges(reference, current)
    assert left.edges == right.edges
    for numbers, side in ((before, left), (after, right)):
        assert sum(side.counts) == len(numbers)
        assert len(side.counts) == len(side.edges) + 1
        assert sum(cell[position] for cell in side.cells for position in range(1, len(cell), 2)) == len(numbers)
        # no number crosses an edge: positive bins hold their lower edge, negative ones their upper
        place = [
            int(np.searchsorted(side.edges, number, side="right" if number >= 0 else "left")) for number in numbers
        ]
        assert np.bincount(place, minlength=len(side.counts)).tolist() == side.counts


def test_windows_far_apart_stay_apart() -> None:
    left, right = on_common_edges(feature([1.0, 2.0] * 50), feature([float(1000 + number) for number in range(300)]))
    assert max(np.minimum(left.counts, right.counts)) == 0


# -- sums ------------------------------------------------------------------------------------------
@given(NUMBERS, st.integers(0, 300))
def test_sums_are_the_same_for_any_split(numbers: list[float], cut: int) -> None:
    whole, left, right = Moments(), Moments(), Moments()
    whole.add(np.array(numbers))
    right.add(np.array(numbers[cut:]))
    left.add(np.array(numbers[:cut]))
    right.merge(left)
    assert right == whole


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200))
def test_mean_and_sd_are_those_of_numpy(numbers: list[float]) -> None:
    found = Moments()
    found.add(np.array(numbers))
    assert found.mean == pytest.approx(math.fsum(numbers) / len(numbers), rel=1e-5, abs=1e-2 * np.std(numbers) + 1e-6)
    assert found.sd == pytest.approx(np.std(numbers), rel=1e-4, abs=1e-7 * max(map(abs, numbers)) + 1e-9)


def test_a_constant_has_no_spread() -> None:
    found = Moments()
    found.add(np.full(1000, 1.7e9 + 0.1))
    assert found.sd == 0.0
    assert Moments().mean is None
    assert Moments().sd is None
