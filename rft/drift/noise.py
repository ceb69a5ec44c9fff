"""Draw what chance alone does to two windows: could it have put them this far apart?

**What may be treated as independent.** Conversations of one user resemble each other, and so do
words of one conversation. Only users are independent (`traffic.unit`), so noise must be measured
between users. A profile keeps its counts per *group* of users (rft/traffic/schema.py): at most 256
rows C_gb, which may be treated as independent whatever happens inside a row.

**The draws: a wild bootstrap by group, under the null.** Let p be the shares of both windows
together, which are the expected shares if nothing changed. The residual of group g is how far its
counts exceed them:

    r_gb = C_gb - n_g p_b           n_g: all counts of the group

and sum_g r_gb / N is the difference of the window's shares from p. Under the null, each residual
could as well have had the opposite sign. So a draw gives each group of each side a fair sign x_g,
and adds sum_g x_g r_gb / N to the shares of its side. That puts two windows apart as chance does.
It keeps the users' dependence, their sizes, and the covariance of the bins, on both sides, since
residuals are measured on both. (Wu 1986; Cameron, Gelbach and Miller 2008, who find it the most
reliable with few groups.) The statistic is then computed from p + what was drawn.

*Rare values.* A value that is expected twice and was never met in a short window has almost no
residual there, so its noise would count as zero. Where a value was met less often than expected,
its noise would look small, just where the window is far off. So the residuals of a bin are
stretched until they vary at least as much as independent counts would. Values that are expected
less than five times are joined (`dense_bins`).

*Days.* A campaign, an outage or a weekend moves all users of a day at once, which the differences
between users cannot show. So we measure how much more the reference's counts per day vary around
its own shares than its users explain. This variance t2_b of a day's share is added to both sides.
Each side gets the part of it that remains when its days are taken together,

    t2_b sum_d n_d^2 / N^2              n_d: all counts of day d

so a window of one day is allowed more noise than a window of a month. With fewer than MIN_DAYS days
nothing is measured. Examples have no days, and neither has the sample of words.

Sums of signs and counts are whole numbers, so the order of adding does not matter, and the draws
are the same on every machine.

A profile of an earlier version has no cells. Then each count is drawn alone (a multinomial). The
number of counts is divided by the other side's *design effect* (Rao and Scott 1981). It says how
much more the shares vary between groups than if every count were a unit.

Arrays: D = draws, G = groups, T = days, B = bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rft.drift import effects, owners
from rft.drift.effects import Floats
from rft.reports import Feature

TIE = 1e-9
"""Effects closer than this are equal: sums of floats differ in their last bits."""
EXPECTED = 5.0
"""A bin is not joined with others if at least so many independent counts are expected in it on each
side ..."""
MET = 10
"""... or so many groups have met it."""
MIN_DAYS = 5
"""A reference needs so many days to show how days differ."""


@dataclass(frozen=True, slots=True)
class Side:
    """One window's counts of a feature: the totals, and by group where the profile has cells."""

    counts_B: Floats
    cells_GB: Floats | None  # without empty groups
    days_TB: Floats | None = None  # without empty days

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
        days = None if self.days_TB is None else effects.joined(self.days_TB, bin_B, num_bins)
        return Side(effects.joined(self.counts_B, bin_B, num_bins), cells, days)

    @property
    def of_one_day(self) -> float:
        """Return the part of a day's variance that remains in the whole window: 1 / days, if all
        are equally full."""
        if self.days_TB is None:
            return 1.0
        return float((self.days_TB.sum(axis=1) ** 2).sum()) / self.total**2


def side(feature: Feature) -> Side:
    """Read one side from a profile."""
    counts_B = np.asarray(feature.counts, dtype=np.float64)
    num_bins = len(counts_B)
    cells_GB = owners.matrix(feature.cells, num_bins) if feature.cells else None
    days_TB = owners.matrix(feature.days, num_bins) if feature.days else None
    return Side(counts_B, *(None if rows is None else rows[rows.sum(axis=1) > 0] for rows in (cells_GB, days_TB)))


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
    # As many joined bins as their sum allows, all about equally full.
    num_joint = max(1, int(expected_B[rare].sum() // (2 * EXPECTED))) if rest is None else 1
    new_B[rare] = np.count_nonzero(alone_B) + effects.equal_bins(expected_B[rare] * 1e6, num_joint)
    return new_B


def design_effect(side: Side, pooled_B: Floats) -> float:
    """Return how much more the shares vary between groups than if every count were a unit; at least
    1.

    It is (sum of the bins' standard errors by group / by count) squared: the factor by which noise
    enters the total variation.
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
    """Draw the shares of pairs of windows that differ by chance alone, or their cumulative sums
    over the bins. A drawn share may lie below 0."""
    pooled_B = effects.shares(reference.counts_B + current.counts_B)
    day_B = day_variance(reference, cumulative)
    reference_DB = _drawn(reference, current, pooled_B, day_B, num_draws, rng, cumulative)
    current_DB = _drawn(current, reference, pooled_B, day_B, num_draws, rng, cumulative)
    return reference_DB, current_DB


def day_variance(reference: Side, cumulative: bool = False) -> Floats:
    """Return the variance of a day's shares, or of their cumulative sums, beyond what its users
    explain."""
    cells_GB, days_TB = reference.cells_GB, reference.days_TB
    if cells_GB is None or days_TB is None or len(days_TB) < MIN_DAYS:
        return np.zeros(len(reference.counts_B))
    share_B = effects.shares(reference.counts_B)
    by_user_B, by_day_B = (_spread(rows, share_B, cumulative) for rows in (cells_GB, days_TB))
    # A variance measured on T days is uncertain. Widen it to the variance of a t distribution with
    # T - 1 degrees of freedom.
    few = (len(days_TB) - 1) / (len(days_TB) - 3)
    return few * np.maximum(by_day_B - by_user_B, 0) / (days_TB.sum(axis=1) ** 2).sum()


def day_factor(reference: Side) -> float:
    """Return how many times wider the noise of a window is with its days than with its users
    alone."""
    if reference.cells_GB is None:
        return 1.0
    by_user_B = _spread(reference.cells_GB, effects.shares(reference.counts_B), cumulative=False)
    more_B = day_variance(reference) * reference.of_one_day * reference.total**2
    return float(np.sqrt(1 + more_B.sum() / by_user_B.sum())) if by_user_B.any() else 1.0


def _spread(rows: Floats, share_B: Floats, cumulative: bool) -> Floats:
    """Return the variance of a window's counts between its rows, but at least that of independent
    counts."""
    size = rows.sum(axis=1)
    if cumulative:
        rows, share_B = np.cumsum(rows, axis=1), np.cumsum(share_B)
    measured_B = ((rows - size[:, None] * share_B) ** 2).sum(axis=0) * len(rows) / max(len(rows) - 1, 1)
    return np.maximum(measured_B, size.sum() * share_B * np.maximum(1 - share_B, 0))


def _drawn(
    side: Side,
    other: Side,
    pooled_B: Floats,
    day_B: Floats,
    num_draws: int,
    rng: np.random.Generator,
    cumulative: bool,
) -> Floats:
    """Draw shares of one side around `pooled_B`, or their cumulative sums. `day_B`: the variance of
    a day's shares."""
    total = float(side.counts_B.sum())
    if side.cells_GB is None:
        size = max(1, round(total / design_effect(other, pooled_B)))
        drawn_DB = rng.multinomial(size, pooled_B, size=num_draws) / size
        return np.cumsum(drawn_DB, axis=1) if cumulative else drawn_DB
    size_G, cells_GB = side.cells_GB.sum(axis=1), side.cells_GB
    wanted_B = _spread(cells_GB, pooled_B, cumulative) + day_B * side.of_one_day * total**2
    if cumulative:
        pooled_B, cells_GB = np.cumsum(pooled_B), np.cumsum(cells_GB, axis=1)
    num_groups = side.num_groups
    # 32-bit floats hold whole numbers below 2**24 exactly, at twice the speed.
    dtype = np.float32 if total < 2**24 else np.float64
    bits = rng.integers(0, 256, size=(num_draws, (num_groups + 7) // 8), dtype=np.uint8)
    signs_DG = np.unpackbits(bits, axis=1, count=num_groups).astype(dtype) * 2 - 1
    cells_DB = (signs_DG @ cells_GB.astype(dtype)).astype(np.float64)
    size_D = (signs_DG @ size_G.astype(dtype)).astype(np.float64)
    beyond_DB = (cells_DB - size_D[:, None] * pooled_B) * _wider(cells_GB, size_G, pooled_B, wanted_B)
    return pooled_B + beyond_DB / total


def _wider(cells_GB: Floats, size_G: Floats, pooled_B: Floats, wanted_B: Floats) -> Floats:
    """Return for each bin the factor that stretches its residuals until they vary as much as is
    wanted."""
    measured_B = ((cells_GB - size_G[:, None] * pooled_B) ** 2).sum(axis=0)
    return np.sqrt(np.divide(wanted_B, measured_B, out=np.zeros_like(measured_B), where=measured_B > TIE))


def p_value(observed: float, null_D: Floats) -> float:
    """Return the share of draws that are at least as far, counting the observation as one: never 0.
    A tie within rounding counts as a draw that is as far."""
    return float((1 + np.count_nonzero(null_D >= observed - TIE)) / (1 + len(null_D)))
