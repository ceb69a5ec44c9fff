"""Choose the sample that is read as text: one conversation of each of a few units.

To count words, a conversation must be read, so words are counted on a sample. Its rows must be
independent, so it takes one conversation of a unit. Hashes decide which: the units with the
smallest hashes, and of each unit the conversation with the smallest hash. So the sample does not
depend on the order of the rows, and the sample of two parts together is taken from the samples of
both. (The last byte of a unit's hash is its group; the sample uses the other bytes.)

First only hashes are read, to choose the rows. Then the messages of the chosen rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rft.traffic.schema import GROUPS
from rft.traffic.texts import input_messages, messages_of, user_text

Naturals = NDArray[np.uint64]
Integers = NDArray[np.int64]

BATCH_ROWS = 2048
"""Rows of text in memory at a time."""
_SHIFT = np.uint64(GROUPS.bit_length() - 1)


def _none() -> Naturals:
    return np.empty(0, np.uint64)


@dataclass(slots=True)
class Sample:
    """The chosen rows, by the hash of their unit."""

    size: int
    draw: Naturals = field(default_factory=_none)
    pick: Naturals = field(default_factory=_none)
    part: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    row: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, draw: Naturals, pick: Naturals, part: int, first_row: int) -> None:
        """Consider the rows of a part from `first_row` on."""
        rows = np.arange(first_row, first_row + len(draw))
        if len(self.draw) == self.size:
            near = (draw >> _SHIFT) <= (self.draw[-1] >> _SHIFT)
            draw, pick, rows = draw[near], pick[near], rows[near]
        if len(draw):
            self._choose(Sample(self.size, draw, pick, np.full(len(draw), part), rows))

    def merge(self, other: Sample) -> None:
        self._choose(other)

    def _choose(self, other: Sample) -> None:
        draw, pick = np.concatenate([self.draw, other.draw]), np.concatenate([self.pick, other.pick])
        part, row = np.concatenate([self.part, other.part]), np.concatenate([self.row, other.row])
        order = np.lexsort((row, part, pick, draw, draw >> _SHIFT))
        units = draw[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = units[1:] != units[:-1]
        kept = order[is_first][: self.size]
        self.draw, self.pick, self.part, self.row = draw[kept], pick[kept], part[kept], row[kept]

    @property
    def groups(self) -> Integers:
        return (self.draw % np.uint64(GROUPS)).astype(np.int64)

    def by_part(self) -> dict[int, list[int]]:
        """Return the chosen rows of each part, in the order of the part."""
        found: dict[int, list[int]] = {}
        for part, row in sorted(zip(self.part.tolist(), self.row.tolist(), strict=True)):
            found.setdefault(part, []).append(row)
        return found

    def in_order(self, texts: dict[tuple[int, int], str]) -> list[str]:
        """Sort texts by part and row into the order of the sample."""
        return [texts[part, row] for part, row in zip(self.part.tolist(), self.row.tolist(), strict=True)]


def texts_of_part(path: Path, rows: Sequence[int]) -> list[str]:
    """Read what the user wrote in rows of a part, given in their order."""
    file = pq.ParquetFile(path)
    wanted = np.asarray(rows, dtype=np.int64)
    found: list[str] = []
    first = 0
    for number in range(file.num_row_groups):
        num_rows = file.metadata.row_group(number).num_rows
        inside = wanted[(wanted >= first) & (wanted < first + num_rows)] - first
        if len(inside):
            batches = file.iter_batches(BATCH_ROWS, row_groups=[number], columns=["messages"], use_threads=False)
            found += _texts(batches, inside)
        first += num_rows
    return found


def texts_of_table(table: pa.Table, rows: Sequence[int]) -> list[str]:
    """Read what the user wrote in rows of a table, given in their order."""
    return list(map(input_text, table.column("messages").take(pa.array(rows, pa.int64())).to_pylist()))


def _texts(batches: Iterable[pa.RecordBatch], wanted: Integers) -> Iterator[str]:
    first = 0
    for batch in batches:
        inside = wanted[(wanted >= first) & (wanted < first + batch.num_rows)] - first
        yield from map(input_text, batch.column(0).take(pa.array(inside)).to_pylist())
        first += batch.num_rows


def input_text(messages: str) -> str:
    """Return what the user wrote before the agent's first message. `messages`: JSON."""
    return user_text(input_messages(messages_of(messages)))
