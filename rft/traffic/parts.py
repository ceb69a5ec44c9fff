"""Turn a block of a log into a part of a snapshot, in one process.

Lines of our own format are parsed by the thousand (rft/traffic/lines.py). Lines in doubt, rows of
other formats, and all rows if `traffic.redact` has rules are read one by one
(rft/traffic/normal.py).
They are written as normal lines, and then parsed like the others. So each column is made in one
place, wherever the row came from.

A part, and the record of what was not taken, are staged as two files. The second is written last:

    block-00007.parquet     the rows, in the order of the log
    block-00007.json        `Tally`
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rft import files
from rft.traffic import normal, redact
from rft.traffic.arrow import pc
from rft.traffic.blocks import Block, Piece, too_long
from rft.traffic.columns import Own, build
from rft.traffic.lines import Parsed, take

UNREAD = 100
"""The most unreadable rows that are named."""
_CHUNK = 8 << 20
"""Bytes of lines that are parsed at once. This takes about ten times as much memory."""
_SHORTEST = 40
"""No conversation is shorter than this, in bytes. A longer line of blanks counts as not JSON."""
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
    """What a block held besides the rows in its part."""

    num_rows: dict[str, int] = field(default_factory=dict)
    """Number of rows, by index of the source."""
    num_conversations: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unread: list[list[Any]] = field(default_factory=list)
    """The first rejected rows: source, line, why."""
    kept: dict[str, int] = field(default_factory=dict)
    """Rows that lack something but are kept, by reason."""
    met: dict[str, int] = field(default_factory=dict)
    ignored_keys: dict[str, int] = field(default_factory=dict)
    redacted: dict[str, int] = field(default_factory=dict)
    continues: list[int] = field(default_factory=list)
    """Rows that hold only what is new in their conversation."""
    aliases: list[list[str]] = field(default_factory=list)
    """Pairs: another name of a conversation, and its id."""

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


def make(plan: Plan, block: Block) -> None:
    """Stage a block."""
    parquet, tally_path = staged(plan, block.number)
    part = _Part(plan)
    with redact.quoting(plan.redact):
        _fill(part, plan, block)
    table = part.table()
    with files.replacing(parquet) as path:
        write(table, path)
    part.tally.num_conversations = table.num_rows
    tally = redacted(part.tally, plan.redact) if plan.redact else part.tally
    files.write_text(json.dumps(dataclasses.asdict(tally)) + "\n", tally_path)


def _fill(part: _Part, plan: Plan, block: Block) -> None:
    for skipped in block.skipped:
        part.tally.count(skipped.source, 1)
        part.tally.reject(skipped.source, skipped.line, skipped.why)
    for piece in block.pieces:
        if piece.is_rows or plan.formats[piece.source].name != "own":
            part.add_rows(piece.source, _foreign(plan, piece))
        else:
            part.add_lines(piece)


def _foreign(plan: Plan, piece: Piece) -> Iterator[tuple[int, Any]]:
    if piece.is_rows:
        return ((number, row) for number, row in map(json.loads, piece.data.splitlines()))
    return plan.formats[piece.source].rows(piece.data, piece.first_line, plan.names[piece.source])


class _Part:
    """Collects the rows of a block."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tally = plan, Tally()
        self.own = plan.own
        self._tables: list[pa.Table] = []
        self._num_rows = 0

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables) if self._tables else self.own.schema.empty_table()

    # -- lines of our own format --
    def add_lines(self, piece: Piece) -> None:
        lines, numbers = self._split(piece)
        ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
        first = 0
        while first < len(lines):
            begun = ends[first - 1] if first else 0
            after = max(first + 1, int(np.searchsorted(ends, begun + _CHUNK, side="right")))
            is_last = piece.is_end and after == len(lines) and not piece.data.endswith(b"\n")
            self._add_chunk(piece.source, lines[first:after], numbers[first:after], is_last)
            first = after

    def _split(self, piece: Piece) -> tuple[list[bytes], np.ndarray]:
        """Return the lines that are texts and not blank, and their numbers."""
        lines = piece.data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        refused = np.zeros(len(lines), dtype=bool)
        is_text = _is_utf8(piece.data)
        for place, line in enumerate(lines):
            if len(line) < _SHORTEST and not line.strip(b" \t\r\n"):
                refused[place] = True
                continue
            why = too_long(self.plan.largest) if len(line) > self.plan.largest else "" if is_text else _not_utf8(line)
            if why:
                refused[place] = True
                self.tally.count(piece.source, 1)
                self.tally.reject(piece.source, piece.first_line + place, why)
        numbers = piece.first_line + np.flatnonzero(~refused)
        return (list(compress(lines, ~refused)) if refused.any() else lines), numbers

    def _add_chunk(self, source: int, lines: list[bytes], numbers: np.ndarray, is_last: bool) -> None:
        good = np.zeros(len(lines), dtype=bool)
        tables: list[pa.Table] = []
        if not self.plan.redact:
            parsed, good = take(lines, self.own.lookups)
            if len(parsed):
                tables.append(self._build(parsed, source, numbers[good]))
                self._count(self.tally.ignored_keys, {k: n for k, n in parsed.unknown.items() if k not in self._known})
        exact = (
            (int(numbers[n]), self._exact(lines[n], is_last and n == len(lines) - 1)) for n in np.flatnonzero(~good)
        )
        tables += self._normal(source, exact)
        self.tally.count(source, int(good.sum()))
        if len(tables) > 1:
            whole = pa.concat_tables(tables)
            tables = [whole.take(pc.sort_indices(whole["line"]))]
        self._take_in(tables)

    def _exact(self, line: bytes, is_last: bool) -> dict[str, Any] | normal.Unreadable:
        try:
            row = normal.parse(line.strip(b" \t\r\n"), is_last)
        except normal.Unreadable as error:
            return error
        return {key: row.get(key) for key in normal.KEYS} | {"record": row, "unknown": row.keys() - self._known}

    # -- rows of other formats --
    def add_rows(self, source: int, rows: Iterator[tuple[int, Any]]) -> None:
        self._take_in(self._normal(source, rows))

    def _normal(self, source: int, rows: Iterator[tuple[int, Any]]) -> list[pa.Table]:
        """Read rows one by one, and make their columns chunk by chunk."""
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
        """Count what a format says about a row."""
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
            rows, counts = redact.hide(rows, self.own.names, self.plan.redact)
            self._count(self.tally.redacted, counts)
        lines = [normal.line(row).encode() for row in rows]
        parsed, _ = take(lines, self.own.lookups, below="record", trusted=True)
        return self._build(parsed, source, np.asarray(numbers))

    # -- tables --
    def _build(self, parsed: Parsed, source: int, numbers: np.ndarray) -> pa.Table:
        sources = pa.array(np.full(len(parsed), source, dtype=np.int32))
        built = build(parsed, self.own, sources, pa.array(numbers, pa.int64()))
        self._count(self.tally.kept, built.kept)
        self._count(self.tally.met, built.met)
        return built.table

    def _take_in(self, tables: list[pa.Table]) -> None:
        self._tables += tables
        self._num_rows += sum(table.num_rows for table in tables)

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


def redacted(tally: Tally, rules: dict[str, str]) -> Tally:
    """Return a tally whose quotations from the log are redacted by the rules."""
    whys = redact.quotable([why for _, _, why in tally.unread], rules)
    ignored: dict[str, int] = {}
    for key, number in zip(redact.quotable([*tally.ignored_keys], rules), tally.ignored_keys.values(), strict=True):
        ignored[key] = ignored.get(key, 0) + number
    return dataclasses.replace(
        tally,
        unread=[[source, line, why] for (source, line, _), why in zip(tally.unread, whys, strict=True)],
        ignored_keys=ignored,
        aliases=[redact.hidden(names, rules)[0] for names in tally.aliases],
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(line: bytes) -> str:
    """Say where a line is not UTF-8; empty if it is."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start + 1} of the line"
    return ""


def summed(tallies: list[Tally]) -> Tally:
    """Add up the tallies of blocks, in their order."""
    total = Tally()
    for name in ("num_rows", "rejected", "kept", "met", "ignored_keys", "redacted"):
        counter = Counter[str]()
        for tally in tallies:
            counter.update(getattr(tally, name))
        setattr(total, name, dict(sorted(counter.items())))
    total.num_conversations = sum(tally.num_conversations for tally in tallies)
    total.unread = [found for tally in tallies for found in tally.unread]
    return total
