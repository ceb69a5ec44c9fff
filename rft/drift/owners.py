"""Say to whom a row of a window belongs: to a group of users, and to a day.

Noise is measured between users and between days (rft/drift/noise.py), so each count is kept twice:
in the row of its group and in the row of its day. There are 256 groups and 64 days
(rft/traffic/schema.py). One matrix holds both, with the days below the groups, so that both are
added up, joined and made coarser together.

Suffixes of arrays: N = items, R = rows of both kinds, B = bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rft.traffic.schema import DAYS, GROUPS

Integers = NDArray[np.int64]

ROWS = GROUPS + DAYS
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Owners:
    """The group and the day of each item."""

    group_N: Integers
    day_N: Integers

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Owners:
        """Read the owners of a snapshot's rows."""
        time = batch.column("time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return cls(batch.column("group").to_numpy().astype(np.int64), time.to_numpy() // _DAY_US % DAYS)

    def take(self, which: Any) -> Owners:
        """Keep some items: by a mask or by their places."""
        return Owners(self.group_N[which], self.day_N[which])

    def count(self, bin_N: Integers, num_bins: int) -> Integers:
        """Count the items in each bin: a matrix RB."""
        by_group = np.bincount(self.group_N * num_bins + bin_N, minlength=GROUPS * num_bins)
        by_day = np.bincount(self.day_N * num_bins + bin_N, minlength=DAYS * num_bins)
        return np.concatenate([by_group, by_day]).reshape(ROWS, num_bins)


def totals(counts_RB: Integers) -> Integers:
    """Return the counts of all rows together."""
    return counts_RB[:GROUPS].sum(axis=0)


def cells_of(matrix: Any) -> list[list[int]]:
    """Return a list for each row: a bin, its count, the next bin, its count, and so on."""
    matrix = np.asarray(matrix)
    row_of, bin_of = np.nonzero(matrix)
    pairs = np.stack([bin_of, matrix[row_of, bin_of]], axis=1).astype(np.int64)
    ends = np.searchsorted(row_of, np.arange(1, len(matrix)))
    return [part.ravel().tolist() for part in np.split(pairs, ends)]


def fields(counts_RB: Integers) -> dict[str, Any]:
    """Return the fields `counts`, `cells` and `days` of a feature."""
    by_day = counts_RB[GROUPS:]
    is_several = np.count_nonzero(by_day.sum(axis=1)) > 1
    return {
        "counts": totals(counts_RB).tolist(),
        "cells": cells_of(counts_RB[:GROUPS]),
        "days": cells_of(by_day) if is_several else [],
    }


def matrix(cells: Sequence[Sequence[int]], num_bins: int) -> NDArray[np.float64]:
    """Read what `cells_of` wrote."""
    flat = np.fromiter((number for row in cells for number in row), dtype=np.int64)
    row = np.repeat(np.arange(len(cells)), [len(row) // 2 for row in cells])
    found = np.zeros((len(cells), num_bins))
    found[row, flat[::2]] = flat[1::2]
    return found
