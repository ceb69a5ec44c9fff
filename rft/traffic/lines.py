"""Parse thousands of lines at once, and tell which are certainly normal conversations.

msgspec parses a line directly into the fields that are asked for, and refuses a line in which a
field has another type. Three steps lead from the line to its calls:

    the line          its keys, and each value as its text in the line
    the columns       one value of all lines, such as all ids, is parsed as one JSON list
    the messages      are parsed in the same way, into objects with a role, a text and calls

So the text of the messages is a slice of the line, and nothing is written again. Python only puts
values into lists, which takes a fifth of the time. (Measured: a columnar engine, DuckDB, takes four
times as long for all of it, because it copies and parses each level once more.)

A line that is not certainly normal goes to rft/traffic/normal.py, which reads one row at a time and
is always right. So a check here may be too strict, but must never be too lenient. The parser skips
values that nobody asked for. These are checked again, because there it accepts numbers that are too
large for any parser (`1e999`).

    take(lines, lookups)    the normal lines as columns, and which lines they are
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, compress
from operator import itemgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from rft.traffic import normal
from rft.traffic.schema import ROLES, Role

MOST_BRACKETS = 900
"""A value with more brackets may be nested deeper than Python's parser goes."""
_NULL = Raw(b"null")
_TIME = r"^[12]\d{3}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)\Z"


# -- what a line is parsed into --------------------------------------------------------------------
class _Function(Struct, gc=False, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(Struct, gc=False, forbid_unknown_fields=True):
    function: _Function
    id: str | None = None
    type: str | None = None


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    """A message with the most common keys. Nothing in it is skipped."""

    role: Role
    content: str | UnsetType | None = UNSET
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    function_call: None = None
    audio: None = None


class _AnyFunction(Struct, gc=False):
    name: str
    arguments: str


class _AnyCall(Struct, gc=False):
    function: _AnyFunction


class _AnyMessage(Struct, gc=False):
    """A message with any other keys."""

    role: Role
    content: str | UnsetType | None = UNSET
    tool_calls: list[_AnyCall] | None = None


_ROW = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()
_RAWS = msgspec.json.Decoder(list[Raw])
_IDS = msgspec.json.Decoder(list[Annotated[str, Meta(min_length=1)]])
_STAMPS = msgspec.json.Decoder(list[Annotated[str, Meta(pattern=_TIME)]])
_TIMES = msgspec.json.Decoder(list[Annotated[datetime, Meta(tz=True)]])
_SECONDS = msgspec.json.Decoder(list[Annotated[float, Meta(gt=-normal.LARGEST, lt=normal.LARGEST)] | None])
_ERRORS = msgspec.json.Decoder(list[Annotated[int, Meta(gt=-normal.MOST_ERRORS, lt=normal.MOST_ERRORS)] | None])
_LISTS = msgspec.json.Decoder(list[list[Raw] | None])
_MESSAGES = msgspec.json.Decoder(list[Annotated[list[_Message], Meta(min_length=1)]])
_ANY_MESSAGES = msgspec.json.Decoder(Annotated[list[_AnyMessage], Meta(min_length=1)])
_CODES = {role: code for code, role in enumerate(ROLES)}
_KEYS = frozenset(normal.KEYS)
_DOUBT = (msgspec.MsgspecError, RecursionError)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where the owner's value is in a row: `user_id`, or the path `user.id`."""

    name: str
    key: str

    def find(self, row: dict[str, Raw]) -> Raw | None:
        """Return the value of the exact key, or else the value to which the path leads."""
        if self.key in row or "." not in self.key:
            return row.get(self.key)
        first, *inner = self.key.split(".")
        found = row.get(first)
        for key in inner:
            found = _inner(found).get(key)
        return found

    @property
    def roots(self) -> set[str]:
        """The keys of a row under which the value may be."""
        return {self.key, self.key.split(".")[0]}


def _inner(value: Raw | None) -> dict[str, Raw]:
    return _ROW.decode(value) if value is not None and bytes(value).startswith(b"{") else {}


@dataclass(frozen=True, slots=True)
class Parsed:
    """Normal rows in columns. Messages of all rows are one column, and so are calls."""

    ids: pa.StringArray
    time: pa.TimestampArray
    messages: pa.StringArray
    """The JSON text of each row's messages."""
    bounds: np.ndarray
    """Where each row begins among the messages, and where the last one ends."""
    roles: np.ndarray
    """Index in ROLES, by message."""
    texts: pa.StringArray
    call_bounds: np.ndarray
    """Where each message begins among the calls."""
    names: pa.StringArray
    arguments: list[str]
    replies: list[str | None]
    """What tools replied, for the messages of that role."""
    latency_s: pa.DoubleArray
    tool_errors: pa.Int32Array
    feedback: pa.StringArray
    tools: pa.StringArray
    own: list[list[Any]]
    """What the owner's lookups found, by lookup: values of JSON."""
    unknown: Counter[str]
    """How many rows have each key that is not known."""

    def __len__(self) -> int:
        return len(self.ids)


def take(
    lines: Sequence[bytes], lookups: Sequence[Lookup], below: str = "", trusted: bool = False
) -> tuple[Parsed, np.ndarray]:
    """Parse lines, which are UTF-8. Returns the normal ones, and for each line whether it is one.

    `below`: the key below which the lookups start, such as `record`. `trusted`: the lines are known
    to be normal, because rft/traffic/normal.py wrote them.
    """
    good = np.ones(len(lines), dtype=bool)
    rows: list[dict[str, Raw]] = []
    for place, line in enumerate(lines):
        try:
            rows.append(_ROW.decode(line))
        except _DOUBT:
            good[place] = False
    try:
        found = _values(rows, lookups, below, trusted)
    except _DOUBT:
        normal_rows = [_is_normal(row, lookups, below, trusted) for row in rows]
        good[good] = normal_rows
        found = _values(list(compress(rows, normal_rows)), lookups, below, trusted)
    assert good.all() or not trusted, "a line that was written as normal is not"
    return _columns(found), good


# -- from rows to values ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Values:
    """The values of rows as Python objects: one list per column."""

    ids: list[str]
    times: list[datetime]
    messages: list[Raw]
    parsed: list[list[Any]]
    latency_s: list[float | None]
    tool_errors: list[int | None]
    feedback: list[Any]
    tools: list[bytes]
    own: list[list[Any]]
    unknown: Counter[str]


def _is_normal(row: dict[str, Raw], lookups: Sequence[Lookup], below: str, trusted: bool) -> bool:
    try:
        _values([row], lookups, below, trusted)
    except _DOUBT:
        return False
    return True


def _values(rows: list[dict[str, Raw]], lookups: Sequence[Lookup], below: str, trusted: bool) -> _Values:
    """Parse the values of rows. Raises one of _DOUBT if any value is in doubt."""

    def column(key: str) -> list[Raw]:
        try:
            return list(map(itemgetter(key), rows))
        except KeyError:
            return [row.get(key, _NULL) for row in rows]

    times, messages, tools = _listed(column("time")), column("messages"), list(map(bytes, column("tools")))
    if not trusted:
        _STAMPS.decode(times)
        _check([row[key] for row in rows for key in row.keys() - _KEYS])
        _check(set(tools))
        _check(column("feedback"))
    _LISTS.decode(_listed(list(set(tools))))
    records = rows if not below else [_inner(row.get(below)) for row in rows]
    return _Values(
        ids=_IDS.decode(_listed(column("conversation_id"))),
        times=_TIMES.decode(times),
        messages=messages,
        parsed=_messages(messages),
        latency_s=_SECONDS.decode(_listed(column("latency_s"))),
        tool_errors=_ERRORS.decode(_listed(column("tool_errors"))),
        feedback=_ANY.decode(_listed(column("feedback"))),
        tools=tools,
        own=[_ANY.decode(_listed([lookup.find(record) or _NULL for record in records])) for lookup in lookups],
        unknown=Counter(chain.from_iterable(row.keys() - _KEYS for row in rows)),
    )


def _listed(values: Sequence[Raw | bytes]) -> bytes:
    """Write values as one JSON list, which is parsed faster than the single values."""
    return b"[" + b",".join(values) + b"]"  # pyright: ignore[reportArgumentType]


def _check(values: Collection[Raw | bytes]) -> None:
    """Parse values that nobody asked for. Raises one of _DOUBT for what Python might not parse."""
    text = b"[" + b",".join(values) + b"]"  # pyright: ignore[reportArgumentType]
    _ANY.decode(text)
    if _num_brackets(text) > MOST_BRACKETS and any(_num_brackets(bytes(value)) > MOST_BRACKETS for value in values):
        raise RecursionError


def _num_brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _messages(raw: list[Raw]) -> list[list[Any]]:
    """Parse the messages of rows. If a message has an unknown key, its whole row is checked."""
    with contextlib.suppress(msgspec.ValidationError):
        return _MESSAGES.decode(_listed(raw))
    found: list[list[Any]] = []
    for value in raw:
        try:
            found += _MESSAGES.decode(_listed([value]))
        except msgspec.ValidationError:
            found.append(_ANY_MESSAGES.decode(value))
            _check([value])
    return found


# -- from values to columns ------------------------------------------------------------------------
def _columns(found: _Values) -> Parsed:
    every = list(chain.from_iterable(found.parsed))
    contents = [message.content for message in every]
    messages: Sequence[Raw | bytes] = found.messages
    if any(content is UNSET for content in contents):
        messages = list(map(_completed, messages, found.parsed))
        contents = [None if content is UNSET else content for content in contents]
    roles = [message.role for message in every]
    calls = [message.tool_calls or () for message in every]
    called = [call.function for call in chain.from_iterable(calls)]
    return Parsed(
        ids=pa.array(found.ids, pa.string()),
        time=pa.array(found.times, pa.timestamp("us", "UTC")),
        messages=_sliced(messages),
        bounds=_bounds(found.parsed),
        roles=np.fromiter(map(_CODES.__getitem__, roles), np.uint8, len(roles)),
        texts=pa.array(contents, pa.string()),
        call_bounds=_bounds(calls),
        names=pa.array([function.name for function in called], pa.string()),
        arguments=[function.arguments for function in called],
        replies=[content for content, role in zip(contents, roles, strict=True) if role == "tool"],
        latency_s=pa.array(found.latency_s, pa.float64()),
        tool_errors=pa.array(found.tool_errors, pa.int32()),
        feedback=pa.array([None if value is None else normal.line(value) for value in found.feedback], pa.string()),
        tools=pa.array([None if value == b"null" else value for value in found.tools], pa.string()),
        own=found.own,
        unknown=found.unknown,
    )


def _completed(raw: Raw, parsed: list[Any]) -> Raw | bytes:
    """Give each message a content: null where it has none."""
    if all(message.content is not UNSET for message in parsed):
        return raw
    each = [
        bytes(text)[:-1].rstrip() + b',"content":null}' if message.content is UNSET else text
        for text, message in zip(_RAWS.decode(raw), parsed, strict=True)
    ]
    return _listed(each)


def _bounds(lists: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return where each list begins among the items of all, and where the last one ends."""
    found = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=found[1:])
    return found


def _sliced(texts: Sequence[Raw | bytes]) -> pa.StringArray:
    """Make a column of slices of UTF-8."""
    ends = pa.py_buffer(_bounds(texts).astype(np.int32))
    return pa.Array.from_buffers(pa.string(), len(texts), [None, ends, pa.py_buffer(b"".join(texts))])
