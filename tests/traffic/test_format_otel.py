"""Spans of real agents become conversations.

`recorded/` holds what instrumentation libraries exported of one agent against a local server: it is
asked for order 7781, calls a tool that fails, and answers. A second request goes through the
Responses API outside any conversation; only the newer OpenLLMetry records it. The generations:

    openllmetry-0.40             numbered attributes, protobuf, one request
    openllmetry-0.62             messages of parts, the SDK's exporter of JSON lines
    openai-v2-2.1-events         a log record per message, protobuf with lengths
    openai-v2-2.4-spans          messages of parts on the span, one protobuf request
    openai-v2-2.4-details        messages of parts in a log record, protobuf with lengths
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rft.traffic import formats, sources
from rft.traffic.formats import spans as gathering

RECORDED = Path(__file__).with_name("recorded")
CALL = {"id": "call_1", "type": "function", "function": {"name": "find_order", "arguments": '{"number": "7781"}'}}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "where is 7781?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"status": "shipped"}', "tool_call_id": "call_1"},
    {"role": "assistant", "content": "It was shipped."},
]
OTHER = "no GenAI span: it has no gen_ai attribute"


def read(content: bytes, name: str = "log") -> list[Any]:
    """Everything that a file yields, without the numbers."""
    found = formats.recognize(content[: formats.HEAD], name)
    assert (found.name, found.is_lines) == ("opentelemetry", False)
    return [row for _, row in found.rows(io.BytesIO(content), name)]


def conversations(content: bytes) -> list[Any]:
    return [row for row in read(content) if isinstance(row, dict)]


# -- what libraries recorded -----------------------------------------------------------------------
@pytest.mark.parametrize("path", sorted(RECORDED.glob("open*")), ids=lambda path: path.stem)
def test_each_generation_says_the_same(path: Path) -> None:
    rows = read(path.read_bytes(), path.name)
    first = next(row for row in rows if isinstance(row, dict))
    assert first["messages"] == SAID
    assert first["conversation_id"] == "c-1"  # which the agent's span alone names
    assert (first["tool_errors"], first["record"]["user.id"], first["record"]["service.name"]) == (1, "u-1", "shop")
    assert 0 < first["latency_s"] < 5
    assert first["time"].startswith("2026-")
    assert Counter(row for row in rows if isinstance(row, str)) == {OTHER: 2}  # GET /orders, the bare agent
    assert "note" not in first


def test_a_trace_without_a_conversation_stands_alone_and_says_so() -> None:
    _, second = conversations((RECORDED / "openllmetry-0.62.jsonl").read_bytes())
    assert second["messages"] == [SAID[0], {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert (second["note"], second["tool_errors"]) == ("no conversation id", 0)
    assert len(second["conversation_id"]) == 32


def test_the_tools_that_were_offered_are_known() -> None:
    schema = {"type": "object", "properties": {"number": {"type": "string"}}}
    expected = [{"type": "function", "function": {"name": "find_order", "parameters": schema}}]
    for name in ("openllmetry-0.62.jsonl", "openllmetry-0.40.binpb"):
        assert conversations((RECORDED / name).read_bytes())[0]["tools"] == expected


# -- spans of our own, through the SDK -------------------------------------------------------------
def exported(*found: ReadableSpan) -> ExportTraceServiceRequest:
    """What an exporter makes of spans."""

    def value(raw: Any) -> AnyValue:
        if isinstance(raw, bool | str):
            return AnyValue(bool_value=raw) if isinstance(raw, bool) else AnyValue(string_value=raw)
        return AnyValue(int_value=raw)

    def pairs(raw: Any) -> list[KeyValue]:
        return [KeyValue(key=key, value=value(item)) for key, item in (raw or {}).items()]

    def span(one: ReadableSpan) -> Span:
        return Span(
            trace_id=one.context.trace_id.to_bytes(16, "big"),
            span_id=one.context.span_id.to_bytes(8, "big"),
            name=one.name,
            start_time_unix_nano=one.start_time,
            end_time_unix_nano=one.end_time,
            attributes=pairs(one.attributes),
            events=[Span.Event(name=event.name, attributes=pairs(event.attributes)) for event in one.events],
            status=Status(code=2 if one.status.status_code is StatusCode.ERROR else 0),
        )

    scope = ScopeSpans(spans=[span(one) for one in found])
    resource = Resource(attributes=pairs({"service.name": "shop"}))
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=resource, scope_spans=[scope])])


def as_json(request: ExportTraceServiceRequest) -> str:
    """OTLP's JSON: protobuf's, but for ids in hexadecimal."""
    found = MessageToDict(request)
    sides = zip(found["resourceSpans"], request.resource_spans, strict=True)
    for resource, original in sides:
        for scope, original_scope in zip(resource["scopeSpans"], original.scope_spans, strict=True):
            for span, original_span in zip(scope["spans"], original_scope.spans, strict=True):
                span |= {"traceId": original_span.trace_id.hex(), "spanId": original_span.span_id.hex()}
                if "status" in span:
                    span["status"]["code"] = 2
    return json.dumps(found)


class Agent:
    """An agent that traces itself by the SDK."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("agent")

    def chat(self, given: list[Any], answer: str, **attributes: Any) -> None:
        parts = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in given]
        messages = [{"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}]
        recorded = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(parts),
            "gen_ai.output.messages": json.dumps(messages),
        }
        with self.tracer.start_as_current_span("chat m", attributes=recorded | attributes):
            pass

    def request(self) -> ExportTraceServiceRequest:
        return exported(*self.exporter.get_finished_spans())


def turns(agent: Agent, **attributes: Any) -> None:
    agent.chat([("user", "hi")], "hello", **attributes)
    agent.chat([("user", "hi"), ("assistant", "hello"), ("user", "bye")], "bye", **attributes)


TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "bye"},
]


def framed(request: ExportTraceServiceRequest) -> dict[str, bytes]:
    """One request in every form in which it is written to files."""
    content, text = request.SerializeToString(), as_json(request)
    size, varint = len(content), bytearray()
    while size > 0x7F:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return {
        "protobuf": content,
        "protobuf, two requests in a row": content + content,
        "protobuf with lengths": struct.pack(">I", len(content)) + content,
        "protobuf with varints": bytes([*varint, size]) + content,
        "a line of JSON": text.encode() + b"\n",
        "JSON, pretty": json.dumps(json.loads(text), indent=2).encode(),
        "JSON, a list": f"[{text},\n{text}]".encode(),
        "JSON after a mark of its encoding": b"\xef\xbb\xbf" + text.encode(),
    }


FRAMINGS = (
    "protobuf",
    "protobuf, two requests in a row",
    "protobuf with lengths",
    "protobuf with varints",
    "a line of JSON",
    "JSON, pretty",
    "JSON, a list",
    "JSON after a mark of its encoding",
)


@pytest.mark.parametrize("kind", FRAMINGS)
def test_each_wire_form_says_the_same(kind: str) -> None:
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    (row,) = read(framed(agent.request())[kind])
    assert (row["conversation_id"], row["messages"]) == ("c-9", TURNS)


def test_traces_of_one_conversation_are_one_row_in_time_order() -> None:
    agent = Agent()
    agent.chat([("user", "one")], "1", **{"gen_ai.conversation.id": "c-1"})
    agent.chat([("user", "else")], "?", **{"session.id": "c-2"})
    agent.chat([("user", "two")], "2", **{"gen_ai.conversation.id": "c-1"})  # no history: the server keeps it
    ended = agent.exporter.get_finished_spans()
    one, two = conversations(exported(*reversed(ended)).SerializeToString())
    assert [message["content"] for message in one["messages"]] == ["one", "1", "two", "2"]
    assert [message["content"] for message in two["messages"]] == ["else", "?"]


def test_calls_under_another_system_message_are_counted_not_mixed_in() -> None:
    agent = Agent()
    with agent.tracer.start_as_current_span("invoke_agent", attributes={"gen_ai.operation.name": "invoke_agent"}):
        agent.chat([("system", "Is this harmful?"), ("user", "hi")], "no")
        agent.chat([("system", "Help."), ("user", "hi")], "hello")
        agent.chat([("system", "Help."), ("user", "hi"), ("assistant", "hello"), ("user", "bye")], "bye")
    (row,) = read(agent.request().SerializeToString())
    assert row["messages"] == [{"role": "system", "content": "Help."}, *TURNS]
    assert row["counts"] == {"calls of the model for something else": 1}


def test_a_trace_of_which_no_content_was_recorded_says_so() -> None:
    agent = Agent()
    with agent.tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
        pass
    (why,) = read(agent.request().SerializeToString())
    assert why.startswith("no messages: the exporter recorded no content")


def test_an_image_is_not_guessed_at() -> None:
    agent = Agent()
    image = [{"role": "user", "parts": [{"type": "blob", "modality": "image", "content": "AAAA"}]}]
    agent.chat([], "a cat", **{"gen_ai.input.messages": json.dumps(image)})
    (why,) = read(agent.request().SerializeToString())
    assert why.startswith("not text: gen_ai.input.messages[0].parts[0]")


def traced(*given: tuple[bytes, int, int]) -> bytes:
    """Traces of one conversation, each of one span from one second to another."""
    found = exported()
    for trace, start, end in given:
        span = Span(
            trace_id=trace * 16,
            span_id=trace * 8,
            start_time_unix_nano=start * 10**9,
            end_time_unix_nano=end * 10**9,
            attributes=exported_pairs({"gen_ai.conversation.id": "c", "gen_ai.prompt.0.role": "user"})
            + exported_pairs({"gen_ai.prompt.0.content": trace.decode()}),
        )
        found.resource_spans[0].scope_spans[0].spans.append(span)
    return found.SerializeToString()


def test_latency_is_that_of_the_last_trace() -> None:
    (row,) = read(traced((b"a", 1, 9), (b"b", 100, 103)))
    assert (row["latency_s"], row["time"]) == (3.0, "1970-01-01T00:00:01Z")


@pytest.mark.parametrize(("end", "latency"), [(98, -2.0), (0, None)])
def test_a_clock_that_ran_backwards_is_seen_in_the_latency(end: int, latency: float | None) -> None:
    (row,) = read(traced((b"a", 100, end)))
    assert row["latency_s"] == latency


def exported_pairs(raw: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in raw.items()]


def test_more_spans_than_are_held_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_SPANS", 2)
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    (row,) = read(agent.request().SerializeToString())
    assert row["messages"] == TURNS
    assert list(row["counts"].values()) == [2]


def test_a_request_larger_than_what_is_looked_at_is_recognized() -> None:
    agent = Agent()
    agent.chat([("user", "hi" * formats.HEAD)], "hello")
    for kind, content in framed(agent.request()).items():
        if not kind.startswith("JSON"):
            assert len(conversations(content)) == 1, kind


# -- cut off and broken ----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["protobuf, two requests in a row", "protobuf with lengths", "a line of JSON"])
def test_a_cut_file_gives_what_is_whole_and_reports_the_cut(kind: str) -> None:
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    whole = framed(agent.request())[kind]
    if kind != "protobuf, two requests in a row":
        whole += whole
    rows = read(whole[:-20])
    assert rows[0] == "cut off: the file ends in this record, its last"
    assert [row["messages"] for row in rows[1:]] == [TURNS]


def test_a_cut_compressed_file_is_reported_too(tmp_path: Path) -> None:
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    line = framed(agent.request())["a line of JSON"]
    whole = gzip.compress(line * 50)
    (tmp_path / "spans.jsonl").write_bytes(whole[:-30])
    (log,) = sources.find("spans.jsonl", tmp_path)
    with log.open() as stream:
        rows = [row for _, row in gathering.JSON.rows(stream, log.name)]
    whys = [row for row in rows if isinstance(row, str)]
    assert "cut off: the gzip file ends in the middle" in whys
    assert [row["messages"] for row in rows if isinstance(row, dict)] == [TURNS]


def test_a_broken_line_costs_that_line_alone() -> None:
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    line = framed(agent.request())["a line of JSON"]
    rows = read(line + b'{"resourceSpans": oops\n' + line)
    assert rows[0].startswith("not JSON: ")
    assert len(rows) == 2


def test_a_request_that_is_too_large_is_not_held_in_memory() -> None:
    agent = Agent()
    turns(agent, **{"gen_ai.conversation.id": "c-9"})
    for kind in ("protobuf with lengths", "a line of JSON", "JSON, pretty"):
        content = framed(agent.request())[kind]
        found = formats.recognize(content, "log")
        ((_, why),) = found.rows(io.BytesIO(content), "log", largest=200)
        assert "too large: " in why, kind
