"""Keep conversations whole: rows of one conversation may be anywhere in a log.

An id is in several rows when a log was delivered twice, when a request repeats the history, or when
a conversation went on in the next file. If a sort shows that all ids differ, there is nothing to
do. Otherwise DuckDB finds the repeated ids over all staged parts in bounded memory; all other rows
stay untouched. The rows of one id are then compared in the order of the log:

    equal content                      one stays; "repeated"
    the messages of one begin another  the longer one stays; "continued"
    rows that hold only what is new    are joined in the order of time; "joined"
    anything else                      the first stays, the other is unreadable: "other content"

Rows that are lost here are counted, so the rows of a log are the conversations plus the counted
rows. Only the parts that lose or change a row are written again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rft.traffic import formats, normal, parts, schema
from rft.traffic.columns import Own, build
from rft.traffic.lines import take

if TYPE_CHECKING:  # loaded only where it is needed: most logs have each id once
    import duckdb

REPEATED, CONTINUED, JOINED = "repeated", "continued", "joined"
OTHER = "other content"
_MEMORY = "300MB"
_MOST_SORTED = 4_000_000
"""The most rows whose ids are sorted in memory: 32 MB of hashes, and as much again."""
_CONTENT = ("time", "messages", "latency_s", "tool_errors", "feedback", "offered", "unit")

Place = tuple[int, int]
"""Number of a part, and of a row in it."""


@dataclass(slots=True)
class Changes:
    """What becomes of the rows whose id is in several rows."""

    counts: Counter[str] = field(default_factory=Counter)
    unread: list[list[Any]] = field(default_factory=list)
    drop: dict[int, set[int]] = field(default_factory=dict)
    """Rows that are dropped, by part."""
    put: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """Rows that were joined from several, by part."""

    def lose(self, place: Place, why: str) -> None:
        self.drop.setdefault(place[0], set()).add(place[1])
        self.counts[why] += 1


@dataclass(frozen=True, slots=True)
class Fragments:
    """What formats say about rows that are not a whole conversation."""

    continues: dict[int, frozenset[int]]
    """Rows that hold only what is new, by part."""
    roots: dict[str, str]
    """An id that is another name of a conversation -> the conversation's id."""


def find(staged: Sequence[Path], fragments: Fragments, names: Sequence[str], scratch: Path) -> Changes:
    """Find the rows to drop and to join. `names`: those of the sources. `scratch`: a folder for
    what does not fit into memory. Raises OSError when the folder cannot be used."""
    changes = Changes()
    if not fragments.roots and _all_differ(staged):
        return changes
    import duckdb

    settings = {"threads": 1, "memory_limit": _MEMORY, "temp_directory": str(scratch)}
    try:
        with duckdb.connect(config=settings) as connection:
            connection.execute("set timezone = 'UTC'")
            if _index(connection, staged, fragments):
                for rows in _groups(connection, staged):
                    _resolve(rows, fragments, names, changes)
    except duckdb.Error as error:
        raise OSError(str(error).splitlines()[0]) from error
    return changes


# -- which ids are in several rows -----------------------------------------------------------------
def _all_differ(staged: Sequence[Path]) -> bool:
    """Tell whether the hashes of all ids differ; False also where there are too many to sort."""
    found: list[np.ndarray] = []
    for path in staged:
        with pq.ParquetFile(path) as file:
            found.append(file.read(columns=["pick"], use_threads=False)["pick"].to_numpy())
        if sum(map(len, found)) > _MOST_SORTED:
            return False
    picks = np.sort(np.concatenate(found)) if found else np.zeros(0, np.uint64)
    return not bool((picks[1:] == picks[:-1]).any())


def _index(connection: duckdb.DuckDBPyConnection, staged: Sequence[Path], fragments: Fragments) -> int:
    """Make the table `several`: part, row, known (the hash of the id) and hash of the content."""
    known = "pick"
    if fragments.roots:
        pairs = pa.table({"alias": list(fragments.roots), "root": list(fragments.roots.values())})
        connection.register("roots", pairs)
        known = "md5_number_lower(coalesce(root, conversation_id))"
    connection.execute("create table seen (part integer, row bigint, known ubigint)")
    for number, path in enumerate(staged):
        joined = "left join roots on alias = conversation_id" if fragments.roots else ""
        connection.execute(
            f"insert into seen select {number}, file_row_number, {known} "
            f"from read_parquet('{_quoted(path)}', file_row_number = true) {joined}"
        )
    connection.execute(
        "create table several as select part, row, known from seen "
        "where known in (select known from seen group by known having count(*) > 1)"
    )
    connection.execute("drop table seen")
    (number,) = connection.execute("select count(*) from several").fetchone() or (0,)
    return int(number)


def _groups(connection: duckdb.DuckDBPyConnection, staged: Sequence[Path]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each id that is in several rows, in the order of the log."""
    connection.execute("create table content (known ubigint, part integer, row bigint, id varchar, hash uhugeint)")
    for (number,) in connection.execute("select distinct part from several order by part").fetchall():
        columns = pq.read_schema(staged[number]).names
        content = [*_CONTENT, *(name for name in columns if name.startswith("own_"))]
        value = ", ".join(f"'{name}': \"{name}\"" for name in content)
        connection.execute(
            f"insert into content select known, part, row, conversation_id, md5_number(({{{value}}})::varchar) "
            f"from read_parquet('{_quoted(staged[number])}', file_row_number = true) "
            f"join several on part = {number} and row = file_row_number"
        )
    cursor = connection.cursor()
    cursor.execute("select known, part, row, id, hash from content order by known, part, row")
    equal: list[dict[str, Any]] = []
    for rows in _grouped(cursor):
        if len({(row["id"], row["hash"]) for row in rows}) == 1:
            equal = rows
            yield equal
    yield from _different(connection, staged)


def _grouped(cursor: duckdb.DuckDBPyConnection) -> Iterator[list[dict[str, Any]]]:
    names = [each[0] for each in cursor.description]

    def rows() -> Iterator[dict[str, Any]]:
        while found := cursor.fetchmany(1024):
            yield from (dict(zip(names, row, strict=True)) for row in found)

    for _, group in groupby(rows(), key=lambda row: row["known"]):
        yield list(group)


def _different(connection: duckdb.DuckDBPyConnection, staged: Sequence[Path]) -> Iterator[list[dict[str, Any]]]:
    """Yield whole rows of the ids whose rows differ."""
    connection.execute(
        "create table different as select * from content where known in "
        "(select known from content group by known having count(distinct (id, hash)) > 1)"
    )
    connection.execute(
        "create table whole (known ubigint, part integer, row bigint, id varchar, hash uhugeint, time timestamptz, "
        "messages varchar, latency_s double, tool_errors integer, feedback varchar, source integer, line bigint)"
    )
    for (number,) in connection.execute("select distinct part from different order by part").fetchall():
        connection.execute(
            "insert into whole select d.known, d.part, d.row, d.id, d.hash, p.time, p.messages, p.latency_s, "
            f"p.tool_errors, p.feedback, p.source, p.line from different d "
            f"join read_parquet('{_quoted(staged[number])}', file_row_number = true) p "
            f"on d.part = {number} and d.row = p.file_row_number"
        )
    cursor = connection.cursor()
    cursor.execute("select * from whole order by known, part, row")
    yield from _grouped(cursor)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


# -- what becomes of them --------------------------------------------------------------------------
def _resolve(rows: list[dict[str, Any]], fragments: Fragments, names: Sequence[str], changes: Changes) -> None:
    by_id: dict[str, list[dict[str, Any]]] = {}  # two ids may have one hash
    for row in rows:
        name: str = row["id"]
        by_id.setdefault(fragments.roots.get(name, name), []).append(row)
    for identity, same in by_id.items():
        if any(row["row"] in fragments.continues.get(row["part"], ()) for row in same):
            _join(identity, same, changes)
        else:
            _choose(same, names, changes)


def _choose(rows: list[dict[str, Any]], names: Sequence[str], changes: Changes) -> None:
    kept = rows[0]
    for row in rows[1:]:
        if row["hash"] == kept["hash"] or _is_equal(row, kept):
            changes.lose(_place(row), REPEATED)
        elif _begins(kept, row):
            changes.lose(_place(kept), CONTINUED)
            kept = row
        elif _begins(row, kept):
            changes.lose(_place(row), CONTINUED)
        else:
            first = f"{names[kept['source']]}:{kept['line']}"
            changes.lose(_place(row), OTHER)
            why = f"{OTHER}: conversation_id {row['id']!r} was met before, at {first}"
            changes.unread.append([row["source"], row["line"], why])


def _join(identity: str, rows: list[dict[str, Any]], changes: Changes) -> None:
    """Make one conversation from rows that hold only what is new, in the place of the first row."""
    distinct: list[dict[str, Any]] = []
    for row in rows:
        if any(row["hash"] == other["hash"] for other in distinct):
            changes.lose(_place(row), REPEATED)
        else:
            distinct.append(row)
    target = distinct[0]
    for row in distinct[1:]:
        changes.lose(_place(row), JOINED)
    in_time = sorted(distinct, key=lambda row: row["time"])
    messages: list[dict[str, Any]] = []
    for row in in_time:
        more = json.loads(row["messages"])
        messages = formats.extend(messages, more) if messages else more
    feedback = [row["feedback"] for row in in_time if row["feedback"] is not None]
    place = _place(target)
    changes.put.setdefault(place[0], {})[place[1]] = {
        "conversation_id": identity,
        "time": normal.iso(in_time[0]["time"]),
        "messages": messages,
        "latency_s": _total(row["latency_s"] for row in in_time),
        "tool_errors": _total(row["tool_errors"] for row in in_time),
        "feedback": json.loads(feedback[-1]) if feedback else None,
    }


def _total(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _place(row: dict[str, Any]) -> Place:
    return row["part"], row["row"]


def _is_equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Compare rows whose hashes differ, but which may be the same JSON in another order of keys."""
    if any(a[name] != b[name] for name in ("time", "latency_s", "tool_errors")):
        return False
    return all(_value(a[name]) == _value(b[name]) for name in ("messages", "feedback"))


def _begins(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Tell whether the messages of `b` begin with those of `a` and go on."""
    if b["messages"].startswith(a["messages"][:-1] + ","):
        return True
    shorter, longer = _value(a["messages"]), _value(b["messages"])
    return len(shorter) < len(longer) and longer[: len(shorter)] == shorter


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


# -- parts that change -----------------------------------------------------------------------------
def apply(path: Path, number: int, changes: Changes, own: Own, target: Path) -> int:
    """Write a part again without the dropped rows, and with the joined ones. Returns how many rows
    it has."""
    table = pq.read_table(path, use_threads=False)
    put = changes.put.get(number, {})
    if put:
        table = _with(table, put, own)
    gone = np.zeros(table.num_rows, dtype=bool)
    gone[sorted(changes.drop.get(number, ()))] = True
    table = table.filter(pa.array(~gone))
    parts.write(table, target)
    return table.num_rows


def _with(table: pa.Table, put: dict[int, dict[str, Any]], own: Own) -> pa.Table:
    places = sorted(put)
    parsed, _ = take([normal.line(put[place]).encode() for place in places], [], trusted=True)
    old = table.take(pa.array(places))
    made = build(parsed, Own(), old["source"].combine_chunks(), old["line"].combine_chunks()).table
    kept = {"unit", "offered", *(("draw", "group") if own.unit else ())}
    columns = [
        old[field.name] if field.name in kept or field.name.startswith(schema.OWN) else made[field.name]
        for field in own.schema
    ]
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[places] = True
    joined = pa.concat_tables([table.filter(pa.array(~mask)), pa.table(columns, schema=own.schema)])
    order = np.concatenate([np.flatnonzero(~mask), np.asarray(places)])
    return joined.take(pa.array(np.argsort(order, kind="stable")))
