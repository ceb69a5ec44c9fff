"""Formats are recognized by content, and no bytes make one raise: each record is a row, or says
why it is none."""

from __future__ import annotations

import io
import json
import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rft.errors import UserError
from rft.traffic import formats
from rft.traffic.formats import chat, format, otlp, spans
from rft.traffic.formats.row import Unreadable

RECORDED = sorted(Path(__file__).with_name("recorded").iterdir())
MESSAGE = {"role": "user", "content": "hi"}
OWN = {"conversation_id": "c", "time": "2026-01-01T00:00:00Z", "messages": [MESSAGE]}
ANSWER = {"object": "chat.completion", "id": "c", "created": 1, "choices": [{"message": {"content": "yes"}}]}
PAIR = {"request": {"messages": [MESSAGE]}, "response": ANSWER}
RESPONSES = {"input": "hi", "object": "response", "id": "r", "created_at": 1, "output": [MESSAGE]}
TRACE = {"info": {"trace_id": "t", "request_time": "2026-01-01T00:00:00Z"}, "data": {"spans": []}}
SPAN = {
    "traceId": "0" * 32,
    "spanId": "0" * 16,
    "startTimeUnixNano": "1",
    "attributes": [
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}},
        {"key": "gen_ai.input.messages", "value": {"stringValue": '[{"role":"user","parts":[{"type":"text"}]}]'}},
        {"key": "gen_ai.completion.0.content", "value": {"stringValue": "x"}},
    ],
    "events": [{"name": "gen_ai.choice", "attributes": [{"key": "message", "value": {"stringValue": "{}"}}]}],
}
SPANS = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [SPAN]}]}]}
SAMPLES = {"own": OWN, "openai-chat-completions": PAIR, "openai-responses": RESPONSES, "mlflow-traces": TRACE}
ALL = [*formats.KNOWN.values(), *map(spans.of_protobuf, ("single", "prefixed", "delimited"))]
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rows(found: formats.Format, content: bytes) -> list[tuple[int, Any]]:
    if found.is_lines:
        return list(found.rows(content, 1, "log"))
    return list(found.rows(io.BytesIO(content), "log"))


def check(found: formats.Format, content: bytes) -> None:
    """Each row has what the interface says, and can be written."""
    for number, row in rows(found, content):
        assert number >= 1
        if isinstance(row, str):
            assert row
            row.encode()
            continue
        assert row["conversation_id"]
        assert datetime.fromisoformat(row["time"]).tzinfo is not None
        assert row["messages"]
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
        for message in row["messages"]:
            assert set(message) <= {"role", "content", "tool_calls", "tool_call_id"}
            assert isinstance(message["content"], str | None)
            for call in message.get("tool_calls", ()):
                assert isinstance(call["function"]["arguments"], str)
        assert row["latency_s"] is None or isinstance(row["latency_s"], float)
        assert row["tool_errors"] is None or isinstance(row["tool_errors"], int)


# -- recognition -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_is_recognized_behind_lines_that_cannot_be_read(name: str) -> None:
    line = json.dumps(SAMPLES[name]).encode()
    for content in (line, line + b"\n", b"\xef\xbb\xbf" + line, b"oops\n\n{}\n" + line + b"\n" + line[:20]):
        found = formats.recognize(content, "log")
        assert (found.name, found.is_lines) == (name, True)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "own"])
def test_a_record_larger_than_what_is_looked_at_is_recognized(name: str) -> None:
    large = json.loads(json.dumps(SAMPLES[name]))
    key = {"openai-responses": "more", "mlflow-traces": "data"}.get(name, "request")
    large[key] = {"messages": [MESSAGE] * 20_000, "spans": [MESSAGE] * 20_000}
    head = json.dumps(large).encode()[: formats.HEAD]
    found = formats.recognize(head, "log")
    assert (found.name, found.is_lines) == (name, True)
    listed = formats.recognize(json.dumps([large], indent=1).encode()[: formats.HEAD], "log")
    assert (listed.name, listed.is_lines) == (name, False)


def test_a_file_without_anything_in_it_is_an_empty_log_of_our_own() -> None:
    for content in (b"", b"\n", b" \r\n\xef\xbb\xbf"):
        assert formats.recognize(content, "log") is formats.OWN


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"user,text\n1,hi\n", '"user,text"'),
        (b"PAR1\x15\x04\xff\xfe", "the bytes 50 41 52 31"),
        (b'{"a": 1}\n', '{\\"a\\": 1}'),
        (b"[1, 2]", "[1, 2]"),
        (b"\n\n# Notes\n\x12ab", '"# Notes"'),
    ],
)
def test_an_unknown_format_is_shown_and_the_known_ones_are_named(content: bytes, shown: str) -> None:
    with pytest.raises(UserError) as error:
        formats.recognize(content, "logs/a.csv")
    assert str(error.value).startswith("logs/a.csv: its format is not recognized. It begins with ")
    assert shown in str(error.value)
    assert all(name in str(error.value) for name in formats.KNOWN)


def test_formats_travel_to_other_processes() -> None:
    for found in ALL:
        again = pickle.loads(pickle.dumps(found))
        assert (again.name, again.is_lines) == (found.name, found.is_lines)


@given(st.binary(max_size=400))
@QUICK
def test_recognition_never_fails_otherwise(content: bytes) -> None:
    try:
        found = formats.recognize(content, "log")
    except UserError:
        return
    if found is not formats.OWN:
        check(found, content)


# -- what no bytes can do --------------------------------------------------------------------------
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a JSON value."""
    found = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += places(item, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def jsonl(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


RECORDS = [
    PAIR,
    RESPONSES,
    TRACE,
    SPANS,
    *(record for path in RECORDED if path.suffix == ".jsonl" for record in jsonl(path)),
]


@given(st.data())
@settings(QUICK, max_examples=30)
def test_any_value_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(RECORDS))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(record)[1:] or [()]))
        record = replaced(record, path, data.draw(VALUES | st.sampled_from(RECORDS)))
    content = json.dumps(record).encode() + b"\n"
    for found in formats.KNOWN.values():
        if found is not formats.OWN:
            assert rows(found, content)
            check(found, content)


@given(st.sampled_from(ALL), st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
@example(spans.JSON, b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 1}]}]}]}')
@example(spans.JSON, b"[" * 100_000)
@example(formats.KNOWN["MLflow traces"], b'{"info":' * 50_000)
@QUICK
def test_garbage_is_refused(found: formats.Format, content: bytes) -> None:
    if found is not formats.OWN:
        check(found, content)


@given(st.sampled_from(RECORDED), st.data())
@QUICK
def test_what_was_recorded_survives_cuts_and_broken_bytes(path: Path, data: st.DataObject) -> None:
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    check(formats.recognize(path.read_bytes()[: formats.HEAD], "log"), content)


# -- documents -------------------------------------------------------------------------------------
class Dripping(io.BytesIO):
    """A stream that gives a few bytes at a time, wherever characters and values end."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(7)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=5), st.sampled_from([None, 2]))
@settings(QUICK, max_examples=60)
def test_documents_are_the_values_however_they_are_laid_out(values: list[Any], indent: int | None) -> None:
    values = json.loads(json.dumps(values, allow_nan=True), parse_constant=lambda _: None)
    for key in ("traces", "data"):
        for value in values:
            value.pop(key, None)
    texts = [json.dumps(value, indent=indent, ensure_ascii=False) for value in values]
    try:
        laid_out = ["\n".join(texts).encode(), "".join(texts).encode(), f"[{','.join(texts)}]\n".encode()]
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    for content in laid_out:
        found = list(format.documents(Dripping(content)))
        assert found == list(enumerate(values, 1))


def test_a_list_that_never_ends_is_read_in_bounded_memory() -> None:
    class Endless(io.RawIOBase):
        left = 200

        def read(self, size: int = -1, /) -> bytes:
            self.left -= 1
            return b"" if self.left < 0 else (b'{"a": "' + b"x" * 1000 + b'"},\n') * 1000

    stream: Any = Endless()
    first = next(format.documents(stream))
    assert first == (1, {"a": "x" * 1000})


def test_trouble_inside_documents_costs_what_it_must() -> None:
    good = b'{"a": 1}\n'
    cases: list[tuple[bytes, list[Any]]] = [
        (good + b"oops\n" + good, [{"a": 1}, "not JSON", {"a": 1}]),
        (good + b'{"a": "\xff"}\n' + good, [{"a": 1}, "not UTF-8", {"a": 1}]),
        (good + b'{"a": "\\ud800"}\n' + good, [{"a": 1}, "not JSON", {"a": 1}]),
        (good + b'{"a": NaN}\n' + good, [{"a": 1}, "not JSON", {"a": 1}]),
        (good + b'{"a": "x', [{"a": 1}, "cut off"]),
        (good + b'{"a": "' + b"x" * 400 + b'"}\n' + good, [{"a": 1}, "too large", {"a": 1}]),
        (b"[" + good + b"," + good, [{"a": 1}, {"a": 1}]),
    ]
    for content, expected in cases:
        found = [value for _, value in format.documents(io.BytesIO(content), largest=300)]
        summary = [str(value).split(":")[0] if isinstance(value, Unreadable) else value for value in found]
        assert summary == expected, content[:40]


# -- joining ---------------------------------------------------------------------------------------
def test_rows_of_one_conversation_are_joined_whatever_they_repeat() -> None:
    def dialogue(*texts: str, system: str = "") -> list[chat.Message]:
        turns = [chat.written("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(texts)]
        return [chat.written("system", system), *turns] if system else turns

    known = dialogue("a", "b", system="s")
    assert chat.extend([], known) == known
    assert chat.extend(known, dialogue("a", "b", "c", "d", system="s")) == dialogue("a", "b", "c", "d", system="s")
    assert chat.extend(known, dialogue("a", system="s")) == known
    assert chat.extend(known, dialogue("c", "d", system="s")) == [*known, *dialogue("c", "d")]
    assert chat.extend(known, dialogue("a", "b", "c", system="now")) == dialogue("a", "b", "c", system="now")
    assert chat.extend(known, dialogue("c", system="now")) == [*known, *dialogue("c", system="now")]


def test_ids_are_hexadecimal_whatever_wrote_them() -> None:
    written = {"spans": [SPAN | {"traceId": "AAAAAAAAAAAAAAAAAAAAAA==", "spanId": "AAAAAAAAAAA="}]}
    content = json.dumps({"resource_spans": [{"scope_spans": [written]}]}).encode()
    ((_, item),) = otlp.of_json(io.BytesIO(content))
    assert isinstance(item, otlp.Item)
    assert (item.trace, item.span) == ("0" * 32, "0" * 16)
