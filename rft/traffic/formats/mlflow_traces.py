"""Read MLflow's traces, as `Trace.to_json`, `Trace.to_dict` and `mlflow traces search` write them.

A trace is one request to the agent. Its spans hold inputs and outputs as they were passed: for a
call of the model, the client's request and response. Joined (`chat.dialogue`), they are the
dialogue. Where no model was traced, the first span that holds messages counts.

The session (`mlflow.trace.session`) names the conversation; a trace without one is a conversation
of its own. `traffic.unit` may name metadata and tags, such as `mlflow.trace.user`.

**Feedback** is the right answer. An expectation states it: `expected_response`, or the only
expectation; several become an object by name. Otherwise, a person's feedback counts, if it is one
value. No person confirmed the judgments of models and code, so they are left out.
"""

from __future__ import annotations

from typing import Any

from rft.traffic.formats import chat, pair, responses
from rft.traffic.formats.row import NO_ID, Read, Row, Unreadable, is_number, iso, listing, loaded, mapping, name_of

_SESSION = "mlflow.trace.session"
_MODEL = ("CHAT_MODEL", "LLM")
_FAILED = ("STATUS_CODE_ERROR", "ERROR", 2, "2")
_ANSWERS = ("expected_response", "expected_output", "expected_answer")


def is_mine(record: dict[str, Any]) -> bool:
    data = mapping(record.get("data"))
    is_trace = isinstance(record.get("info"), dict) and ("spans" in data or "trace_id" in record["info"])
    return is_trace or ("trace_id" in record and ("spans" in record or "trace" in record))


def read(record: dict[str, Any]) -> Read:
    """Read one trace, or one row of a table of traces."""
    inner = loaded(record.get("trace"))
    if isinstance(inner, dict):
        record = inner
    info = mapping(record.get("info")) or record
    spans = [span for span in listing(mapping(record.get("data")).get("spans", record.get("spans"))) if span]
    spans = sorted((mapping(span) for span in spans), key=_start)
    if not spans:
        raise Unreadable("no messages: the trace was exported without its spans")
    metadata = mapping(info.get("trace_metadata")) or mapping(info.get("request_metadata"))
    tags = mapping(info.get("tags"))
    trace = name_of(info.get("trace_id")) or name_of(info.get("request_id"))
    session = name_of(metadata.get(_SESSION)) or name_of(tags.get(_SESSION))
    if session is None and trace is None:
        raise Unreadable("no id: neither a session nor a trace_id")
    time = _time(info, spans)
    if time is None:
        raise Unreadable("no time: the trace has no request_time, and its spans no start")
    dialogue, tools, num_other = _dialogue(spans)
    tool_spans = [span for span in spans if _attribute(span, "mlflow.spanType") == "TOOL"]
    errors = sum(_is_failed(span) for span in tool_spans) if tool_spans or not chat.has_calls(dialogue) else None
    row = Row(
        conversation_id=session or trace or "",
        time=time,
        messages=dialogue,
        latency_s=_latency(info, spans),
        tool_errors=errors,
        feedback=_feedback(listing(info.get("assessments"))),
        tools=tools,
        record=_record(info, metadata, tags),
        continues=session is not None,
    )
    if session is None:
        row["note"] = NO_ID
    if num_other:
        row["counts"] = {chat.OTHER: num_other}
    yield row


def _record(info: dict[str, Any], metadata: dict[str, Any], tags: dict[str, Any]) -> dict[str, Any]:
    payload = ("mlflow.traceInputs", "mlflow.traceOutputs")
    plain = {key: value for key, value in info.items() if not isinstance(value, dict | list)}
    return plain | tags | {key: value for key, value in metadata.items() if key not in payload} | {"info": info}


def _attribute(span: dict[str, Any], key: str) -> Any:
    """Return an attribute of a span. In an export each is JSON as text."""
    value = mapping(span.get("attributes")).get(key)
    if isinstance(value, str) and value[:1] == '"':
        return value[1:-1]
    return loaded(value)


def _is_failed(span: dict[str, Any]) -> bool:
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else span.get("status_code", status)
    return code in _FAILED


def _start(span: dict[str, Any]) -> int:
    value = span.get("start_time_unix_nano", span.get("start_time"))
    return value if isinstance(value, int) else 0


def _end(span: dict[str, Any]) -> int:
    value = span.get("end_time_unix_nano", span.get("end_time"))
    return value if isinstance(value, int) else 0


def _time(info: dict[str, Any], spans: list[dict[str, Any]]) -> str | None:
    found = iso(info.get("request_time"))
    if found is None and is_number(info.get("timestamp_ms")):
        found = iso(info["timestamp_ms"] / 1000)
    if found is None and is_number(info.get("request_time")):
        found = iso(info["request_time"] / 1000)
    return found or (iso(_start(spans[0]) / 1e9) if _start(spans[0]) else None)


def _latency(info: dict[str, Any], spans: list[dict[str, Any]]) -> float | None:
    for key in ("execution_duration_ms", "execution_time_ms", "execution_duration"):
        value = info.get(key)
        if is_number(value):
            return float(value) / 1000
        if isinstance(value, str) and value.endswith("s"):
            try:
                return float(value[:-1])
            except ValueError:
                continue
    first, last = _start(spans[0]), max(map(_end, spans))
    return (last - first) / 1e9 if first and last >= first else None


# -- messages --------------------------------------------------------------------------------------
def _dialogue(spans: list[dict[str, Any]]) -> tuple[list[chat.Message], list[dict[str, Any]] | None, int]:
    """Return the dialogue, the tools that were offered last, and how many calls of the model belong
    to another dialogue."""
    models = [span for span in spans if _attribute(span, "mlflow.spanType") in _MODEL]
    told = [found for found in map(_of_span, models) if found[0]]
    told = told or [found for found in map(_of_span, spans) if found[0]][:1]
    if not told:
        raise Unreadable("no messages: no span of the trace holds chat messages")
    dialogue, num_other = chat.dialogue([dialogue for dialogue, _ in told])
    return dialogue, next((tools for _, tools in reversed(told) if tools), None), num_other


def _of_span(span: dict[str, Any]) -> tuple[list[chat.Message], list[dict[str, Any]] | None]:
    given, answer = _attribute(span, "mlflow.spanInputs"), _attribute(span, "mlflow.spanOutputs")
    request = mapping(given) if isinstance(given, dict) else {"messages": given}
    found = pair.Pair({"id": "span", "created": 0}, request, mapping(answer))
    if found.is_responses:
        for row in responses.rows(found):
            assert not isinstance(row, str)
            return row["messages"], row["tools"]
    if not isinstance(request.get("messages"), list):
        return [], None
    history = chat.messages(_flat(request["messages"]), "mlflow.spanInputs.messages")
    tools = [tool for tool in listing(_attribute(span, "mlflow.chat.tools")) if isinstance(tool, dict)]
    offered = [tool for tool in listing(request.get("tools")) if isinstance(tool, dict)] or tools
    return [*history, *_answer(answer)], offered or None


def _flat(messages: list[Any]) -> list[Any]:
    """Unwrap a batch of one dialogue, as some frameworks pass it."""
    return messages[0] if len(messages) == 1 and isinstance(messages[0], list) else messages


def _answer(value: Any) -> list[chat.Message]:
    """Return the answer of a span: a response, a message, messages, or a text."""
    found = mapping(value)
    choices = listing(found.get("choices"))
    if choices:
        return [chat.message({"role": "assistant"} | mapping(mapping(choices[0]).get("message")), "choices[0]")]
    if "role" in found or "content" in found:
        return [chat.message({"role": "assistant"} | found, "mlflow.spanOutputs")]
    if "messages" in found:
        return chat.messages(found["messages"], "mlflow.spanOutputs.messages")[-1:]
    if isinstance(value, str) and value:
        return [chat.written("assistant", value)]
    raise Unreadable("no answer: the outputs of the call are neither a response nor a message")


# -- feedback --------------------------------------------------------------------------------------
def _feedback(assessments: list[Any]) -> Any:
    valid = [found for found in map(mapping, assessments) if found.get("valid", True) is not False]
    expected = {str(found.get("assessment_name")): _expected(found) for found in valid if found.get("expectation")}
    for name in _ANSWERS:
        if name in expected:
            return expected[name]
    if expected:
        return next(iter(expected.values())) if len(expected) == 1 else expected
    given = [
        mapping(found["feedback"]).get("value")
        for found in valid
        if found.get("feedback") and mapping(found.get("source")).get("source_type") == "HUMAN"
    ]
    return given[0] if len(given) == 1 else None


def _expected(assessment: dict[str, Any]) -> Any:
    held = mapping(assessment["expectation"])
    if "value" in held:
        return held["value"]
    return loaded(mapping(held.get("serialized_value")).get("value"))
