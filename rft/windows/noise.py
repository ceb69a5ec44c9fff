"""Could chance have put two windows this far apart? Draws of what chance alone does.

**What may be treated as independent.** Conversations of one user resemble each other, and words of
one conversation do. Only users are independent (`traffic.unit`), so noise must be measured between
users. A profile keeps its counts per *group* of users (rft/snapshots/schema.py): at most 256 rows
C_gb, that may be treated as independent whatever happens inside of them.

**The draws: a wild bootstrap by group, under the null.** Let p be the shares of both windows
together, as they would be if nothing had changed. What group g has beyond them is its residual

    r_gb = C_gb - n_g p_b           n_g: all counts of the group

and sum_g r_gb / N is the difference of the window's shares from p. Under the null the sign of each
residual could have been the other. A draw gives each group of each side a fair sign x_g, and the
sides' sum_g x_g r_gb / N put two windows apart as chance does: with the users' dependence, their
sizes, and the covariance of the bins, on both sides, since residuals are measured on both. (Wu
1986; Cameron, Gelbach and Miller 2008, who find it the most reliable with few groups.) The
statistic is then computed of p + what was drawn.

*Rare values.* A value that is expected twice, and that a short window has not met, has hardly a
residual there, so that its noise is taken for nothing; and where fewer were met than expected, the
noise is taken for small just where the window is far off. So the residuals of a bin are stretched
until they vary at least as much as independent counts would, and values that are expected less
than five times are joined (`dense_bins`).

Sums of signs and counts are whole numbers, which no order of adding changes: the draws are the
same on every machine.

A profile of an earlier version has no cells. Then each count is drawn alone (a multinomial), on as
many fewer as the other side's *design effect* says: how much more its shares vary between groups
than if every count were a unit (Rao and Scott 1981).

Arrays: D = draws, G = groups, B = bins.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rft.reports import Feature
from rft.snapshots.schema import GROUPS
from rft.windows import effects
from rft.windows.effects import Floats

TIE = 1e-9
"""Effects closer than that are equal: sums of floats differ in their last bits."""
EXPECTED = 5.0
"""A bin stands alone if so many independent counts are expected in it on either side ..."""
MET = 10
"""... or so many groups have met it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One window's counts of a feature: in all, and by group where the profile has cells."""

    counts_B: Floats
    cells_GB: Floats | None  # without empty groups

    @property
    def total(self) -> float:
        return float(self.counts_B.sum())

    @property
    def num_groups(self) -> int:
        return 0 if self.cells_GB is None else len(self.cells_GB)

    def joined(self, bin_B: NDArray[np.int64]) -> Side:
        """Join bins; `bin_B` names the new bin of each."""
        return self.placed(bin_B, int(bin_B.max()) + 1)

    def placed(self, bin_B: NDArray[np.int64], num_bins: int) -> Side:
        """Move each bin to its place among `num_bins`."""
        cells = None if self.cells_GB is None else effects.joined(self.cells_GB, bin_B, num_bins)
        return Side(effects.joined(self.counts_B, bin_B, num_bins), cells)


def matrix_GB(feature: Feature) -> Floats:
    """Return the counts of a profile's feature, per group of units and bin."""
    cells = np.fromiter(itertools.chain.from_iterable(feature.cells), dtype=np.int64)
    group = np.repeat(np.arange(len(feature.cells)), [len(row) // 2 for row in feature.cells])
    matrix = np.zeros((GROUPS, len(feature.counts)))
    matrix[group, cells[::2]] = cells[1::2]
    return matrix


def cells_of(matrix: Any) -> list[list[int]]:
    """Return what `matrix_GB` reads: for each group, in turn, a bin and its count."""
    matrix = np.asarray(matrix)
    groups, bins = np.nonzero(matrix)
    cells = np.stack([bins, matrix[groups, bins]], axis=1).astype(np.int64).ravel().tolist()
    ends = [0, *(2 * np.cumsum(np.bincount(groups, minlength=len(matrix)))).tolist()]
    return [cells[start:end] for start, end in itertools.pairwise(ends)]


def side(feature: Feature) -> Side:
    """Read one side from a profile."""
    counts_B = np.asarray(feature.counts, dtype=np.float64)
    if not feature.cells:
        return Side(counts_B, None)
    cells_GB = matrix_GB(feature)
    return Side(counts_B, cells_GB[cells_GB.sum(axis=1) > 0])


# -- bins that are too rare ------------------------------------------------------------------------
def dense_bins(reference: Side, current: Side, rest: int | None = None) -> NDArray[np.int64]:
    """Join rare bins with their rare neighbors; return the new bin of each."""
    pooled_B = effects.shares(reference.counts_B + current.counts_B)
    expected_B = np.full(len(pooled_B), np.inf)
    met_B = np.full(len(pooled_B), np.inf)
    for one in (reference, current):
        size = one.counts_B.sum() / design_effect(one, pooled_B)
        expected_B = np.minimum(expected_B, pooled_B * size)
        met = one.counts_B if one.cells_GB is None else np.count_nonzero(one.cells_GB, axis=0)
        met_B = np.minimum(met_B, np.where(pooled_B * size >= EXPECTED, np.inf, met))
    alone_B = (expected_B >= EXPECTED) | (met_B >= MET)
    if rest is not None:
        alone_B[rest] = False
    new_B = np.zeros(len(pooled_B), dtype=np.int64)
    new_B[alone_B] = np.arange(np.count_nonzero(alone_B))
    rare = np.flatnonzero(~alone_B)
    if not len(rare):
        return new_B
    # As many joint bins as their sum allows, all about as full.
    num_joint = max(1, int(expected_B[rare].sum() // (2 * EXPECTED))) if rest is None else 1
    new_B[rare] = np.count_nonzero(alone_B) + effects.equal_bins(expected_B[rare] * 1e6, num_joint)
    return new_B


def design_effect(side: Side, pooled_B: Floats) -> float:
    """Return how much more the shares vary between groups than if every count were a unit; at least
    1.

    (sum of the bins' standard errors by group / by count) squared: the factor by which noise enters
    the total variation.
    """
    total = side.counts_B.sum()
    if side.cells_GB is None or side.num_groups < 2:
        return 1.0
    residual_GB = side.cells_GB - side.cells_GB.sum(axis=1, keepdims=True) * pooled_B
    by_count_B = total * pooled_B * (1 - pooled_B)
    if not by_count_B.sum():
        return 1.0
    by_group_B = (residual_GB**2).sum(axis=0)
    return max(1.0, float((np.sqrt(by_group_B).sum() / np.sqrt(by_count_B).sum()) ** 2))


# -- draws -----------------------------------------------------------------------------------------
def null_draws(
    reference: Side, current: Side, num_draws: int, rng: np.random.Generator, cumulative: bool = False
) -> tuple[Floats, Floats]:
    """Draw the shares of pairs of windows that differ by chance alone, or the cumulative sums of
    these over the bins. A share that was drawn may lie below 0."""
    pooled_B = effects.shares(reference.counts_B + current.counts_B)
    reference_DB = _drawn(reference, current, pooled_B, num_draws, rng, cumulative)
    current_DB = _drawn(current, reference, pooled_B, num_draws, rng, cumulative)
    return reference_DB, current_DB


def _drawn(
    side: Side, other: Side, pooled_B: Floats, num_draws: int, rng: np.random.Generator, cumulative: bool
) -> Floats:
    """Draw shares of one side around `pooled_B`, or their cumulative sums."""
    total = float(side.counts_B.sum())
    if side.cells_GB is None:
        size = max(1, round(total / design_effect(other, pooled_B)))
        drawn_DB = rng.multinomial(size, pooled_B, size=num_draws) / size
        return np.cumsum(drawn_DB, axis=1) if cumulative else drawn_DB
    size_G, cells_GB = side.cells_GB.sum(axis=1), side.cells_GB
    if cumulative:
        pooled_B, cells_GB = np.cumsum(pooled_B), np.cumsum(cells_GB, axis=1)
    num_groups = side.num_groups
    # 32-bit floats hold whole numbers below 2**24 exactly, at twice the speed.
    dtype = np.float32 if total < 2**24 else np.float64
    bits = rng.integers(0, 256, size=(num_draws, (num_groups + 7) // 8), dtype=np.uint8)
    signs_DG = np.unpackbits(bits, axis=1, count=num_groups).astype(dtype) * 2 - 1
    cells_DB = (signs_DG @ cells_GB.astype(dtype)).astype(np.float64)
    size_D = (signs_DG @ size_G.astype(dtype)).astype(np.float64)
    beyond_DB = (cells_DB - size_D[:, None] * pooled_B) * _wider(cells_GB, size_G, pooled_B)
    return pooled_B + beyond_DB / total


def _wider(cells_GB: Floats, size_G: Floats, pooled_B: Floats) -> Floats:
    """Return the factor per bin that its residuals are stretched by: G / (G - 1) of their variance,
    or as much as makes it that of independent counts, whichever is more."""
    few = len(size_G) / max(len(size_G) - 1, 1)
    measured_B = ((cells_GB - size_G[:, None] * pooled_B) ** 2).sum(axis=0)
    by_count_B = size_G.sum() * pooled_B * np.maximum(1 - pooled_B, 0)
    ratio_B = np.divide(by_count_B, measured_B, out=np.zeros_like(measured_B), where=measured_B > TIE)
    return np.sqrt(np.maximum(few, ratio_B))


def p_value(observed: float, null_D: Floats) -> float:
    """Return the share of draws at least as far, the observation included: never 0. Ties within
    rounding count as draws that are as far."""
    return float((1 + np.count_nonzero(null_D >= observed - TIE)) / (1 + len(null_D)))
