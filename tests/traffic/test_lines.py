"""The fast way and the exact way agree: what the fast way takes, the exact way takes too, and makes
the same row of it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import rows as rows_of_all
from rft.traffic import normal, schema
from rft.traffic.columns import Own, build
from rft.traffic.lines import Lookup, Parsed, take

LOOKUPS = [Lookup("unit", "user.id")]
OWN = Own("user.id")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": texts | values.map(json.dumps)}) | values},
    optional={"id": texts | values, "type": st.just("function") | values, "x": values},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | values},
    optional={
        "content": texts | st.none() | values | st.lists(st.fixed_dictionaries({"text": texts})),
        "tool_calls": st.none() | st.lists(calls, max_size=2) | values,
        "tool_call_id": texts | values,
        "name": texts | values,
        "x": values,
    },
)
rows = st.fixed_dictionaries(
    {
        "conversation_id": texts | values,
        "time": st.datetimes(timezones=st.timezones()).map(lambda time: time.isoformat())
        | st.sampled_from(["2026-03-02T08:14:05Z", "2026-03-02T24:00:00Z", "2026-03-02 08:14:05Z", "20260302T081405Z"])
        | values,
        "messages": st.lists(messages, min_size=1, max_size=4) | values,
    },
    optional={
        "latency_s": st.floats(0, 100) | values,
        "tool_errors": st.integers(0, 9) | values,
        "feedback": values,
        "tools": st.lists(values, max_size=2) | values,
        "user": st.fixed_dictionaries({"id": texts | values}) | values,
        "user.id": values,
        "x": values,
    },
)


def exact(line: str) -> dict[str, Any] | None:
    try:
        row = normal.parse(line.encode())
        found = normal.conversation(row)
        found["record"] = {key: row[key] for key in ("user", "user.id") if key in row}
        normal.line(found)
    except normal.Unreadable:
        return None
    return found


def table(parsed: Parsed) -> list[dict[str, Any]]:
    count = len(parsed)
    zeros, ones = pa.array([0] * count, pa.int32()), pa.array([1] * count, pa.int64())
    found = build(parsed, OWN, zeros, ones).table.to_pylist()
    return [row | {name: _value(row[name]) for name in ("messages", "feedback")} for row in found]


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def agree(lines: list[str]) -> list[bool]:
    """Compare both ways. Returns which lines the fast way took."""
    parsed, good = take([line.encode() for line in lines], LOOKUPS)
    right = [exact(line) for line in lines]
    for line, took, row in zip(lines, good, right, strict=True):
        assert row is not None or not took, line
    written = [normal.line(row) for row, took in zip(right, good, strict=True) if took and row is not None]
    expected, _ = take([line.encode() for line in written], LOOKUPS, below="record", trusted=True)
    assert table(parsed) == table(expected)
    return good.tolist()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(rows, st.sampled_from([(", ", ": "), (",", ":")]), st.booleans()), max_size=20))
def test_both_ways_agree_on_any_row(drawn: list[tuple[dict[str, Any], tuple[str, str], bool]]) -> None:
    agree([json.dumps(row, separators=separators, ensure_ascii=escaped) for row, separators, escaped in drawn])


PLAIN = (
    '{"conversation_id": "c", "time": "2026-03-02T08:14:05Z", "latency_s": 3.1, "tool_errors": 0, "user": {"id": "u"}, '
    '"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", '
    '"type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", '
    '"content": "[1]"}, {"role": "assistant", "content": "ok", "refusal": null}], "feedback": ["a"]}'
)


PUT = ["", ",", "NaN", "nan", "-inf", "1e999", "01", '"', "\\u0072", "{", "]", "\\ud800", "/**/", "'"]
PUT += ['"role": "user", ', '"content": "x", ', '"name": "f", ', '"user": {"id": 2}, ', '"id": 3, ']
damage = st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, 12), st.sampled_from(PUT)), max_size=2)


@settings(max_examples=40, deadline=None)
@given(st.lists(damage, min_size=1, max_size=30))
def test_both_ways_agree_on_any_damage(drawn: list[list[tuple[int, int, str]]]) -> None:
    found: list[str] = []
    for each in drawn:
        line = PLAIN
        for first, length, put in each:
            line = line[:first] + put + line[first + length :]
        found.append(line)
    assert agree([*found, PLAIN])[-1]


def test_what_is_plain_is_taken_the_fast_way() -> None:
    assert agree([PLAIN, PLAIN.replace('"content": null, ', "")]) == [True, True]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"refusal": null', '"content": "x"'),
        ('"id": "u"', '"id": "u", "id": "v"'),
        ('"name": "f"', '"name": "f", "na\\u006de": "g"'),
        ('"time"', '"time": "x", "time"'),
        ('"refusal": null', '"annotations": [{"url": 1.5}], "refusal": "no"'),
        ('"name": "f"', '"name": "f", "strict": true'),
        ('"content": "ok"', '"content": "\\ud83d\\ude00\\u0000\\/"'),
        ('"feedback": ["a"]', '"tools": [{"a": [1]}], "feedback": {"a": 1e5}'),
    ],
)
def test_what_is_less_plain_is_taken_too(old: str, new: str) -> None:
    """Of a key that stands twice the last one counts, as in Python."""
    assert old in PLAIN
    assert agree([PLAIN.replace(old, new), PLAIN]) == [True, True]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"latency_s"', '"time": "x", "time": "y", "latency_s"'),
        ('"name": "f"', '"name": "f", "big": 1e999'),
        ('"name": "f"', '"name": "f", "deep": ' + "[" * 950 + "]" * 950),
        ('"user": {"id": "u"}', '"user": {"id": "u", "big": -1e999}'),
        ('["a"]', "[NaN]"),
        ('["a"]', "[1e999]"),
        ('["a"]', '["a",]'),
        ('["a"]', "[" * 950 + "]" * 950),
        ('"content": "ok"', '"content": [{"type": "text", "text": "ok"}]'),
    ],
)
def test_what_is_in_doubt_is_left_to_the_exact_way(old: str, new: str) -> None:
    assert old in PLAIN
    assert agree([PLAIN.replace(old, new), PLAIN]) == [False, True]


def test_roles_are_those_of_all_conversations() -> None:
    assert schema.ROLES == rows_of_all.ROLES
