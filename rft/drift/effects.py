"""Measure how far apart two histograms are.

A feature of a window is a histogram: counts over bins. An *effect* says how far two of them are
apart, in units that mean the same at any sample size:

    total_variation   the share of one window that would have to change to match the other
    wasserstein       how far the values moved, on the axis of the bins
    psi               the population stability index of the textbooks, over about ten quantile bins

rft/drift/noise.py answers whether chance could have done it. Text and embeddings have effects of
their own (rft/drift/text.py, rft/drift/discrepancy.py).

Arrays: B = bins, always the last axis. Counts may have any axes before it, such as D = draws.
Counts of draws need not be whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PSI_BINS = 10


def shares(counts_B: Any) -> Floats:
    counts_B = np.asarray(counts_B, dtype=np.float64)
    total = counts_B.sum(axis=-1, keepdims=True)
    return np.divide(counts_B, total, out=np.zeros_like(counts_B), where=total > 0)


def total_variation(reference_B: Any, current_B: Any) -> Any:
    """Compute half the summed difference of shares: the part of one window that must change to look
    like the other."""
    return 0.5 * np.abs(shares(reference_B) - shares(current_B)).sum(axis=-1)


def psi(reference_B: Any, current_B: Any) -> Any:
    """Compute the population stability index. Half a count in every bin keeps it finite."""
    reference_B, current_B = (shares(np.maximum(side_B, 0) + 0.5) for side_B in (reference_B, current_B))
    return ((current_B - reference_B) * np.log(current_B / reference_B)).sum(axis=-1)


def wasserstein(reference_B: Any, current_B: Any, positions_B: Any) -> Any:
    """Compute how far one histogram's mass must move to become the other; bins are at
    `positions_B`."""
    gap_B = np.abs(np.cumsum(shares(reference_B) - shares(current_B), axis=-1))
    return (gap_B[..., :-1] * np.diff(np.asarray(positions_B))).sum(axis=-1)


def positions(edges: Sequence[float]) -> Floats:
    """Place each bin's mass in its middle; the two outer bins are as wide as their neighbors."""
    inner = np.asarray(edges, dtype=np.float64)
    if len(inner) == 1:
        return np.array([inner[0] - 0.5, inner[0] + 0.5])
    outer = np.concatenate([[2 * inner[0] - inner[1]], inner, [2 * inner[-1] - inner[-2]]])
    return (outer[:-1] + outer[1:]) / 2


def spread(counts_B: Any, positions_B: Any) -> float:
    """Compute the standard deviation of a histogram."""
    share_B, positions_B = shares(counts_B), np.asarray(positions_B, dtype=np.float64)
    mean = float((share_B * positions_B).sum())
    return float(np.sqrt((share_B * (positions_B - mean) ** 2).sum()))


def equal_bins(counts_B: Any, num_bins: int) -> NDArray[np.int64]:
    """Join adjacent bins of a fine histogram into quantile bins of about equal counts; return the
    new bin of each."""
    counts_B = np.asarray(counts_B, dtype=np.float64)
    middle_B = np.cumsum(counts_B) - counts_B / 2
    raw_B = np.minimum((middle_B / max(counts_B.sum(), 1) * num_bins).astype(np.int64), num_bins - 1)
    return np.unique(raw_B, return_inverse=True)[1].astype(np.int64)


def joined(counts_B: Any, bin_B: NDArray[np.int64], num_bins: int) -> Floats:
    """Add up the counts of bins that share a new bin, `bin_B`, of `num_bins`."""
    counts_B = np.asarray(counts_B, dtype=np.float64)
    onto = np.zeros((counts_B.shape[-1], num_bins))
    onto[np.arange(counts_B.shape[-1]), bin_B] = 1.0
    return counts_B @ onto
