"""Parse thousands of lines at once, and tell which of them are surely normal conversations.

DuckDB parses lines into columns, then messages, then calls: each level is one flat column, and
offsets say what belongs together. What is not surely normal is left to rft/snapshots/normal.py,
which looks at one row at a time and is always right. So every check here may be too strict, and
none too lenient. DuckDB's parser is lenient in known ways, hence the checks on the raw text:

    trailing commas, NaN      accepted there             a regular expression finds them
    1e999, very long numbers  kept as they are           the same
    duplicate keys            the first counts           keys are compared, or their lengths are
    types                     converted                  everything is taken as JSON, and its first
                                                         character tells the type
    nesting                   as deep as the stack       few enough brackets

*Lengths:* DuckDB writes JSON in one way. If the lengths of the known keys and values of a message
add up to its own length, then it has no other key, and none twice. The few other messages are
parsed once more for their keys.

    take(lines, paths)    the normal ones as a table, and which they are
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from rft.rows import ROLES
from rft.snapshots.arrow import pc

MOST_BRACKETS = 900
"""More of them in a line may be nested deeper than Python's parser goes."""
_IN_DOUBT = r",[ \t\r]*[}\]]|[:,\[][ \t\r]*[+-]?(?i:nan|inf(?:inity)?)[ \t\r]*[,}\]]|[0-9][eE]\+?[0-9]{3}|[0-9]{300}"
_ID = '{"conversation_id":"JSON","time":"JSON","messages":["JSON"],"latency_s":"JSON","tool_errors":"JSON","feedback":"JSON","tools":"JSON"}'  # noqa: E501
_TIME = r'"[12]\d{3}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"'
_ROWS = f"""
select
    coalesce(left(id, 1) = '"' and strlen(id) > 2, false)
        and coalesce(regexp_full_match(stamp, '{_TIME}'), false)
        and coalesce(len(messages) > 0, false)
        and (latency is null or coalesce(abs(try_cast(latency as double)) < 1e15 and left(latency, 1) <> '"', false))
        and (errors is null or regexp_full_match(errors, '-?[0-9]{{1,9}}'))
        and (tools is null or left(tools, 1) = '[') as good,
    case when left(id, 1) = '"' then id::json->>'$' end as conversation_id,
    try_cast(stamp[2:-2] as timestamptz) as time,
    messages,
    try_cast(latency as double) as latency_s,
    try_cast(errors as integer) as tool_errors,
    feedback,
    tools,
    try(json_keys(line)) as keys
    OWN
from (
    select
        line, k, k.conversation_id::varchar as id, k.time::varchar as stamp, k.messages as messages,
        k.latency_s::varchar as latency, k.tool_errors::varchar as errors, k.feedback::varchar as feedback,
        k.tools::varchar as tools
    from (select line, try(from_json(line, '{_ID}')) as k from lines)
)
"""
_MESSAGES = """
select
    k.role::varchar as role,
    k.content::varchar as content,
    case when left(k.content::varchar, 1) = '"' then k.content->>'$' end as text,
    k.tool_calls as calls,
    strlen(m) - 1 - coalesce(8 + strlen(k.role::varchar), 0) - coalesce(11 + strlen(k.content::varchar), 0)
        - coalesce(16 + strlen(k.tool_call_id::varchar), 0) - coalesce(8 + strlen(k.name::varchar), 0) as rest
from (
    select m, try(from_json(
        m, '{"role":"JSON","content":"JSON","tool_calls":["JSON"],"tool_call_id":"JSON","name":"JSON"}'
    )) as k
    from messages
)
"""
_CALLS = """
select
    coalesce(left(name, 1) = '"' and left(arguments, 1) = '"', false) as good,
    case when left(name, 1) = '"' then name::json->>'$' end as name,
    case when left(arguments, 1) = '"' then arguments::json->>'$' end as arguments,
    strlen(c) - 35 - strlen(name) - strlen(arguments) - coalesce(6 + strlen(id), 0) - coalesce(8 + strlen(type), 0)
        as rest
from (
    select c, k.function.name::varchar as name, k.function.arguments::varchar as arguments, k.id::varchar as id,
        k.type::varchar as type
    from (
        select c, try(from_json(
            c, '{"id":"JSON","type":"JSON","function":{"name":"JSON","arguments":"JSON"}}'
        )) as k
        from calls
    )
)
"""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a value of the owner's stands in a row: `user_id`, or the path `user.id`."""

    name: str
    key: str

    def pointers(self, below: str = "") -> list[str]:
        """Return JSON pointers, the exact key first."""
        exact = f"{below}/{_escaped(self.key)}"
        path = below + "".join(f"/{_escaped(key)}" for key in self.key.split("."))
        return [exact] if exact == path else [exact, path]

    @property
    def roots(self) -> set[str]:
        """The keys of a row that it may be below."""
        return {self.key, self.key.split(".")[0]}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class Engine:
    """A DuckDB connection with one thread and bounded memory."""

    def __init__(self, memory: str = "256MB") -> None:
        self.connection = duckdb.connect(config={"threads": 1, "memory_limit": memory})
        self.connection.execute("set timezone = 'UTC'")

    def run(self, sql: str, **columns: pa.Array) -> pa.Table:
        """Run a query over arrays of the same length, each a column `c` of a table `cs`."""
        names = {"line": "lines", "m": "messages", "c": "calls", "t": "texts"}
        column, values = next(iter(columns.items()))
        self.connection.register(names[column], pa.table({column: values}))
        try:
            return self.connection.sql(sql).to_arrow_table()
        finally:
            self.connection.unregister(names[column])


@dataclass(frozen=True)
class Parsed:
    """Normal rows: a table whose messages are a list of (json, role, text, calls)."""

    table: pa.Table

    @cached_property
    def messages(self) -> pa.ListArray:
        return whole(self.table["messages"])


def whole(column: pa.ChunkedArray) -> Any:
    """Return a column as one array that begins at its buffer's beginning."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def offsets(lists: pa.ListArray) -> np.ndarray:
    """Return where each list begins and ends in `lists.flatten()`. No list may be null."""
    found = lists.offsets.to_numpy().astype(np.int64)
    return found - found[0]


def owners(bounds: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return which list each item is in."""
    return np.searchsorted(bounds, items, side="right") - 1


def take(
    engine: Engine, lines: pa.StringArray, lookups: list[Lookup], below: str = "", trusted: bool = False
) -> tuple[pa.Table, np.ndarray]:
    """Parse lines. Returns the normal ones, and for each line whether it is one of them.

    `below`: where the lookups start, such as `/record`. `trusted`: the lines are known to be
    normal, because rft/snapshots/normal.py wrote them.
    """
    own = [
        f"coalesce({', '.join(_extract(p) for p in each.pointers(below))})::varchar as own_{n}"
        for n, each in enumerate(lookups)
    ]
    rows = engine.run(_ROWS.replace("OWN", "".join(f", {column}" for column in own)), line=lines)
    good = _bools(rows["good"]) & rows["time"].is_valid().to_numpy(zero_copy_only=False)
    if not trusted:
        good &= ~_bools(pc.match_substring_regex(lines, _IN_DOUBT))
        good &= _num_brackets(lines) <= MOST_BRACKETS
        good &= _keys_differ(engine, whole(rows["keys"]), lines, lookups)
    kept = rows.filter(pa.array(good))
    messages, fine = _messages(engine, whole(kept["messages"]), trusted)
    kept = kept.set_column(kept.schema.get_field_index("messages"), "messages", messages)
    if not fine.all():
        kept = kept.filter(pa.array(fine))
        good[np.flatnonzero(good)[~fine]] = False
    assert good.all() or not trusted, "a line that was written as normal is not"
    return kept, good


def _extract(pointer: str) -> str:
    return "try(json_extract(line, '" + pointer.replace("'", "''") + "'))"


def _bools(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(bool)


def _num_brackets(texts: pa.StringArray) -> np.ndarray:
    """Count `[` and `{`, which bound the depth."""
    bounds = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = texts.buffers()[2]
    data = np.frombuffer(content, dtype=np.uint8) if content is not None else np.zeros(0, np.uint8)
    part = data[bounds[0] : bounds[-1]]
    places = np.flatnonzero((part | 0x20) == 0x7B) + bounds[0]
    return np.diff(np.searchsorted(places, bounds))


def _keys_differ(engine: Engine, keys: pa.ListArray, lines: pa.StringArray, lookups: list[Lookup]) -> np.ndarray:
    """Tell for each row whether no key stands twice where we look."""
    valid = keys.is_valid().to_numpy(zero_copy_only=False)
    names = keys.flatten().dictionary_encode()
    lengths = np.where(valid, pc.fill_null(keys.value_lengths(), 0).to_numpy(), 0)
    row = np.repeat(np.arange(len(keys)), lengths)
    pairs = row * max(1, len(names.dictionary)) + names.indices.to_numpy()
    num_distinct = np.bincount(np.unique(pairs) // max(1, len(names.dictionary)), minlength=len(keys))
    fine = valid & (num_distinct == lengths)
    inner = {pointer.rpartition("/")[0] for each in lookups for pointer in each.pointers()[1:]}
    for pointer in sorted(inner):
        while pointer:
            # a container on the way that is no object holds no key
            found = engine.run(
                f"select coalesce(len(k) = len(list_distinct(k)), true) as fine from "
                f"(select try(json_keys({_extract(pointer)})) as k from lines)",
                line=lines,
            )
            fine &= _bools(found["fine"])
            pointer = pointer.rpartition("/")[0]
    return fine


def _messages(engine: Engine, lists: pa.ListArray, trusted: bool) -> tuple[pa.ListArray, np.ndarray]:
    """Parse messages. Returns lists of (json, role, text, calls), and which rows are normal."""
    bounds, raw = offsets(lists), lists.flatten()
    found = engine.run(_MESSAGES, m=raw)
    role, content, rest = (whole(found[name]) for name in ("role", "content", "rest"))
    calls, call_fine, lengths = _calls(engine, whole(found["calls"]), trusted)
    roles = pa.array([f'"{name}"' for name in ROLES])
    fine = _bools(pc.is_in(role, roles)) & call_fine
    fine &= _bools(pc.or_kleene(pc.is_null(content), pc.starts_with(content, '"')))
    if not trusted:
        fine &= raw.is_valid().to_numpy(zero_copy_only=False)
        raw, distinct = _complete(engine, raw, content, pc.fill_null(rest, 0).to_numpy() - lengths)
        fine &= distinct
    text = whole(found["text"])
    named = pc.utf8_slice_codeunits(pc.fill_null(role, '""'), 1, -1).dictionary_encode()
    items = pa.StructArray.from_arrays([raw, named.cast(pa.string()), text, calls], ["json", "role", "text", "calls"])
    normal = np.ones(len(lists), dtype=bool)
    normal[owners(bounds, np.flatnonzero(~fine))] = False
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), items), normal


def _complete(
    engine: Engine, raw: pa.StringArray, content: pa.StringArray, rest: np.ndarray
) -> tuple[pa.StringArray, np.ndarray]:
    """Give each message its content, null where it has none. Also returns which have no key
    twice."""
    distinct = np.ones(len(raw), dtype=bool)
    lacks = (rest == 0) & content.is_null().to_numpy(zero_copy_only=False)
    doubtful = np.flatnonzero(rest != 0)
    if len(doubtful):
        keys = "case when json_type(m) = 'OBJECT' then json_keys(m) end"
        found = engine.run(
            f"select coalesce(len(k) = len(list_distinct(k)), false) as fine, "
            f"not coalesce(list_contains(k, 'content'), true) as lacks from (select {keys} as k from messages)",
            m=raw.take(pa.array(doubtful)),
        )
        distinct[doubtful] = _bools(found["fine"])
        lacks[doubtful] = _bools(found["lacks"])
    if lacks.any():
        some = raw.filter(pa.array(lacks))
        filled = engine.run("select m[:-2] || ',\"content\":null}' as m from messages", m=some)["m"]
        raw = pc.replace_with_mask(raw, pa.array(lacks), whole(filled))
    return raw, distinct


def _calls(engine: Engine, lists: pa.ListArray, trusted: bool) -> tuple[pa.ListArray, np.ndarray, np.ndarray]:
    """Parse the calls of messages. Returns lists of (name, arguments), which messages are fine,
    and how long `"tool_calls":[...]` is in each."""
    counts = pc.fill_null(lists.value_lengths(), 0).to_numpy().astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    raw = lists.flatten()
    found = engine.run(_CALLS, c=raw)
    fine = _bools(found["good"])
    rest = pc.fill_null(found["rest"], 1).to_numpy()
    doubtful = np.flatnonzero(rest != 0)
    if len(doubtful) and not trusted:
        inner = "try(json_keys(json_extract(c, '/function')))"
        again = engine.run(
            "select coalesce(len(k) = len(list_distinct(k)) and len(f) = len(list_distinct(f)), false) as fine "
            f"from (select try(json_keys(c)) as k, {inner} as f from calls)",
            c=raw.take(pa.array(doubtful)),
        )
        fine[doubtful] &= _bools(again["fine"])
    sizes = np.concatenate([[0], np.cumsum(pc.fill_null(pc.binary_length(raw), 0).to_numpy().astype(np.int64))])
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    text = sizes[bounds[1:]] - sizes[bounds[:-1]] + np.maximum(counts - 1, 0) + 2
    lengths = np.where(present, text + len('"tool_calls":') + 1, 0)
    normal = np.ones(len(lists), dtype=bool)
    normal[owners(bounds, np.flatnonzero(~fine))] = False
    items = pa.StructArray.from_arrays([whole(found["name"]), whole(found["arguments"])], ["name", "arguments"])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), items), normal, lengths
