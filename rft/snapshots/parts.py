"""Turn a block of a log into a part of a snapshot: what one process does.

Lines of our own format go through DuckDB by the thousand (rft/snapshots/lines.py). What is left,
rows of other formats, and all rows where something is redacted, are read one by one
(rft/snapshots/normal.py), written as normal lines, and then take the same way. So each column is
made in one place, whatever the row came from.

A part and what was not taken are staged as two files, the second one written last:

    block-00007.parquet     the rows, in the order of the log
    block-00007.json        `Tally`
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rft import files
from rft.snapshots import normal, redact
from rft.snapshots.arrow import pc
from rft.snapshots.blocks import Block, Piece, too_long
from rft.snapshots.columns import Own, build
from rft.snapshots.lines import Engine, take

UNREAD = 100
"""How many unreadable rows are named."""
_CHUNK = 8 << 20
"""Bytes of lines that are parsed at once: about ten times as much memory."""
_SHORTEST = 40
"""No conversation is shorter than this, in bytes. A line of more blanks is counted as no JSON."""
_CODED = ["unit", "last_role", "tools", "calls", "replies", "system", "offered", "grade"]
_PLAIN_STATISTICS = ["time", "group", "source", "line", "pick", "draw"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every block needs to know."""

    formats: tuple[Any, ...]
    names: tuple[str, ...]
    unit: str | None
    columns: dict[str, str]
    redact: dict[str, str]
    largest: int
    staged: Path

    @property
    def own(self) -> Own:
        return Own(self.unit, self.columns)


@dataclass(slots=True)
class Tally:
    """What a block held, apart from the rows that are in its part."""

    num_rows: dict[str, int] = field(default_factory=dict)
    """Rows by index of the source."""
    num_conversations: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unread: list[list[Any]] = field(default_factory=list)
    """The first of them: source, line, why."""
    kept: dict[str, int] = field(default_factory=dict)
    """Rows that lack something and are kept, by reason."""
    met: dict[str, int] = field(default_factory=dict)
    ignored_keys: dict[str, int] = field(default_factory=dict)
    redacted: dict[str, int] = field(default_factory=dict)
    continues: list[int] = field(default_factory=list)
    """Rows that hold only what is new in their conversation."""
    aliases: list[list[str]] = field(default_factory=list)
    """Another name of a conversation, and its id."""

    def count(self, source: int, number: int) -> None:
        key = str(source)
        self.num_rows[key] = self.num_rows.get(key, 0) + number

    def reject(self, source: int, line: int, why: str, kind: str = "") -> None:
        kind = kind or why.partition(":")[0]
        self.rejected[kind] = self.rejected.get(kind, 0) + 1
        if len(self.unread) < UNREAD:
            self.unread.append([source, line, why])


def staged(plan: Plan, number: int) -> tuple[Path, Path]:
    """Name the two files of a block."""
    stem = plan.staged / f"block-{number:05d}"
    return stem.with_suffix(".parquet"), stem.with_suffix(".json")


def write(table: pa.Table, path: Path) -> None:
    """Write a part. The same table gives the same bytes."""
    coded = [name for name in table.column_names if name in _CODED or name.startswith("own_")]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=1,
        use_dictionary=coded,  # pyright: ignore[reportArgumentType]
        write_statistics=_PLAIN_STATISTICS,  # pyright: ignore[reportArgumentType]
        row_group_size=max(1, table.num_rows),
    )


def make(engine: Engine, plan: Plan, block: Block) -> None:
    """Stage a block."""
    parquet, tally_path = staged(plan, block.number)
    part = _Part(engine, plan)
    for skipped in block.skipped:
        part.tally.count(skipped.source, 1)
        part.tally.reject(skipped.source, skipped.line, skipped.why)
    for piece in block.pieces:
        if piece.is_rows or plan.formats[piece.source].name != "own":
            part.add_rows(piece.source, _foreign(plan, piece))
        else:
            part.add_lines(piece)
    table = part.table()
    with files.replacing(parquet) as path:
        write(table, path)
    part.tally.num_conversations = table.num_rows
    files.write_text(json.dumps(dataclasses.asdict(part.tally)) + "\n", tally_path)


def _foreign(plan: Plan, piece: Piece) -> Iterator[tuple[int, Any]]:
    if piece.is_rows:
        return ((number, row) for number, row in map(json.loads, piece.data.splitlines()))
    return plan.formats[piece.source].rows(piece.data, piece.first_line, plan.names[piece.source])


class _Part:
    """The rows of a block, as they come in."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.engine, self.plan, self.tally = engine, plan, Tally()
        self.own = plan.own
        self._tables: list[pa.Table] = []
        self._num_rows = 0

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables) if self._tables else self.own.schema.empty_table()

    # -- lines of our own format --
    def add_lines(self, piece: Piece) -> None:
        texts, numbers = self._split(piece)
        sizes = np.cumsum(pc.binary_length(texts).to_numpy().astype(np.int64)) if len(texts) else np.zeros(0, np.int64)
        first = 0
        while first < len(texts):
            begun = sizes[first - 1] if first else 0
            after = max(first + 1, int(np.searchsorted(sizes, begun + _CHUNK, side="right")))
            is_last = piece.is_end and after == len(texts) and not piece.data.endswith(b"\n")
            self._add_chunk(piece.source, texts.slice(first, after - first), numbers[first:after], is_last)
            first = after

    def _split(self, piece: Piece) -> tuple[pa.StringArray, np.ndarray]:
        """Return the lines that are texts and not blank, and their numbers."""
        data = np.frombuffer(piece.data, dtype=np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        if len(data) and data[-1] != ord("\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        numbers = piece.first_line + np.arange(len(ends))
        lengths = ends - starts
        fits = lengths <= self.plan.largest
        for line in numbers[~fits]:
            self.tally.count(piece.source, 1)
            self.tally.reject(piece.source, int(line), too_long(self.plan.largest))
        bounds = np.append(starts, len(data)).astype(np.int32)  # each line with its line break
        lines = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(piece.data)])
        lines = lines.filter(pa.array(fits)) if not fits.all() else lines
        numbers = numbers[fits]
        try:
            texts = lines.cast(pa.string())
        except pa.ArrowInvalid:
            texts, numbers = self._texts(piece.source, lines, numbers)
        blank = [
            int(n)
            for n in np.flatnonzero(pc.less(pc.binary_length(texts), _SHORTEST).to_numpy(zero_copy_only=False))
            if not texts[int(n)].as_py().strip(" \t\r\n")
        ]
        if not blank:
            return texts, numbers
        there = np.ones(len(texts), dtype=bool)
        there[blank] = False
        return texts.filter(pa.array(there)), numbers[there]

    def _texts(self, source: int, lines: pa.BinaryArray, numbers: np.ndarray) -> tuple[pa.StringArray, np.ndarray]:
        """Leave out the lines that are not UTF-8."""
        good = np.ones(len(lines), dtype=bool)
        for n, line in enumerate(lines):
            try:
                line.as_py().decode()
            except UnicodeDecodeError as error:
                good[n] = False
                self.tally.count(source, 1)
                self.tally.reject(source, int(numbers[n]), f"not UTF-8: byte {error.start + 1} of the line")
        return lines.filter(pa.array(good)).cast(pa.string()), numbers[good]

    def _add_chunk(self, source: int, lines: pa.StringArray, numbers: np.ndarray, is_last: bool) -> None:
        if self.plan.redact:
            parsed, good = None, np.zeros(len(lines), dtype=bool)
        else:
            parsed, good = take(self.engine, lines, self.own.lookups)
        tables: list[pa.Table] = []
        if parsed is not None and parsed.num_rows:
            tables.append(self._build(parsed, [source] * parsed.num_rows, numbers[good]))
            self._ignored(parsed["keys"])
        exact = (
            (int(numbers[n]), self._exact(lines[int(n)].as_py(), is_last and n == len(lines) - 1))
            for n in np.flatnonzero(~good)
        )
        tables += self._normal(source, exact)
        self.tally.count(source, int(good.sum()))
        if len(tables) > 1:
            whole = pa.concat_tables(tables)
            tables = [whole.take(pc.sort_indices(whole["line"]))]
        self._take_in(tables)

    def _exact(self, line: str, is_last: bool) -> dict[str, Any] | normal.Unreadable:
        try:
            row = normal.parse(line.encode().strip(b" \t\r\n"), is_last)
        except normal.Unreadable as error:
            return error
        return {key: row.get(key) for key in normal.KEYS} | {"record": row, "unknown": row.keys() - self._known}

    # -- rows of other formats --
    def add_rows(self, source: int, rows: Iterator[tuple[int, Any]]) -> None:
        self._take_in(self._normal(source, rows))

    def _normal(self, source: int, rows: Iterator[tuple[int, Any]]) -> list[pa.Table]:
        """Read rows one by one, and make their columns by the chunk."""
        tables: list[pa.Table] = []
        some: list[dict[str, Any]] = []
        numbers: list[int] = []
        size = 0
        for number, row in rows:
            self.tally.count(source, 1)
            if isinstance(row, str | normal.Unreadable):
                self.tally.reject(source, number, str(row), getattr(row, "kind", ""))
                continue
            try:
                found = normal.conversation(row)
                record = row.get("record") or {}
                found["record"] = {key: record[key] for key in self._roots if key in record}
                size += len(normal.line(found))
            except normal.Unreadable as error:
                self.tally.reject(source, number, str(error), error.kind)
                continue
            self._noted(source, row)
            if row.get("continues"):
                self.tally.continues.append(self._num_rows + sum(map(len, tables)) + len(some))
            if row.get("alias"):
                self.tally.aliases.append([row["alias"], found["conversation_id"]])
            some.append(found)
            numbers.append(number)
            if size >= _CHUNK:
                tables.append(self._columns(source, some, numbers))
                some, numbers, size = [], [], 0
        if some:
            tables.append(self._columns(source, some, numbers))
        return tables

    def _noted(self, source: int, row: dict[str, Any]) -> None:
        """Count what a format says of a row besides the row."""
        self._count(self.tally.ignored_keys, dict.fromkeys(row.get("unknown") or (), 1))
        if row.get("note"):
            self._count(self.tally.kept, {row["note"]: 1})
        for reason, number in (row.get("counts") or {}).items():
            self.tally.count(source, number)
            self._count(self.tally.rejected, {reason: number})

    def _columns(self, source: int, rows: list[dict[str, Any]], numbers: list[int]) -> pa.Table:
        if self.plan.redact:
            rows, counts = redact.redact(rows, self.plan.redact)
            self._count(self.tally.redacted, counts)
        lines = pa.array([normal.line(row) for row in rows], pa.string())
        parsed, _ = take(self.engine, lines, self.own.lookups, below="/record", trusted=True)
        return self._build(parsed, [source] * len(rows), np.asarray(numbers))

    # -- tables --
    def _build(self, parsed: pa.Table, source: list[int], numbers: np.ndarray) -> pa.Table:
        built = build(self.engine, parsed, self.own, pa.array(source, pa.int32()), pa.array(numbers, pa.int64()))
        self._count(self.tally.kept, built.kept)
        self._count(self.tally.met, built.met)
        return built.table

    def _take_in(self, tables: list[pa.Table]) -> None:
        self._tables += tables
        self._num_rows += sum(table.num_rows for table in tables)

    def _ignored(self, keys: pa.ChunkedArray) -> None:
        counted = pc.value_counts(pc.list_flatten(keys)).to_pylist()
        self._count(
            self.tally.ignored_keys,
            {each["values"]: each["counts"] for each in counted if each["values"] not in self._known},
        )

    @property
    def _known(self) -> set[str]:
        return {*normal.KEYS, *self._roots}

    @property
    def _roots(self) -> set[str]:
        return {root for lookup in self.own.lookups for root in lookup.roots}

    @staticmethod
    def _count(into: dict[str, int], found: dict[str, int]) -> None:
        for key, number in found.items():
            into[key] = into.get(key, 0) + number


def summed(tallies: list[Tally]) -> Tally:
    """Add up what blocks held, in their order."""
    total = Tally()
    for name in ("num_rows", "rejected", "kept", "met", "ignored_keys", "redacted"):
        counter = Counter[str]()
        for tally in tallies:
            counter.update(getattr(tally, name))
        setattr(total, name, dict(sorted(counter.items())))
    total.num_conversations = sum(tally.num_conversations for tally in tallies)
    total.unread = [found for tally in tallies for found in tally.unread]
    return total
