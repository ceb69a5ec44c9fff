"""How far apart are two windows, and could chance have done it?

A feature of a window is a histogram: counts over bins. An *effect* says how far two histograms are
apart, in units that mean something at any sample size: `psi`, `total_variation`, `wasserstein`, and
for text the AUC of a classifier that tries to tell the windows apart. A *p-value* says how often
chance alone would separate two windows of these sizes as far. Drift needs both: with a million rows
everything is significant, and with fifty everything looks far.

Only the reference window's counts are kept, never its rows, so chance is drawn from the pooled
histogram: pairs of windows of the two sizes, all draws in one array. Words and calls of a
conversation are not independent, so each size is first divided by the *design effect* (Rao and
Scott 1981): how much more the shares vary between conversations than independent units would. A
feature with one value per conversation has a design effect of 1, and the test is then the
permutation test of its counts. The text classifier keeps a sample of both sides and permutes labels
by conversation.

Arrays: D = draws, B = bins, N = conversations. Counts may have any leading axes; the last one is
bins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import rankdata

Floats = NDArray[np.float64]
Statistic = Callable[[Any, Any], Any]
"""(reference counts, current counts) -> effect, over the last axis."""


def shares(counts_B: Any) -> Floats:
    counts_B = np.asarray(counts_B, dtype=np.float64)
    total = counts_B.sum(axis=-1, keepdims=True)
    return np.divide(counts_B, total, out=np.zeros_like(counts_B), where=total > 0)


def total_variation(reference_B: Any, current_B: Any) -> Any:
    """Half the summed difference of shares: the part of one window that must change to look like
    the other."""
    return 0.5 * np.abs(shares(reference_B) - shares(current_B)).sum(axis=-1)


def psi(reference_B: Any, current_B: Any) -> Any:
    """Population stability index. Half a count in every bin keeps it finite."""
    reference_B, current_B = shares(np.asarray(reference_B) + 0.5), shares(np.asarray(current_B) + 0.5)
    return ((current_B - reference_B) * np.log(current_B / reference_B)).sum(axis=-1)


def wasserstein(reference_B: Any, current_B: Any, positions_B: Any) -> Any:
    """How far one histogram's mass must move to become the other; bins are at `positions_B`."""
    gap_B = np.abs(np.cumsum(shares(reference_B) - shares(current_B), axis=-1))
    return (gap_B[..., :-1] * np.diff(np.asarray(positions_B))).sum(axis=-1)


def spread(counts_B: Any, positions_B: Any) -> float:
    """Standard deviation of a histogram."""
    share_B, positions_B = shares(counts_B), np.asarray(positions_B, dtype=np.float64)
    mean = float((share_B * positions_B).sum())
    return float(np.sqrt((share_B * (positions_B - mean) ** 2).sum()))


def equal_groups(counts_B: Any, num_groups: int) -> NDArray[np.int64]:
    """Group adjacent bins of a fine histogram into quantile bins of about equal counts; return the
    group of each bin."""
    counts_B = np.asarray(counts_B, dtype=np.float64)
    middle_B = np.cumsum(counts_B) - counts_B / 2
    raw_B = np.minimum((middle_B / max(counts_B.sum(), 1) * num_groups).astype(np.int64), num_groups - 1)
    return np.unique(raw_B, return_inverse=True)[1].astype(np.int64)


def regroup(counts_B: Any, group_B: NDArray[np.int64]) -> Floats:
    counts_B = np.asarray(counts_B, dtype=np.float64)
    out = np.zeros((*counts_B.shape[:-1], int(group_B.max()) + 1))
    for group in range(out.shape[-1]):
        out[..., group] = counts_B[..., group_B == group].sum(axis=-1)
    return out


def design_effect(counts_NB: sparse.csr_matrix) -> float:
    """Return how much more the shares vary by conversation than if every unit were drawn alone; at
    least 1.

    (sum of the bins' standard errors by conversation / by unit) squared: the factor by which noise
    enters the total variation.
    """
    units_N = np.asarray(counts_NB.sum(axis=1), dtype=np.float64).ravel()
    total, num_rows = units_N.sum(), len(units_N)
    if total == 0 or num_rows < 2 or units_N.max() <= 1:
        return 1.0
    share_B = np.asarray(counts_NB.sum(axis=0), dtype=np.float64).ravel() / total
    squares_B = np.asarray(counts_NB.multiply(counts_NB).sum(axis=0), dtype=np.float64).ravel()
    crossed_B = np.asarray(counts_NB.T @ units_N, dtype=np.float64).ravel()
    by_conversation_B = squares_B - 2 * share_B * crossed_B + share_B**2 * (units_N**2).sum()
    by_unit_B = total * share_B * (1 - share_B)
    if by_unit_B.sum() == 0:
        return 1.0
    ratio = np.sqrt(np.maximum(by_conversation_B, 0) * num_rows / (num_rows - 1)).sum() / np.sqrt(by_unit_B).sum()
    return max(1.0, float(ratio**2))


def null_draws(
    statistic: Statistic, reference_B: Any, current_B: Any, effect: float, num_draws: int, seed: int
) -> Floats:
    """Draw `statistic` of windows that differ by chance alone. `effect`: the design effect."""
    reference_B, current_B = np.asarray(reference_B, dtype=np.float64), np.asarray(current_B, dtype=np.float64)
    rng = np.random.default_rng(seed)
    pooled_B = shares(reference_B + current_B)
    sizes = [max(1, round(float(side_B.sum()) / effect)) for side_B in (reference_B, current_B)]
    reference_DB, current_DB = (rng.multinomial(size, pooled_B, size=num_draws) for size in sizes)
    return np.asarray(statistic(reference_DB, current_DB), dtype=np.float64)


def p_value(observed: float, null_D: Floats) -> float:
    """Return the share of draws at least as far, the observation included: never 0. Ties within
    rounding count as draws that are as far."""
    return float((1 + np.count_nonzero(null_D >= observed - 1e-12)) / (1 + len(null_D)))


def pairs_won(scores_N: Any, labels_N: Floats) -> tuple[Any, Any]:
    """Count the pairs in which a current row (1) scores above a reference row (0), and all pairs.

    Ties count half. The quotient is the AUC. Columns of a 2-D array are separate problems.
    """
    num_current = labels_N.sum(axis=0)
    won = (rankdata(scores_N, axis=0) * labels_N).sum(axis=0) - num_current * (num_current + 1) / 2
    return won, num_current * (len(labels_N) - num_current)


def domain_classifier(
    rows_NB: sparse.csr_matrix, labels_N: Any, num_permutations: int, seed: int, folds: int = 5
) -> tuple[float, Floats]:
    """Return the cross-validated AUC of telling current rows (1) from reference rows (0), and the
    AUCs under permuted labels.

    Kernel ridge on unit-length rows: held-out scores are a fixed matrix times the labels, so
    refitting for every permutation is one product. Rows are ranked only within a fold: a fold that
    happens to hold more current rows was fitted on fewer, and scores lower as a whole.
    """
    labels_N = np.asarray(labels_N, dtype=np.float64)
    num_rows = len(labels_N)
    rng = np.random.default_rng(seed)
    length_N = np.sqrt(np.asarray(rows_NB.multiply(rows_NB).sum(axis=1), dtype=np.float64)).ravel()
    unit_NB = sparse.diags(1 / np.maximum(length_N, 1e-12)) @ rows_NB.astype(np.float64)
    kernel_NN = sparse.csr_matrix(unit_NB @ unit_NB.T).toarray()
    fold_N = rng.permutation(num_rows) % folds
    permuted_ND = rng.permuted(np.repeat(labels_N[:, None], num_permutations, axis=1), axis=0)
    labels_ND = np.concatenate([labels_N[:, None], permuted_ND], axis=1)
    won_D, pairs_D = np.zeros(num_permutations + 1), np.zeros(num_permutations + 1)
    for fold in range(folds):
        held, kept = np.flatnonzero(fold_N == fold), np.flatnonzero(fold_N != fold)
        ridge = kernel_NN[np.ix_(kept, kept)] + np.eye(len(kept))
        smoother = np.linalg.solve(ridge, kernel_NN[np.ix_(kept, held)]).T
        # Rounded, so that equal rows tie instead of being ranked by the last bit.
        scores_ND = np.round(smoother @ (labels_ND[kept] - labels_N.mean()), 9)
        won, pairs = pairs_won(scores_ND, labels_ND[held])
        won_D, pairs_D = won_D + won, pairs_D + pairs
    aucs_D = np.where(pairs_D > 0, won_D / np.maximum(pairs_D, 1), 0.5)
    return float(aucs_D[0]), aucs_D[1:]
