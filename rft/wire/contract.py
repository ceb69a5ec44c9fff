"""The bodies of requests between trainer, tools and grader, and the reading of replies.

The wire is OpenAI's Agent RFT contract. A tool receives a `function_call` whose arguments are a
JSON string, and answers with a `function_call_output`. The grader receives `sample` (the graded
view of a trajectory) and `item` (the whole dataset row). All calls of a rollout have the same
`trace_id`. Reading is lenient, because real servers differ: only `output` matters. A reply answers
the request of its connection, whatever `call_id` it holds.

We deviate from the contract once. In the contract the body of every 4xx goes to the policy. Here a
403, 404, 405, 407 or 410 without an `output` (`SERVERS_OWN`) is the server's fault;
rft/tools/http.py says why.

rft/wire/client.py sends the bodies and retries; rft/wire/headers.py holds headers and signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rft.secrets import redact
from rft.types import RolloutContext, StopReason, ToolCall, Turn
from rft.wire import headers

SERVERS_OWN = frozenset({403, 404, 405, 407, 410})


class Malformed(ValueError):
    """A reply whose body does not follow the contract."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a tool of any kind. `is_error`: the policy sees it as its own mistake."""

    output: str
    is_error: bool = False
    retries: int = 0


class Envelope:
    """The headers and the row of every request of one rollout. They are encoded once, because a row
    can be large. Raises ValueError for a trace id that cannot be a header."""

    def __init__(self, context: RolloutContext) -> None:
        self.context = context
        self.headers = headers.of_rollout(context)

    @cached_property
    def item(self) -> bytes:
        return self.context.example.line.encode()


def call_payload(call: ToolCall, arguments: str, envelope: Envelope) -> bytes:
    head = {
        "type": "function_call",
        "id": f"fc_{call.call_id}",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": arguments,
        "trace_id": envelope.context.trace_id,
    }
    return with_item(head, envelope)


def with_item(head: Mapping[str, Any], envelope: Envelope) -> bytes:
    """Encode a body that holds the row, byte for byte as the user wrote it."""
    return _STRICT.encode(head).encode()[:-1] + b', "item": ' + envelope.item + b"}"


_STRICT = json.JSONEncoder(allow_nan=False)
"""Made once, because `json.dumps` with its own settings makes an encoder for each call."""


def read_output(body: bytes) -> str:
    """Read the output of a tool's reply. A value that is not a text becomes JSON. Raises Malformed
    without an `output`."""
    value = read_json(body)
    if isinstance(value, dict) and "output" not in value and isinstance(value.get("result"), dict):
        value = value["result"]
    if not isinstance(value, dict) or "output" not in value:
        raise Malformed(f"the reply has no 'output': {clip(body)}")
    return as_text(value["output"])


def read_refusal(body: bytes) -> str:
    """Read the text of a 4xx: its `output` if it has one, else the body itself."""
    try:
        return read_output(body)
    except Malformed:
        return redact(body.decode("utf-8", "replace"))


def stop_word(stop_reason: StopReason) -> str:
    """Name a stop reason as servers know it. For them a sampler's failure keeps its old name."""
    return "policy_error" if stop_reason is StopReason.sampler_error else str(stop_reason)


def sample(turns: Iterable[Turn], stop_reason: StopReason) -> dict[str, Any]:
    """Make the graded view of a trajectory. If its last turn calls tools, there is no answer: the
    text is markup, and is not graded. If a terminal tool took a call, the call's arguments are the
    answer.
    """
    turns = list(turns)
    last = turns[-1] if turns else Turn("")
    text, finish_reason = last.answer, "length" if stop_reason is StopReason.max_tokens else "stop"
    if last.submitted is not None:
        text = last.submitted
    elif last.calls:
        text, finish_reason = "", "tool_calls"
    message = {"role": "assistant", "content": text, "tool_calls": [_tool_call(call) for call in last.calls]}
    calls = [_tool_call(call) for turn in turns for call in turn.calls]
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "output_text": text,
        "output_json": _parsed(text),
        "output_tools": calls,
        "output_audio": None,
        "output_reasoning_summary": "\n\n".join(turn.reasoning for turn in turns if turn.reasoning) or None,
        "num_tool_calls": len(calls),
        "stop_reason": stop_word(stop_reason),
        "trajectory": [message for turn in turns for message in _messages(turn)],
    }


def _parsed(text: str) -> Any:
    """Read the final text as JSON, even if no format was asked for; None if it is not JSON.

    Return None also for a value that cannot be written as JSON again: NaN, a number that overflows
    (1e999), half a surrogate pair. A grader would refuse that body, and so a policy could avoid its
    score.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield the assistant's message, then one message per result. `latency_s` is None if it is not
    known: for a call that was not sent, and in a trajectory that is graded again."""
    calls = [_tool_call(call) for call in turn.calls]
    spoken: dict[str, Any] = {"role": "assistant", "content": turn.answer, "tool_calls": calls}
    yield spoken | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})
    names = {call.call_id: call.name for call in turn.calls}
    for result in turn.results:
        yield {
            "role": "tool",
            "tool_call_id": result.call_id,
            "name": names.get(result.call_id, ""),
            "content": result.output,
            "is_error": result.is_error or result.failed,
            "latency_s": result.latency_s or None,
        }


def grader_payload(turns: Iterable[Turn], stop_reason: StopReason, envelope: Envelope) -> bytes:
    return with_item({"sample": sample(turns, stop_reason), "trace_id": envelope.context.trace_id}, envelope)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def as_text(value: Any) -> str:
    """Turn a JSON value into text. Lone surrogates, which UTF-8 cannot hold, become '?'."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return redact(text.encode("utf-8", "replace").decode("utf-8"))


def read_json(body: bytes) -> Any:
    """Read JSON. Raises Malformed. NaN and Infinity are accepted: the caller judges them."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed(f"the reply is not JSON: {clip(body)}") from None


def clip(body: bytes, limit: int = 200) -> str:
    """Return the beginning of a body on one line, for a message."""
    text = " ".join(redact(body.decode("utf-8", "replace"))[: limit * 4].split())
    return text[:limit] + ("..." if len(text) > limit else "")


REPLY_TOO_LARGE = "Error 413: the reply is larger than "


def too_large(max_reply_bytes: int) -> Outcome:
    return Outcome(f"{REPLY_TOO_LARGE}{max_reply_bytes} bytes. Ask for less.", is_error=True)
