"""Measure how far apart two samples of embeddings are: the maximum mean discrepancy.

A kernel says how alike two sentences are. Here it is exp(-|x - y|^2 / 2w^2) of unit-length rows.
Its width is fixed, w = 0.5, so that an effect means the same in every window: sentences of one
topic lie about 0.9 apart, those of two topics about 1.3. If nothing changed, sentences of the two
windows are as alike as those of one. The effect is the square root of

    1 - between / within          between: mean likeness of a sentence of one window and one of the
                                  other
                                  within: mean likeness of two sentences of the same window,
                                  averaged over both windows

which is 0 for equal windows and 1 for windows that have nothing in common. It is the unbiased MMD^2
(Gretton et al. 2012), divided by its value for windows without any likeness. The sample holds one
conversation per unit, so shuffled labels show exactly what chance does.

The kernel is rounded to whole multiples of 2**-24, so all sums are exact and the same on every
machine.

Arrays: D = draws (shuffles), N = sentences.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rft.drift.effects import Floats

WIDTH = 0.5
MOST_ROWS = 1000
"""Sentences of a side that are compared: time and memory grow with their square."""
_UNIT = 2.0**24


def rows_of(sample: Sequence[str]) -> Floats:
    """Decode rows of base64, each little-endian float16."""
    return np.array([np.frombuffer(base64.b64decode(row), dtype="<f2") for row in sample], dtype=np.float64)


def encoded(rows: Any) -> list[str]:
    """Encode rows as a profile keeps them."""
    return [base64.b64encode(row.tobytes()).decode() for row in np.asarray(rows, dtype="<f2")]


def discrepancy(rows_NE: Floats, labels_N: Any, seed: int) -> tuple[float, Callable[[int], Floats]]:
    """Return the discrepancy of current rows (1) and reference rows (0), and a function that draws
    it under shuffled labels."""
    labels_N = np.asarray(labels_N, dtype=np.float64)
    squares_N = (rows_NE**2).sum(axis=1)
    distance_NN = squares_N[:, None] + squares_N - 2 * rows_NE @ rows_NE.T
    kernel_NN = np.round(np.exp(-np.maximum(distance_NN, 0) / (2 * WIDTH**2)) * _UNIT)
    np.fill_diagonal(kernel_NN, 0.0)  # a sentence is not compared with itself
    total, rng = kernel_NN.sum(), np.random.default_rng(seed)

    def discrepancies(labels_ND: Floats) -> Floats:
        alike_ND = kernel_NN @ labels_ND
        current_D = (labels_ND * alike_ND).sum(axis=0)
        between_D = alike_ND.sum(axis=0) - current_D
        reference_D = total - current_D - 2 * between_D
        num_current = labels_N.sum()
        num_reference = len(labels_N) - num_current
        within_D = current_D / (num_current * (num_current - 1)) + reference_D / (num_reference * (num_reference - 1))
        crossed_D = 2 * between_D / (num_current * num_reference)
        distance_D = np.divide(within_D - crossed_D, within_D, out=np.zeros_like(within_D), where=within_D > 0)
        return np.sqrt(np.maximum(distance_D, 0.0))

    def shuffled(num: int) -> Floats:
        return discrepancies(rng.permuted(np.repeat(labels_N[:, None], num, axis=1), axis=0))

    return float(discrepancies(labels_N[:, None])[0]), shuffled
