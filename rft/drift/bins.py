"""Count numbers of unknown range in bins, and sum them so that no split changes the result.

A profile is the sum of partial profiles, one per file. So a partial profile must not depend on the
other files, nor on how the rows were split. Quantiles depend on that, and so does a rounded sum.

**Bins.** Numbers may be years (1990 to 2030), prices (over five decades) or temperatures on both
sides of zero. Bins that suit one of them do not suit another. So there is a *chain* of partitions
of the real line, each nested in the one before it. A partition has `2^m` bins in each octave above
`2^t`, and bins of equal width below. The chain starts at m = 20, t = -120, which separates numbers
that differ by a millionth. It first takes fewer bins per octave, down to m = 2, and then raises t.
A histogram uses the finest partition of the chain in which at most MAX_BINS bins are occupied. More
rows can only occupy more bins, so the partition of a part is never coarser than that of the whole:
whatever the split, the sum is the same.

Two windows may end in different partitions. `on_common_edges` counts both on the edges that they
share, without reading the rows.

**Sums.** Mean and standard deviation come from integers. Each number is cut to 26 bits and added to
a sum of the numbers with the same exponent, which a float holds exactly. These sums are then added
as Python integers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rft.drift.owners import ROWS, Integers, Owners
from rft.reports import Feature

Floats = NDArray[np.float64]

MAX_BINS = 64
"""The most occupied bins of one histogram. For 256 groups they take about 150 KB of a profile."""
LIMIT = 2.0**499
"""A number beyond this is not a measurement. It counts as null, as NaN and infinity do."""
_FINEST_M, _COARSEST_M, _FIRST_T, _LAST_T = 20, 2, -120, 499
_LAST_LEVEL = _FINEST_M - _COARSEST_M + _LAST_T - _FIRST_T
_BITS, _SHIFT = 26, 1100


# -- the chain of partitions -----------------------------------------------------------------------
def _shape(level: int) -> tuple[int, int]:
    """Return m and t of a partition of the chain."""
    steps = _FINEST_M - _COARSEST_M
    return (_FINEST_M - level, _FIRST_T) if level <= steps else (_COARSEST_M, _FIRST_T + level - steps)


def codes_of(numbers: Floats, level: int) -> Integers:
    """Return the bin of each finite number: 0, 1, .. from zero upwards, -1, -2, .. downwards."""
    m, t = _shape(level)
    size = np.abs(numbers)
    # Read as an integer, the bits of a positive float grow with the float. Their upper part is the
    # octave and the place in it.
    log_code = (size.view(np.int64) >> (52 - m)) + ((1 << m) - _top_bits(m, t))
    threshold = 2.0**t
    linear = size < threshold
    if linear.any():
        log_code[linear] = (size[linear] * (2.0**m / threshold)).astype(np.int64)
    return np.where(numbers >= 0, log_code, -1 - log_code)


def edges_of(codes: Integers, level: int) -> tuple[Floats, Floats]:
    """Return the lower and the upper edge of bins."""
    magnitude = np.where(codes >= 0, codes, -1 - codes)
    near, far = _magnitude_edge(magnitude, level), _magnitude_edge(magnitude + 1, level)
    return np.where(codes >= 0, near, -far), np.where(codes >= 0, far, -near)


def coarser(codes: Integers, level: int, to: int) -> Integers:
    """Return the bins of a later partition that hold these bins."""
    if to == level:
        return codes
    magnitude = np.where(codes >= 0, codes, -1 - codes)
    found = codes_of(_magnitude_edge(magnitude, level), to)
    return np.where(codes >= 0, found, -1 - found)


def _magnitude_edge(magnitude: Integers, level: int) -> Floats:
    m, t = _shape(level)
    bits = (magnitude - (1 << m) + _top_bits(m, t)) << (52 - m)
    return np.where(magnitude < (1 << m), magnitude * 2.0 ** (t - m), bits.view(np.float64))


def _top_bits(m: int, t: int) -> int:
    """Return the upper bits of 2^t as a float."""
    return (t + 1023) << m


# -- histograms ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Histogram:
    """Counts per owner and bin, in the finest partition that MAX_BINS allows."""

    level: int = 0
    codes: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    counts_RB: Integers = field(default_factory=lambda: np.zeros((ROWS, 0), np.int64))

    def add(self, numbers: Floats, row_owners: Owners) -> None:
        """Count finite numbers."""
        if not len(numbers):
            return
        found = codes_of(numbers, self.level)
        if not len(self.codes):
            self._widen(_distinct(found))
            found = codes_of(numbers, self.level)
        at = np.searchsorted(self.codes, found)
        is_new = self.codes[at.clip(max=len(self.codes) - 1)] != found
        if is_new.any():
            self._widen(_distinct(found[is_new]))
            at = np.searchsorted(self.codes, codes_of(numbers, self.level))
        self.counts_RB += row_owners.count(at, len(self.codes))

    def merge(self, other: Histogram) -> None:
        level = max(self.level, other.level)
        self._coarsen(level)
        codes = coarser(other.codes, other.level, level)
        self._widen(_distinct(codes))
        codes = coarser(codes, level, self.level)
        np.add.at(self.counts_RB.T, np.searchsorted(self.codes, codes), other.counts_RB.T)

    def _widen(self, more: Integers) -> None:
        """Make room for further bins, in a coarser partition if they are too many."""
        level, all_codes = self.level, _distinct(np.concatenate([self.codes, more]))
        if len(all_codes) > MAX_BINS:
            later = range(level + 1, _LAST_LEVEL + 1)
            fits = bisect_left(later, True, key=lambda to: _num_bins(coarser(all_codes, level, to)) <= MAX_BINS)
            all_codes, level = _distinct(coarser(all_codes, level, later[fits])), later[fits]
        self._coarsen(level)
        wider = np.zeros((ROWS, len(all_codes)), np.int64)
        wider[:, np.searchsorted(all_codes, self.codes)] = self.counts_RB
        self.codes, self.counts_RB = all_codes, wider

    def _coarsen(self, level: int) -> None:
        if level == self.level:
            return
        codes = coarser(self.codes, self.level, level)
        kept = _distinct(codes)
        counts_RB = np.zeros((ROWS, len(kept)), np.int64)
        np.add.at(counts_RB.T, np.searchsorted(kept, codes), self.counts_RB.T)
        self.level, self.codes, self.counts_RB = level, kept, counts_RB

    def on_edges(self) -> tuple[list[float], Integers]:
        """Return inner edges, and counts per owner: one bin more than edges. The outer bins are
        empty, and so are those between bins that do not touch."""
        low, high = edges_of(self.codes, self.level)
        edges = np.unique(np.concatenate([low, high]))
        counts_RB = np.zeros((ROWS, len(edges) + 1), np.int64)
        counts_RB[:, np.searchsorted(edges, low, side="right")] = self.counts_RB
        return edges.tolist(), counts_RB


def _distinct(codes: Integers) -> Integers:
    """Return the distinct codes in order. For many distinct codes this is ten times as fast as
    np.unique."""
    ordered = np.sort(codes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _num_bins(codes: Integers) -> int:
    """Count the bins in codes that are sorted."""
    return 1 + int(np.count_nonzero(np.diff(codes)))


def on_common_edges(reference: Feature, current: Feature) -> tuple[Feature, Feature]:
    """Count two numeric features on the edges that serve both.

    An edge serves a side if it is one of the side's own edges, or lies in one of its empty bins.
    Features with equal edges come back as they are.
    """
    if reference.edges == current.edges:
        return reference, current
    both = np.union1d(reference.edges, current.edges)
    kept = both[_serves(both, reference) & _serves(both, current)]
    return _recounted(reference, kept), _recounted(current, kept)


def _serves(edges: Floats, side: Feature) -> NDArray[np.bool_]:
    own = np.asarray(side.edges, dtype=np.float64)
    inside = np.searchsorted(own, edges, side="right")
    return np.isin(edges, own) | (np.asarray(side.counts)[inside] == 0)


def _recounted(side: Feature, edges: Floats) -> Feature:
    low = np.concatenate([[-np.inf], np.asarray(side.edges, dtype=np.float64)])
    place = np.searchsorted(edges, low, side="right")
    counts = np.bincount(place, weights=side.counts, minlength=len(edges) + 1).astype(np.int64)
    moved = {"cells": [_moved(cell, place) for cell in side.cells], "days": [_moved(cell, place) for cell in side.days]}
    return side.model_copy(update={"edges": edges.tolist(), "counts": counts.tolist()} | moved)


def _moved(cell: list[int], place: Integers) -> list[int]:
    """Move counts to other bins. `cell`: a bin and its count, in turn."""
    counts: dict[int, int] = {}
    for bin_number, count in zip(cell[::2], cell[1::2], strict=True):
        counts[int(place[bin_number])] = counts.get(int(place[bin_number]), 0) + count
    return [number for pair in sorted(counts.items()) for number in pair]


# -- exact sums ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Moments:
    """Exact sums of numbers cut to 26 bits, and of their squares."""

    n: int = 0
    total: int = 0
    squares: int = 0

    def add(self, numbers: Floats) -> None:
        """Add finite numbers below LIMIT, at most 2^26 of them at a time."""
        if not len(numbers):
            return
        assert len(numbers) <= 1 << _BITS, "a float would round the sum"
        fraction, exponent = np.frexp(numbers)
        cut = np.trunc(fraction * 2.0**_BITS)
        square = cut * cut
        upper = np.floor(square * 2.0**-_BITS)
        lower = square - upper * 2.0**_BITS
        lowest = int(exponent.min())
        place = exponent - lowest
        sums = [np.bincount(place, weights=part) for part in (cut, upper, lower)]
        for step in np.flatnonzero(sums[1] + sums[2]):
            up = int(step) + lowest + _SHIFT
            self.total += int(sums[0][step]) << up
            self.squares += ((int(sums[1][step]) << _BITS) + int(sums[2][step])) << (2 * up)
        self.n += len(numbers)

    def merge(self, other: Moments) -> None:
        self.n, self.total, self.squares = self.n + other.n, self.total + other.total, self.squares + other.squares

    @property
    def mean(self) -> float | None:
        return _short(self.total / (self.n << (_BITS + _SHIFT))) if self.n else None

    @property
    def sd(self) -> float | None:
        if not self.n:
            return None
        spread = self.n * self.squares - self.total * self.total
        return _short(math.sqrt(spread / (self.n * self.n << 2 * (_BITS + _SHIFT))))


def _short(value: float) -> float:
    return float(f"{value:.7g}")
