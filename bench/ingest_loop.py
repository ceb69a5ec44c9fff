"""Reads a window as it was read before there were snapshots, for comparison.

One process reads line after line with `json.loads`, normalizes each row, drops repeats, and writes
the normalized conversations as JSON lines, as stage traffic did. The stage then also sorted and
profiled the window, which is not part of the loop. Three changes favor the loop: the file is not
read as a whole, it is not hashed, and only the id of a conversation stays in memory. So it can run
on any size.

    python -m bench.ingest_loop LOG OUT          reads, normalizes, writes
    python -m bench.ingest_loop LOG              reads and normalizes only
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rft import secrets
from rft.errors import UserError
from rft.reports import Conversation, parse_line
from rft.rows import ROLES

_KEYS = frozenset(Conversation.model_fields)


def loop(log: Path, out: Path | None) -> int:
    """Read a log. Returns the number of conversations."""
    seen: dict[str, int] = {}
    rejected, ignored = Counter[str](), Counter[str]()
    writer = None if out is None else out.open("w", encoding="utf-8")
    with log.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{log}:{number}"
            row = parse_line(line, where, "Fix it.")
            ignored.update(sorted(row.keys() - _KEYS))
            conversation = _conversation(row, where)
            if seen.setdefault(conversation.conversation_id, number) != number:
                rejected["repeated"] += 1
            elif writer is not None:
                row = conversation.model_dump(mode="json")
                writer.write(secrets.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    if writer is not None:
        writer.close()
    return len(seen)


def _conversation(row: dict[str, Any], where: str) -> Conversation:
    identity = row.get("conversation_id")
    if not isinstance(identity, str) or not identity:
        raise _bad(where, "conversation_id", identity, "a text that is not empty")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad(where, "messages", messages, "a list of chat messages that is not empty")
    latency, errors = row.get("latency_s"), row.get("tool_errors")
    if latency is not None and not _is_number(latency):
        raise _bad(where, "latency_s", latency, "a number of seconds, or null when it was not logged")
    if errors is not None and not (isinstance(errors, int) and _is_number(errors)):
        raise _bad(where, "tool_errors", errors, "a whole number, or null when it was not logged")
    return Conversation(
        conversation_id=identity,
        time=_utc(row.get("time"), where),
        messages=[_message(message, f"messages[{n}]", where) for n, message in enumerate(messages)],
        latency_s=None if latency is None else float(latency),
        tool_errors=errors,
        feedback=row.get("feedback"),
    )


def _utc(value: Any, where: str) -> str:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError):
        pass
    raise _bad(where, "time", value, "an ISO 8601 time with its zone, such as 2026-03-02T08:14:05Z")


def _message(message: Any, key: str, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _bad(where, key, message, f"an object whose role is one of {', '.join(ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(_is_call(call) for call in calls)):
        expected = 'a list of {"id": .., "function": {"name": .., "arguments": "<JSON text>"}}'
        raise _bad(where, f"{key}.tool_calls", calls, expected)
    return message | {"content": _text(message.get("content"), f"{key}.content", where)}


def _text(content: Any, key: str, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    raise _bad(where, key, content, "a text, null, or a list of text parts")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _bad(where: str, key: str, value: Any, expected: str) -> UserError:
    shown = "missing" if value is None else json.dumps(value, ensure_ascii=False)[:60]
    return UserError(f"{where}: {key} is {shown}; expected {expected}.")


if __name__ == "__main__":
    print(loop(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
