"""Read one row exactly: as the normal form of a conversation, or the reason why it is not one.

Columns are made from whole blocks at once (rft/traffic/lines.py), where a line is either certainly
normal or in doubt. Lines in doubt come here, and so do the rows of foreign formats. This module is
slow but right: the fast way must give the same result, or leave the row to this module.

docs/traffic.md describes the normal form. The id is a text, and the time has its zone. The content
of a message is a text or null (a list of text parts is joined). The arguments of a call are JSON
text.

    conversation(row)     the normal row; raises Unreadable
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from rft.traffic.quoting import shown
from rft.traffic.schema import ROLES

KEYS = ("conversation_id", "time", "messages", "latency_s", "tool_errors", "feedback", "tools")
"""Keys of our own format."""
LARGEST = 1e15
"""A number of seconds beyond this is a mistake."""
MOST_ERRORS = 10**9
_SHORT, _MANY_BRACKETS, _MARGIN = 40, 500, 50
_DECODER = msgspec.json.Decoder()


class Unreadable(Exception):
    """A row that is not a conversation. Its text says why; `kind` is the same for all rows with
    that problem, so that they can be counted."""

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind or why.partition(":")[0]


def parse(line: bytes, is_last: bool = False) -> dict[str, Any]:
    """Read a line as a JSON object. `is_last`: the line ends its file without a line break."""
    try:
        row = _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        row = _loaded(line, is_last)
    if not isinstance(row, dict):
        raise Unreadable(f"holds {'null' if row is None else shown(row, _SHORT)}, expected a JSON object", "not JSON")
    return row


def _loaded(line: bytes, is_last: bool) -> Any:
    """Read a line again that the faster parser refused, to say why."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: byte {error.start + 1} of the line") from None
    try:
        row = json.loads(text, parse_constant=_refuse)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        what = "half of a surrogate pair (\\ud800 to \\udfff), which no file can hold"
        raise Unreadable(f"holds {what}", "not JSON") from None
    except (ValueError, RecursionError) as error:
        why = "the file is cut off in this line, its last" if is_last else f"not JSON ({error})"
        raise Unreadable(why, "cut off" if is_last else "not JSON") from None
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def conversation(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normal form of a row. Raises Unreadable."""
    identity = row.get("conversation_id")
    if not isinstance(identity, str) or not identity:
        raise _bad("conversation_id", identity, "a text that is not empty")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", messages, "a list of chat messages that is not empty")
    latency, errors, tools = row.get("latency_s"), row.get("tool_errors"), row.get("tools")
    if latency is not None and not _is_number(latency):
        raise _bad("latency_s", latency, "a number of seconds, or null when it was not logged")
    if errors is not None and not (isinstance(errors, int) and _is_number(errors) and abs(errors) < MOST_ERRORS):
        raise _bad("tool_errors", errors, "a whole number, or null when it was not logged")
    if tools is not None and not isinstance(tools, list):
        raise _bad("tools", tools, "a list of tool schemas, or null when it was not logged")
    return {
        "conversation_id": identity,
        "time": _utc(row.get("time")),
        "messages": [_message(message, f"messages[{n}]") for n, message in enumerate(messages)],
        "latency_s": None if latency is None else float(latency),
        "tool_errors": errors,
        "feedback": row.get("feedback"),
        "tools": tools,
    }


def line(row: Any) -> str:
    """Write a normal row, or a value of a row, as one line of JSON. Raises Unreadable for what no
    file can hold."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
        if text.count("[") + text.count("{") > _MANY_BRACKETS:  # it is parsed later, from a deeper stack
            json.loads("[" * _MARGIN + text + "]" * _MARGIN)
    except UnicodeEncodeError:
        raise Unreadable("not JSON: half of a surrogate pair (\\ud800 to \\udfff)") from None
    except RecursionError:
        raise Unreadable("not JSON: nested too deeply") from None
    except ValueError:
        raise Unreadable("not JSON: a number that is too large") from None
    return text


def _utc(value: Any) -> str:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return iso(time)
    except (TypeError, ValueError, OverflowError):
        pass
    raise _bad("time", value, "an ISO 8601 time with its zone, such as 2026-03-02T08:14:05Z")


def iso(time: datetime) -> str:
    """Write a time as ISO 8601 in UTC."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _message(message: Any, key: str) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _bad(key, message, f"an object whose role is one of {', '.join(ROLES)}", kind="messages")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(_is_call(call) for call in calls)):
        expected = 'a list of {"id": .., "function": {"name": .., "arguments": "<JSON text>"}}'
        raise _bad(f"{key}.tool_calls", calls, expected, kind="messages")
    return message | {"content": _text(message.get("content"), f"{key}.content")}


def _text(content: Any, key: str) -> str | None:
    """Join a list of text parts, as newer clients write them, into one text."""
    if content is None or isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    raise _bad(key, content, "a text, null, or a list of text parts", kind="messages")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _bad(key: str, value: Any, expected: str, kind: str = "") -> Unreadable:
    return Unreadable(f"{key} is {shown(value)}; expected {expected}", kind or key)
