"""The bodies of the contract: what crosses between trainer, tools and grader, and how a reply is
read.

The wire is OpenAI's Agent RFT contract: a tool receives a `function_call` whose arguments are a
JSON string, and answers with a `function_call_output`; the grader receives `sample` (the graded
view of a trajectory) and `item` (the whole dataset row). One `trace_id` runs through all calls of a
rollout. Reading is lenient, because servers in the field differ: only `output` matters. A reply
answers the request whose connection it came on, whatever `call_id` it holds.

We deviate from the contract once. There the body of every 4xx goes to the policy; here a 403, 404,
405, 407 or 410 without an `output` is the server's (`SERVERS_OWN`; rft/tools/client.py applies it):
a wrong address or a missing permission would else be shown to the policy, scored, and seen by
nobody. A tool that means the policy by its bare 404 declares `client_errors: policy`.

How bodies are sent and when a request is retried is in rft/wire/client.py; headers, signatures and
secrets are in rft/wire/headers.py.
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

# the server's fault, unless an `output` says otherwise: no argument makes an address exist
SERVERS_OWN = frozenset({403, 404, 405, 407, 410})


class Malformed(ValueError):
    """A 2xx whose body is not what the contract says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool of any kind answered. `is_error`: shown to the policy as its own mistake."""

    output: str
    is_error: bool = False
    retries: int = 0


class Envelope:
    """What every request of one rollout carries, encoded once: a row can be large. Raises
    ValueError for a trace id that cannot be a header."""

    def __init__(self, context: RolloutContext) -> None:
        self.context = context
        self.headers = headers.of_rollout(context)

    @cached_property
    def item(self) -> bytes:
        return self.context.example.line.encode()


def call_payload(call: ToolCall, arguments: str, envelope: Envelope) -> bytes:
    """A call around the row, whose bytes are the user's."""
    return with_item(_call_head(call, arguments, envelope.context.trace_id), envelope)


def with_item(head: Mapping[str, Any], envelope: Envelope) -> bytes:
    return _STRICT.encode(head).encode()[:-1] + b', "item": ' + envelope.item + b"}"


_STRICT = json.JSONEncoder(allow_nan=False)
"""Made once: `json.dumps` with a setting of its own makes an encoder per call."""


def _call_head(call: ToolCall, arguments: str, trace_id: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call.call_id}",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": arguments,
        "trace_id": trace_id,
    }


def read_output(body: bytes) -> str:
    """Read the text of a tool's reply; other values become JSON. Raises Malformed without an
    `output`."""
    value = read_json(body)
    if isinstance(value, dict) and "output" not in value and isinstance(value.get("result"), dict):
        value = value["result"]
    if not isinstance(value, dict) or "output" not in value:
        raise Malformed(f"the reply has no 'output': {clip(body)}")
    return as_text(value["output"])


def read_refusal(body: bytes) -> str:
    """Read the text of a 4xx: its `output` if it has one, else the payload itself."""
    try:
        return read_output(body)
    except Malformed:
        return redact(body.decode("utf-8", "replace"))


def sample(turns: Iterable[Turn], stop_reason: StopReason) -> dict[str, Any]:
    """The graded view of a trajectory. A last turn that calls tools is no answer: its text is
    markup, and is not graded. Unless a terminal tool took the call: then its arguments are the
    answer.
    """
    turns = list(turns)
    last = turns[-1] if turns else Turn("")
    unanswered = bool(last.calls) and last.submitted is None
    text = last.submitted if last.submitted is not None else "" if unanswered else last.answer
    finish_reason = "tool_calls" if unanswered else "length" if stop_reason is StopReason.max_tokens else "stop"
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
        "stop_reason": str(stop_reason),
        "trajectory": [message for turn in turns for message in _messages(turn)],
    }


def _parsed(text: str) -> Any:
    """The final text as JSON, whether or not a format was asked for; None when it is none.

    Nor is what JSON could not hold again: NaN, a number that overflows (1e999), half a surrogate
    pair. A grader would refuse such a body, and a policy could so buy itself a rollout without a
    score.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    """What was said, what was found and how long that took, in order: the assistant's message, then
    a message per result.

    `latency_s` is None where it is not on record: for what was never sent, and for a trajectory
    that is graded anew.
    """
    spoken: dict[str, Any] = {
        "role": "assistant",
        "content": turn.answer,
        "tool_calls": [_tool_call(call) for call in turn.calls],
    }
    yield spoken | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})
    names = {call.call_id: call.name for call in turn.calls}
    for one in turn.results:
        found = {"role": "tool", "tool_call_id": one.call_id, "name": names.get(one.call_id, ""), "content": one.output}
        yield found | {"is_error": one.is_error or one.failed, "latency_s": one.latency_s or None}


def grader_payload(turns: Iterable[Turn], stop_reason: StopReason, envelope: Envelope) -> bytes:
    return with_item({"sample": sample(turns, stop_reason), "trace_id": envelope.context.trace_id}, envelope)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def as_text(value: Any) -> str:
    """Lone surrogates, which JSON can hold and UTF-8 cannot, become '?'."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return redact(text.encode("utf-8", "replace").decode("utf-8"))


def read_json(body: bytes) -> Any:
    """Raises Malformed. NaN and Infinity parse: their reader judges them."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed(f"the reply is not JSON: {clip(body)}") from None


def clip(body: bytes, limit: int = 200) -> str:
    """The beginning of a body on one line, for a message."""
    text = " ".join(redact(body.decode("utf-8", "replace"))[: limit * 4].split())
    return text[:limit] + ("..." if len(text) > limit else "")


def too_large(max_reply_bytes: int) -> Outcome:
    return Outcome(f"Error 413: the reply is larger than {max_reply_bytes} bytes. Ask for less.", is_error=True)
