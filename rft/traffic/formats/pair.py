"""Read a request to a model and its response, in the shapes in which people log them.

    {"request": {...}, "response": {...}}           a proxy or a wrapper around the client
    {"input": {...}, "output": {...}}               the same in other words
    {"custom_id": .., "body": .., "response": ..}   a batch's input and output, joined by their id
    {"messages": [...], "response": {...}}          what some gateways write
    {..., "choices": [...], "messages": [...]}      the export of stored completions
    {..., "output": [...], "input": ...}            a response with its request's input

Each side may be JSON text, and may be in `body`. The conversation is named by `conversation_id`,
`session_id` or `thread_id`, in the record, its metadata, or the metadata of either side. Where none
of these names it, the response's own id does, and the row says so: the request is then a
conversation of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rft.traffic.formats.row import NO_ID, Row, Unreadable, is_number, iso, listing, loaded, mapping, name_of
from rft.traffic.quoting import shown

_IDS = ("conversation_id", "session_id", "thread_id")
_TIMES = ("created", "created_at", "time", "timestamp", "start_time", "startTime")
_SECONDS = {
    "latency_s": 1.0,
    "duration_s": 1.0,
    "elapsed_s": 1.0,
    "response_time": 1.0,
    "latency_ms": 1e-3,
    "duration_ms": 1e-3,
    "elapsed_ms": 1e-3,
    "response_time_ms": 1e-3,
}
"""Keys under which a latency is logged, and the unit of each in seconds."""
_ENDS = (("startTime", "endTime"), ("start_time", "end_time"))


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sides of a record. What a log leaves out is empty."""

    record: dict[str, Any]
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def is_responses(self) -> bool:
        """Whether it belongs to the Responses API, not to chat completions."""
        if "choices" in self.response or "messages" in self.request:
            return False
        return self.response.get("object") == "response" or isinstance(self.response.get("output"), list)


def take_apart(record: dict[str, Any]) -> Pair:
    """Split a record into both sides. Raises Unreadable for a request that failed."""
    request, response = _side(record, "request", "body"), _side(record, "response")
    if not response and ("choices" in record or record.get("object") == "response"):
        response = record
    if not response:
        response = _answer(record.get("output"))
    if not request:
        request = _asked(record.get("input"))
    if not request and ("messages" in record or "input" in record):
        request = {key: value for key, value in record.items() if key not in ("choices", "output", "metadata")}
    pair = Pair(record, request, response)
    _check_ok(pair)
    return pair


def _side(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        found = loaded(record.get(key))
        if isinstance(found, list):  # a streamed response, chunk by chunk
            first = mapping(found[0]) if found else {}
            return {"id": first.get("id"), "created": first.get("created"), "chunks": found}
        if isinstance(found, dict):
            inner = loaded(found.get("body"))
            return inner if isinstance(inner, dict) else found
    return {}


def _asked(value: Any) -> dict[str, Any]:
    found = loaded(value)
    if isinstance(found, dict) and ("messages" in found or "input" in found):
        return found
    return {}


def _answer(value: Any) -> dict[str, Any]:
    found = loaded(value)
    if isinstance(found, dict) and "role" in found:
        return {"choices": [{"message": found}]}
    if isinstance(found, dict):
        return found
    return {}


def _check_ok(pair: Pair) -> None:
    outer = mapping(pair.record.get("response"))
    status = outer.get("status_code", pair.record.get("status_code"))
    error = pair.record.get("error") or pair.response.get("error")
    if is_number(status) and status >= 400:
        raise Unreadable(f"failed request: status {status}, {shown(error)}")
    if error and "choices" not in pair.response and not listing(pair.response.get("output")):
        raise Unreadable(f"failed request: {shown(error)}")


def row(pair: Pair, found: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Row:
    """Make a row from the messages of a pair. Raises Unreadable without a time or any id."""
    time = _time(pair)
    if time is None:
        raise Unreadable("no time: the response has no `created`, and the record no `time`")
    named, own = conversation(pair), name_of(pair.response.get("id")) or name_of(pair.record.get("id"))
    identity = named or own or name_of(pair.record.get("custom_id"))
    if identity is None:
        raise Unreadable("no id: neither a conversation id nor the response's id")
    errors = pair.record.get("tool_errors")
    result = Row(
        conversation_id=identity,
        time=time,
        messages=found,
        latency_s=_latency(pair.record),
        tool_errors=errors if isinstance(errors, int) and not isinstance(errors, bool) else _none_called(found),
        feedback=pair.record.get("feedback"),
        tools=tools,
        record=pair.record,
        continues=False,
    )
    if named is None:
        result["note"] = NO_ID
    return result


def conversation(pair: Pair) -> str | None:
    """Return the name that the log gives the conversation; None if it gives none."""
    sides = (pair.record, pair.request, pair.response)
    for place in (pair.record, *(mapping(side.get("metadata")) for side in sides), pair.request, pair.response):
        for key in _IDS:
            found = name_of(place.get(key))
            if found is not None:
                return found
    for side in reversed(sides):
        value = side.get("conversation")
        found = name_of(mapping(value).get("id")) or name_of(value)
        if found is not None:
            return found
    return None


def _none_called(found: list[dict[str, Any]]) -> int | None:
    """Return 0 errors where there was no call. Where there were calls, the log does not say how
    they went."""
    return None if any(message.get("tool_calls") for message in found) else 0


def _time(pair: Pair) -> str | None:
    for place in (pair.response, pair.record):
        for key in _TIMES:
            found = iso(place.get(key))
            if found is not None:
                return found
    return None


def _latency(record: dict[str, Any]) -> float | None:
    for key, seconds in _SECONDS.items():
        value = record.get(key)
        if is_number(value):
            return float(value) * seconds
    for start, end in _ENDS:
        first, last = iso(record.get(start)), iso(record.get(end))
        if first is not None and last is not None:
            return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    return None
