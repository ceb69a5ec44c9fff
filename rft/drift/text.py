"""Measure how well a classifier tells two samples of conversations apart by their words.

If nothing changed, no classifier can do better than chance: its AUC on conversations that it was
not fitted on is 0.5. The words are hashed, and so are pairs of neighboring words, so that a changed
order is seen too. The sample holds one conversation per unit of dependence, so its rows are
independent, and the same classifier under shuffled labels shows exactly what chance does. The AUC
has an interval (DeLong, DeLong and Clarke-Pearson 1988). The p-value says whether the windows can
be told apart; the interval says how well.

The classifier is kernel ridge on unit-length rows. Held-out scores are a fixed matrix times the
labels, so refitting for every shuffle is one product. All folds share one inverse.

Arrays: D = draws (shuffles), N = conversations, B = bins of hashed words, F = conversations of a
fold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import rankdata

from rft.drift.effects import Floats
from rft.traffic.texts import HASHES

MOST_ROWS = 700
"""The most conversations of a side that the classifier gets: time grows with their third power."""
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Told:
    """How well the sides are told apart. `shuffled(num)` gives `num` AUCs under shuffled labels."""

    auc: float
    low: float
    high: float
    shuffled: Callable[[int], Floats]


def chosen(sample: Sequence[str], seed: int, at_most: int = MOST_ROWS) -> list[str]:
    """Choose rows from all over the sample."""
    if len(sample) <= at_most:
        return [*sample]
    kept: list[int] = np.sort(np.random.default_rng(seed).choice(len(sample), at_most, replace=False)).tolist()
    return [sample[n] for n in kept]


def matrix_NB(rows: Sequence[str]) -> sparse.csr_matrix:
    """Mark which hashed words and pairs of neighbors occur in each row."""
    found: list[list[int]] = []
    for row in rows:
        ids = [int(number) for number in row.split()]
        pairs = [HASHES + (a * 31 + b) % HASHES for a, b in itertools.pairwise(ids)]
        found.append(sorted({*ids, *pairs}))
    bins = np.array([number for row in found for number in row], dtype=np.int64)
    ends = np.cumsum([0, *map(len, found)])
    return sparse.csr_matrix((np.ones(len(bins)), bins, ends), shape=(len(found), 2 * HASHES))


def tell_apart(rows_NB: sparse.csr_matrix, labels_N: Any, seed: int, folds: int = FOLDS) -> Told:
    """Cross-validate telling current rows (1) from reference rows (0).

    Rows are ranked only within a fold: a fold that happens to hold more current rows was fitted on
    fewer, and scores lower as a whole.
    """
    labels_N = np.asarray(labels_N, dtype=np.float64)
    rng = np.random.default_rng(seed)
    fold_N = rng.permutation(len(labels_N)) % folds
    inverse_NN = np.linalg.inv(_kernel(rows_NB) + np.eye(len(labels_N)))
    fitted: list[tuple[Any, Any, Any]] = []
    for fold in range(folds):
        held, kept = np.flatnonzero(fold_N == fold), np.flatnonzero(fold_N != fold)
        # The scores of the held-out rows by a fit without them, from the inverse of all rows.
        smoother = -np.linalg.solve(inverse_NN[np.ix_(held, held)], inverse_NN[np.ix_(held, kept)])
        fitted.append((held, kept, smoother))
    mean = labels_N.mean()

    def scored(labels_ND: Floats) -> list[tuple[Any, Any]]:
        # Rounded, so that equal rows tie and are not ranked by the last bit.
        return [(np.round(smoother @ (labels_ND[kept] - mean), 9), labels_ND[held]) for held, kept, smoother in fitted]

    def shuffled(num: int) -> Floats:
        return _aucs(scored(rng.permuted(np.repeat(labels_N[:, None], num, axis=1), axis=0)))

    as_they_are = scored(labels_N[:, None])
    auc = float(_aucs(as_they_are)[0])
    low, high = _interval(auc, [(scores[:, 0], labels[:, 0]) for scores, labels in as_they_are])
    return Told(auc, low, high, shuffled)


def pairs_won(scores_N: Any, labels_N: Floats) -> tuple[Any, Any]:
    """Count the pairs in which a current row (1) scores above a reference row (0), and all pairs.

    Ties count half. The quotient is the AUC. Columns of a 2-D array are counted separately.
    """
    num_current = labels_N.sum(axis=0)
    won = (rankdata(scores_N, axis=0) * labels_N).sum(axis=0) - num_current * (num_current + 1) / 2
    return won, num_current * (len(labels_N) - num_current)


def _kernel(rows_NB: sparse.csr_matrix) -> Floats:
    length_N = np.sqrt(np.asarray(rows_NB.multiply(rows_NB).sum(axis=1), dtype=np.float64)).ravel()
    unit_NB = sparse.diags(1 / np.maximum(length_N, 1e-12)) @ rows_NB.astype(np.float64)
    return sparse.csr_matrix(unit_NB @ unit_NB.T).toarray()


def _aucs(folds: list[tuple[Any, Any]]) -> Floats:
    counted = [pairs_won(scores_ND, labels_ND) for scores_ND, labels_ND in folds]
    won_D, pairs_D = (np.sum(parts, axis=0) for parts in zip(*counted, strict=True))
    return np.where(pairs_D > 0, won_D / np.maximum(pairs_D, 1), 0.5)


def _interval(auc: float, folds: list[tuple[Any, Any]], confidence: float = 0.95) -> tuple[float, float]:
    """Compute DeLong's interval, with folds as strata, from each row's share of pairs that it
    won."""
    all_pairs = sum(labels.sum() * (1 - labels).sum() for _, labels in folds)
    variance = 0.0
    for scores_F, labels_F in folds:
        above, below = scores_F[labels_F == 1], scores_F[labels_F == 0]
        if min(len(above), len(below)) < 2:
            continue
        won = (above[:, None] > below) + 0.5 * (above[:, None] == below)
        of_fold = won.mean(axis=1).var(ddof=1) / len(above) + won.mean(axis=0).var(ddof=1) / len(below)
        variance += (len(above) * len(below) / all_pairs) ** 2 * of_fold
    half = NormalDist().inv_cdf((1 + confidence) / 2) * float(np.sqrt(variance))
    return max(0.0, auc - half), min(1.0, auc + half)
