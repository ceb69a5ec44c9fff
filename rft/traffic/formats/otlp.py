"""Read OpenTelemetry's wire forms into spans: JSON and protobuf, of traces and of log records.

A collector's file exporter and an SDK's exporters write export requests, one after the other:

    {"resourceSpans": [{"resource": .., "scopeSpans": [{"spans": [..]}]}]}     one line of JSON each
    00 00 01 2c | 0a ...                                                       length, then protobuf
    0a ...                                                                     one protobuf request

Some conventions put messages into log records (`resourceLogs`), which name their span. A reader
gets both as `Item`, with attributes as plain values.

In JSON, ids are hexadecimal, 64-bit numbers are texts, and keys are in camelCase. Some writers use
snake_case (the protobuf's names).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from rft.traffic.formats.format import LARGEST, documents
from rft.traffic.formats.row import Unreadable, listing, mapping
from rft.traffic.quoting import shown

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Framing = Literal["prefixed", "delimited", "single"]
_ERROR = (2, "2", "STATUS_CODE_ERROR")


@dataclass(slots=True)
class Item:
    """A span, or a log record, which has a `parent` span and no end."""

    trace: str
    span: str
    name: str
    start: int  # nanoseconds since 1970
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    failed: bool = False
    is_log: bool = False


def is_mine(record: Mapping[str, Any]) -> bool:
    return any(isinstance(record.get(key), list) for keys in (_SPANS, _LOGS, _METRICS) for key in keys)


_NO_SPAN = "no span: without a trace's id, its own, or a start"
_SPANS = ("resourceSpans", "resource_spans")
_LOGS = ("resourceLogs", "resource_logs")
_METRICS = ("resourceMetrics", "resource_metrics")


# -- JSON ------------------------------------------------------------------------------------------
def of_json(stream: BinaryIO, largest: int = LARGEST) -> Iterator[tuple[int, Item | str]]:
    """Yield the items of each export request, with the request's number."""
    for number, value in documents(stream, largest):
        if isinstance(value, Unreadable):
            yield number, str(value)
            continue
        try:
            yield from ((number, item) for item in _request(value))
        except Unreadable as error:
            yield number, str(error)


def _request(value: Any) -> Iterator[Item | str]:
    found = mapping(value)
    if not is_mine(found):
        raise Unreadable(f"no export request: {shown(value)}, expected resourceSpans or resourceLogs")
    num_items = 0
    for item in _items(found):
        num_items += 1
        yield item
    if not num_items:
        yield "no GenAI span: an empty request"


def _items(found: dict[str, Any]) -> Iterator[Item | str]:
    for resource in _get(found, *_SPANS):
        yield from _resource(resource, "scopeSpans", "scope_spans", "spans", "spans")
    for resource in _get(found, *_LOGS):
        yield from _resource(resource, "scopeLogs", "scope_logs", "logRecords", "log_records")
    if _get(found, *_METRICS):
        yield "no GenAI span: metrics"


def _get(value: dict[str, Any], *keys: str) -> list[Any]:
    return next((found for key in keys if isinstance(found := value.get(key), list)), [])


def _resource(value: Any, *keys: str) -> Iterator[Item | str]:
    if not isinstance(value, dict):
        yield _NO_SPAN
        return
    shared = _attributes(mapping(value.get("resource")).get("attributes"))
    scopes = _get(value, *keys[:2]) or _get(value, "instrumentationLibrarySpans")
    for scope in scopes:
        if not isinstance(scope, dict):
            yield _NO_SPAN
            continue
        for item in _get(scope, *keys[2:]):
            yield _item(item, shared, is_log=keys[2] == "logRecords")


def _item(value: Any, resource: dict[str, Any], is_log: bool) -> Item | str:
    found = mapping(value)
    trace, span = _either(found, "traceId", "trace_id"), _either(found, "spanId", "span_id")
    start = _nanoseconds(found, "startTimeUnixNano", "timeUnixNano", "observedTimeUnixNano")
    if not isinstance(trace, str) or not isinstance(span, str) or not trace or start is None:
        return _NO_SPAN
    attributes = _attributes(found.get("attributes"))
    name = _either(found, "eventName", "event_name") if is_log else found.get("name")
    body = _value(found.get("body"))
    if is_log:
        attributes |= body if isinstance(body, dict) else {"body": body}
    return Item(
        trace=_hexadecimal(trace),
        span=_hexadecimal(span),
        name=str(name or attributes.get("event.name") or ""),
        start=start,
        end=_nanoseconds(found, "endTimeUnixNano") or start,
        attributes=attributes,
        resource=resource,
        events=[
            (str(event.get("name")), _attributes(event.get("attributes")))
            for event in map(mapping, listing(found.get("events")))
        ],
        failed=mapping(found.get("status")).get("code") in _ERROR,
        is_log=is_log,
    )


def _either(value: dict[str, Any], *keys: str) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _nanoseconds(value: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        raw = _either(value, key, _snake(key))
        try:
            found = int(raw) if isinstance(raw, str | int) and not isinstance(raw, bool) else 0
        except ValueError:
            continue
        if 0 < found < _LAST_NS:
            return found
    return None


_LAST_NS = 2**63  # in the year 2262


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _hexadecimal(text: str) -> str:
    """Return an id in hexadecimal; protobuf's own JSON writes it in base64."""
    if len(text) in (16, 32):
        return text.lower()
    try:
        return base64.b64decode(text, validate=True).hex() or text
    except ValueError:
        return text


def _attributes(value: Any) -> dict[str, Any]:
    return {
        key: _value(pair.get("value"))
        for pair in map(mapping, listing(value))
        if isinstance(key := pair.get("key"), str)
    }


def _value(value: Any) -> Any:
    """Return what an AnyValue holds."""
    for key, raw in mapping(value).items():
        kind = key.replace("_", "").lower()
        if kind == "intvalue":
            try:
                return int(raw)
            except (TypeError, ValueError):
                return None
        if kind == "arrayvalue":
            return [_value(item) for item in listing(mapping(raw).get("values"))]
        if kind == "kvlistvalue":
            return _attributes(mapping(raw).get("values"))
        if kind in ("stringvalue", "boolvalue", "doublevalue", "bytesvalue"):
            return raw
    return None


# -- protobuf --------------------------------------------------------------------------------------
def framing(head: bytes) -> Framing | None:
    """Tell how protobuf requests follow each other in a file; None if it is not such a file."""
    if len(head) < 6 or head.lstrip()[:1] in (b"{", b"["):
        return None
    if _is_request(head, 0, None):  # before the others: its nested messages may look like a length and a message
        return "single"
    if _is_request(head, 4, int.from_bytes(head[:4], "big")):
        return "prefixed"
    size, at = _varint(head, 0)
    return "delimited" if at and _is_request(head, at, size) else None


def _is_request(head: bytes, at: int, size: int | None) -> bool:
    """Whether an export request may begin here, of this size where it is known. It begins with a
    resource_spans or resource_logs, whose own first field is a message, and whose fields fill
    it."""
    if head[at : at + 1] != b"\n":
        return False
    inner, start = _varint(head, at + 1)
    if not start or inner < 2 or (size is not None and start + inner > at + size):
        return False
    return head[start : start + 1] in (b"\n", b"\x12") and _walks(head[start : start + inner], inner)


def _walks(payload: bytes, size: int) -> bool:
    """Whether the fields of a message follow each other to its end, or to the end of the head."""
    at = 0
    while at < len(payload):
        if payload[at] not in (0x0A, 0x12, 0x1A, 0xC2):  # resource, scope_spans, schema_url, deprecated
            return False
        length, at = _varint(payload, at + (2 if payload[at] == 0xC2 else 1))
        if not at:
            return len(payload) < size
        at += length
    return at == size or len(payload) < size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; the end is 0 if it does not end here."""
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return value, at + n + 1
    return 0, 0


def of_protobuf(framed: Framing, stream: BinaryIO, largest: int = LARGEST) -> Iterator[tuple[int, Item | str]]:
    """Yield the items of each request, with its number; for a single request, those of each
    resource."""
    number = 0
    for message in _messages(framed, stream, largest):
        number += 1
        if isinstance(message, str):
            yield number, message
            continue
        yield from ((number, item) for item in _parsed(message))
    cut = getattr(stream, "cut", None)
    if cut:
        yield number + 1, cut


def _messages(framed: Framing, stream: BinaryIO, largest: int) -> Iterator[bytes | str]:
    """Yield the requests one at a time, or why the rest cannot be read: after a broken length
    nothing can be found."""
    while first := stream.read(1):
        header = first
        if framed == "prefixed":
            header += _exactly(stream, 3)
            size = int.from_bytes(header, "big")
            is_whole = len(header) == 4
        else:
            if framed == "single":
                if header != b"\n":
                    yield f"not protobuf: a field begins with byte {header.hex()}, expected 0a; the rest is not read"
                    return
                header = stream.read(1)
            while header and header[-1] >= 0x80 and len(header) < 10:
                header += stream.read(1) or b"\x00"
            size, end = _varint(header, 0)
            is_whole = bool(end)
        if size > largest:
            yield f"too large: a request of {size} bytes, see traffic.max_line_mb; the rest is not read"
            return
        body = _exactly(stream, size)
        if not is_whole or len(body) < size:
            yield "cut off: the file ends in this record, its last"
            return
        yield body if framed != "single" else b"\n" + header + body


def _exactly(stream: BinaryIO, size: int) -> bytes:
    parts: list[bytes] = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parsed(message: bytes) -> Iterator[Item | str]:
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    traces = _as(trace_service_pb2.ExportTraceServiceRequest, message)
    if traces is not None and _has_traces(traces):
        yield from _spans(traces)
        return
    logs = _as(logs_service_pb2.ExportLogsServiceRequest, message)
    if logs is None:
        yield "not protobuf: neither a request of spans nor of log records"
        return
    yield from _log_records(logs)


def _as(kind: Any, message: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(message)
    except DecodeError:
        return None


def _spans(traces: ExportTraceServiceRequest) -> Iterator[Item | str]:
    for resource in traces.resource_spans:
        shared = _plain(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                if not span.trace_id or not 0 < span.start_time_unix_nano < _LAST_NS:
                    yield _NO_SPAN
                    continue
                yield Item(
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano,
                    end=min(span.end_time_unix_nano, _LAST_NS - 1),
                    attributes=_plain(span.attributes),
                    resource=shared,
                    events=[(event.name, _plain(event.attributes)) for event in span.events],
                    failed=span.status.code == 2,
                )


def _log_records(logs: ExportLogsServiceRequest) -> Iterator[Item | str]:
    for resource in logs.resource_logs:
        shared = _plain(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                if len(record.trace_id) != 16:
                    yield "no GenAI span: a log record without a trace, or metrics"
                    continue
                time = record.time_unix_nano or record.observed_time_unix_nano
                if not 0 < time < _LAST_NS:
                    yield _NO_SPAN
                    continue
                body = _any(record.body)
                yield Item(
                    trace=record.trace_id.hex(),
                    span=record.span_id.hex(),
                    name=record.event_name or str(_plain(record.attributes).get("event.name", "")),
                    start=time,
                    end=time,
                    attributes=_plain(record.attributes) | (body if isinstance(body, dict) else {"body": body}),
                    resource=shared,
                    is_log=True,
                )


def _has_traces(request: Any) -> bool:
    """Whether it is a request of spans. If the same bytes are parsed as log records, they have
    other fields."""
    spans = [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
    return not spans or any(len(span.trace_id) == 16 for span in spans)


def _plain(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _any(pair.value) for pair in pairs}


def _any(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_any(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _plain(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    found = getattr(value, kind)
    return None if isinstance(found, float) and not math.isfinite(found) else found
