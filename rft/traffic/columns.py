"""Work out the columns of a snapshot from parsed conversations, thousands at a time.

The messages of all conversations are one flat column, and offsets say where each conversation
begins. What is asked about a conversation (how many turns, which tools, the last answer) is counted
on the flat column and added up between offsets. Python looks only at distinct values, such as
system prompts and shapes of replies, and at graded answers that differ in their text.

    build(table, ...)     the columns of parsed rows (rft/traffic/lines.py)
    of_rows(rows)         the same for rows in memory, such as training examples
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rft.errors import UserError
from rft.traffic import normal, schema, shapes, words
from rft.traffic.arrow import pc
from rft.traffic.lines import Lookup, Parsed, take
from rft.traffic.schema import ROLES

REFUSALS = (
    "i'm sorry, but i can",
    "i am sorry, but i can",
    "sorry, but i can",
    "sorry, i can",
    "i'm sorry, i can",
    "i'm unable to",
    "i am unable to",
    "i'm not able to",
    "i am not able to",
    "i can't help",
    "i can't assist",
    "i can't provide",
    "i can't comply",
    "i cannot",
    "i won't",
    "i must decline",
    "i have to decline",
    "as an ai",
    "as a language model",
)
"""Openings of an English refusal. `can` is followed by `'t`, `not` or ` not`."""
_REFUSED = (
    r"^\s*(?:unfortunately,? )?(?:"
    + "|".join(opening + r"(?:'t|not| not)\b" if opening.endswith(" can") else opening + r"\b" for opening in REFUSALS)
    + ")"
)
GRADES = ("as answered", "corrected")
_NO_UNIT = "no unit"
_JSON_BEGINS = frozenset('{["-0123456789tfnNI')


@dataclass(frozen=True, slots=True)
class Own:
    """What the owner declares: the unit of dependence, and columns with their kinds."""

    unit: str | None = None
    columns: Mapping[str, str] | None = None

    @property
    def lookups(self) -> list[Lookup]:
        named = [Lookup("unit", self.unit)] if self.unit is not None else []
        return named + [Lookup(name, name) for name in sorted(self.columns or {})]

    @property
    def names(self) -> list[str]:
        """The keys whose values only distinguish things: the unit, and categories."""
        unit = [] if self.unit is None else [self.unit]
        return [*unit, *(name for name, kind in sorted((self.columns or {}).items()) if kind == "category")]

    @property
    def schema(self) -> pa.Schema:
        return schema.with_own(dict(self.columns or {}))


@dataclass(frozen=True, slots=True)
class Built:
    table: pa.Table
    kept: dict[str, int]
    """Rows that lack something but are kept: reason -> number of rows. Each reason begins with
    `no `."""
    met: dict[str, int]
    """Number of rows that have a value, by declared key."""


def of_rows(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Make the columns of rows in memory: `{"conversation_id": .., "time": .., "messages": [..]}`.

    Raises UserError naming the row that is not a conversation.
    """
    written: list[str] = []
    for row in rows:
        try:
            written.append(normal.line(normal.conversation(row)))
        except normal.Unreadable as error:
            raise UserError(f"conversation {row.get('conversation_id')!r}: {error}. Fix the row.") from None
    own = Own()
    parts: list[pa.Table] = []
    for first in range(0, len(written), 4096):
        some = written[first : first + 4096]
        parsed, _ = take([line.encode() for line in some], [], trusted=True)
        numbers = pa.array(range(first + 1, first + 1 + len(some)), pa.int64())
        parts.append(build(parsed, own, pa.array([0] * len(some), pa.int32()), numbers).table)
    return pa.concat_tables(parts) if parts else own.schema.empty_table()


def build(parsed: Parsed, own: Own, source: pa.Array, line: pa.Array) -> Built:
    """Make the columns of parsed rows. `source` and `line`: the place of each row."""
    bounds, text = parsed.bounds, parsed.texts
    is_assistant, is_tool = _is(parsed, "assistant"), _is(parsed, "tool")
    given = _since(is_assistant | is_tool, bounds) == 0
    last_answer = _last(is_assistant, bounds)
    answer = text.take(pa.array(last_answer, mask=last_answer < 0))
    call_bounds = parsed.call_bounds[bounds]
    unit, kept, met, columns = _own(parsed, own)
    picked = _draws(parsed.ids)
    drawn = picked if unit is None else _draws(pc.coalesce(unit, parsed.ids))
    roles = pa.DictionaryArray.from_arrays(pa.array(parsed.roles[bounds[1:] - 1].astype(np.int32)), list(ROLES))
    found: dict[str, Any] = {
        "conversation_id": parsed.ids,
        "time": parsed.time,
        "unit": pa.nulls(len(parsed), pa.string()) if unit is None else unit,
        "draw": pa.array(drawn),
        "pick": pa.array(picked),
        "group": pa.array(drawn % schema.GROUPS, pa.uint8()),
        "source": source,
        "line": line,
        "messages": parsed.messages,
        "latency_s": parsed.latency_s,
        "tool_errors": parsed.tool_errors,
        "feedback": parsed.feedback,
        "last_role": roles,
        "num_messages": pa.array(np.diff(bounds), pa.int32()),
        "num_turns": pa.array(_sum(is_assistant, bounds), pa.int32()),
        "num_tool_calls": pa.array(np.diff(call_bounds), pa.int32()),
        "input_words": pa.array(_input_words(text, _is(parsed, "user") & given, bounds), pa.int32()),
        "tools": _list(call_bounds, parsed.names),
        "calls": _list(call_bounds, shapes.of_calls(parsed.names, parsed.arguments)),
        "replies": _list(_count(is_tool)[bounds], shapes.of_replies(parsed.replies)),
        "system": _system(text, (_is(parsed, "system") | _is(parsed, "developer")) & given, bounds),
        "offered": _hashed(parsed.tools, _canonical_json),
        "refused": pc.fill_null(pc.match_substring_regex(answer, _REFUSED, ignore_case=True), False),
        "grade": _grades(answer, last_answer >= 0, parsed.feedback),
    } | columns
    target = own.schema
    return Built(pa.table([_as(found[field.name], field.type) for field in target], schema=target), kept, met)


def _as(values: Any, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


# -- flat columns ----------------------------------------------------------------------------------
def _is(parsed: Parsed, role: str) -> np.ndarray:
    return parsed.roles == ROLES.index(role)


def _count(values: np.ndarray) -> np.ndarray:
    """Count how many values are true before each item, and in all."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _sum(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    total = _count(values)
    return total[bounds[1:]] - total[bounds[:-1]]


def _since(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Count, for each item, how many values are true in its list up to it."""
    total = np.cumsum(values, dtype=np.int64)
    before = np.concatenate([[0], total])[bounds[:-1]]
    return total - np.repeat(before, np.diff(bounds))


def _last(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the place of the last true item of each list, or -1."""
    places = np.concatenate([[-1], np.flatnonzero(values)])
    found = places[np.searchsorted(places, bounds[1:]) - 1]
    return np.where(found >= bounds[:-1], found, -1)


def _list(bounds: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values)


def _some(values: pa.Array, mask: np.ndarray, bounds: np.ndarray) -> pa.ListArray:
    """Keep some items of each list."""
    return _list(_count(mask)[bounds], values.filter(pa.array(mask)))


def _input_words(text: pa.StringArray, mask: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    counts = np.zeros(len(text), dtype=np.int64)
    counts[mask] = words.count(text.filter(pa.array(mask)))
    return _sum(counts, bounds)


def _system(text: pa.StringArray, mask: np.ndarray, bounds: np.ndarray) -> pa.StringArray:
    """Hash what the system and the developer said before the agent's first word."""
    lists = _some(pc.fill_null(text, ""), mask, bounds)
    joined = pc.if_else(pc.equal(pc.list_value_length(lists), 0), None, pc.binary_join(lists, "\n"))
    return _hashed(joined, str)


def _hashed(texts: pa.StringArray, form: Any) -> pa.StringArray:
    coded = texts.dictionary_encode()
    digits = [hashlib.sha256(form(value).encode()).hexdigest()[:12] for value in coded.dictionary.to_pylist()]
    return pa.array(digits, pa.string()).take(coded.indices)


def _canonical_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _draws(names: pa.StringArray) -> np.ndarray:
    """Hash names to 64 bits each, as `schema.draw` does."""
    digests = [hashlib.md5(name.encode(), usedforsecurity=False).digest() for name in names.to_pylist()]
    return np.frombuffer(b"".join(digests), dtype="<u8")[1::2]


# -- grades ----------------------------------------------------------------------------------------
def _grades(answer: pa.StringArray, has_answer: np.ndarray, feedback: pa.StringArray) -> pa.Array:
    """Compare each answer with its feedback, as `corrected` does."""
    found = np.full(len(answer), None, dtype=object)
    graded = np.flatnonzero(feedback.is_valid().to_numpy(zero_copy_only=False))
    known: dict[tuple[str, str], str] = {}
    answers = answer.take(pa.array(graded)).to_pylist()
    for place, text, right in zip(graded, answers, feedback.take(pa.array(graded)).to_pylist(), strict=True):
        pair = (text or "", right)
        if not has_answer[place]:
            found[place] = GRADES[1]
            continue
        if pair not in known:
            known[pair] = GRADES[corrected(pair[0], json.loads(right))]
        found[place] = known[pair]
    return pa.array(found, pa.string())


def corrected(answer: str, feedback: Any) -> bool:
    """Tell whether the feedback differs from the answer. JSON is compared as JSON, lists without
    order, and an object of one key as its value: `{"codes": ["I10"]}` agrees with `["I10"]`."""
    return answer != feedback and _compared(answer) != _compared(feedback)


def _compared(value: Any) -> str:
    if isinstance(value, str):
        if value.lstrip()[:1] not in _JSON_BEGINS:
            return json.dumps(value.strip())
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return json.dumps(value.strip())
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, list):
        value = sorted(json.dumps(item, sort_keys=True) for item in value)
    return json.dumps(value, sort_keys=True)


# -- the owner's columns ---------------------------------------------------------------------------
def _own(parsed: Parsed, own: Own) -> tuple[pa.StringArray | None, dict[str, int], dict[str, int], dict[str, pa.Array]]:
    """Return the unit, counts of what rows lack, counts of rows with each key, and the columns by
    name."""
    unit, kept, met, columns = None, {}, {}, {}
    for n, (lookup, values) in enumerate(zip(own.lookups, parsed.own, strict=True)):
        met[lookup.key] = met.get(lookup.key, 0) + len(values) - values.count(None)
        if n == 0 and own.unit is not None:
            unit = pa.array(map(_name, values), pa.string(), size=len(values))
            kept[_NO_UNIT] = unit.null_count
            continue
        is_number = (own.columns or {})[lookup.name] == "number"
        found = list(map(_number if is_number else _category, values))
        column = pa.array(found, pa.float64() if is_number else pa.string())
        kept[f"no {lookup.name}"] = column.null_count
        columns[schema.OWN + lookup.name] = column
    return unit, {reason: count for reason, count in kept.items() if count}, met, columns


def _name(value: Any) -> str | None:
    """Name a unit: a text that is not empty, or a whole number."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _category(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, list | dict) else json.dumps(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):  # a whole number that is too large
        return float(value)
    return None
