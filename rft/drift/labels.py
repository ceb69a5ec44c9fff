"""Count values: names of tools, shapes of arguments, categories of the input.

Arrow writes a column as a dictionary of its distinct values and numbers that point into it. So
Python looks at each distinct value once, and NumPy counts the numbers. A column of lists becomes
one long column of items, with the place of each item's conversation beside it.

A category with more than MAX_DISTINCT values, such as an id, is too large to list. Its values are
then counted by the hash of their name, in NUM_BUCKETS buckets. All rows together decide whether
that happens, so no split of the rows changes it.

If there are fewer values, a profile names the most frequent ones, and counts the rest in the same
buckets. So two windows can be compared, whichever values each of them names
(rft/drift/distance.py): a value that one of them does not name is counted in its bucket on both
sides. Profiles of an earlier version have one bin OTHER instead.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rft.drift import owners
from rft.drift.owners import ROWS, Integers, Owners
from rft.traffic.schema import GROUPS

MAX_DISTINCT = 4096
"""The most distinct values that are counted one by one."""
MAX_VALUES = 100
"""A profile names at least so many of the most frequent values ..."""
MAX_CELLS = MAX_VALUES * GROUPS
"""... and more, as long as all of them together fit into so many cells. So a short window names all
values that it met. If it did not, chance would decide which values it names; that was taken for
drift in 3 % of unchanged windows of 300 beside 10,000."""
OTHER = "(other)"
NUM_BUCKETS = 64
_BUCKET = "(bucket "
LONGEST = 440
"""Characters of a value's name in a profile."""

Name = Callable[[Any], str]


def shown(value: Any) -> str:
    """Name a value: by its text, or by its beginning and a hash where it is too long."""
    text = str(value)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 16]} .. {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def bucket(name: str) -> str:
    """Name the bucket of a value, where there are too many values to count each."""
    return f"{_BUCKET}{zlib.crc32(name.encode()) % NUM_BUCKETS:02d})"


def is_bucket(name: str) -> bool:
    return name.startswith(_BUCKET)


@dataclass(slots=True)
class Labels:
    """Counts per value and owner."""

    values: dict[str, int] = field(default_factory=dict)
    counts_VR: Integers = field(default_factory=lambda: np.zeros((0, ROWS), np.int64))
    is_hashed: bool = False

    def add(self, column: pa.Array, row_owners: Owners, name: Name = shown) -> None:
        """Count the items of a column without nulls. `name` may give several items one name."""
        if not len(column):
            return
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        counts_DR = row_owners.count(codes, len(encoded.dictionary)).T
        met = np.flatnonzero(counts_DR.any(axis=1))  # a dictionary may hold values of other rows
        names = [name(value) for value in encoded.dictionary.take(pa.array(met)).to_pylist()]
        self._add(names, counts_DR[met])

    def merge(self, other: Labels) -> None:
        if other.is_hashed and not self.is_hashed:
            self._hash()
        self._add(list(other.values), other.counts_VR[: len(other.values)])

    def _add(self, names: list[str], counts_DR: Integers) -> None:
        if self.is_hashed:
            names = [_hashed(name) for name in names]
        places = np.array([self.values.setdefault(name, len(self.values)) for name in names], dtype=np.int64)
        if len(self.values) > len(self.counts_VR):  # grow by half the size, so that growing stays cheap
            larger = np.zeros((max(len(self.values), len(self.counts_VR) * 3 // 2), ROWS), np.int64)
            larger[: len(self.counts_VR)] = self.counts_VR
            self.counts_VR = larger
        np.add.at(self.counts_VR, places, counts_DR)
        if len(self.values) > MAX_DISTINCT:
            self._hash()

    def _hash(self) -> None:
        names, counts_VR = list(self.values), self.counts_VR[: len(self.values)]
        self.values, self.counts_VR, self.is_hashed = {}, np.zeros((0, ROWS), np.int64), True
        self._add(names, counts_VR)

    def on_values(self, fixed: tuple[str, ...] = ()) -> tuple[list[str], Integers]:
        """Return the values to name and their counts per owner. They are the `fixed` ones, or else
        the most frequent ones by name, then the buckets of the rest, and OTHER, which counts only a
        value with that very name."""
        counts_VR = self.counts_VR[: len(self.values)]
        totals = dict(zip(self.values, owners.totals(counts_VR.T).tolist(), strict=True))
        unknown = sorted(totals.keys() - set(fixed))
        assert not (fixed and unknown), f"a category with fixed values met {unknown[:1]}"
        ranked = sorted(totals.keys() - {OTHER}, key=lambda value: (-totals[value], value))
        met = np.count_nonzero(counts_VR[:, :GROUPS], axis=1)
        room = np.cumsum([met[self.values[value]] for value in ranked], dtype=np.int64)
        frequent = ranked[: max(MAX_VALUES, int(np.searchsorted(room, MAX_CELLS, side="right")))]
        buckets = {value: bucket(value) for value in totals.keys() - {OTHER, *frequent}}
        named = list(fixed) or [*sorted(frequent), *sorted({*buckets.values()} - {*frequent}), OTHER]
        place = {value: number for number, value in enumerate(named)}
        counts_RB = np.zeros((ROWS, len(named)), np.int64)
        for value, number in self.values.items():
            counts_RB[:, place[value if value in place else buckets[value]]] += counts_VR[number]
        return named, counts_RB


def _hashed(name: str) -> str:
    return name if is_bucket(name) else bucket(name)


def items(column: pa.ListArray, row_owners: Owners) -> tuple[pa.Array, Owners]:
    """Return the items of all lists, and the owners of each."""
    return column.flatten(), row_owners.take(column.value_parent_indices().to_numpy())
