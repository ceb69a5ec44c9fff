"""Makes traffic from what an export has logged.

Samples of output items, stored completions and responses each become a conversation in our own
format (docs/traffic.md).

The readers of traffic do the work, so the rules are those of a log. An image makes a conversation
unreadable, and a request without its messages is not a conversation. What has an error or no answer
is left out and counted. A verdict of the service is dropped: it is not a person's feedback.

Two runs over the same stored requests show the same conversation twice; it counts once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rft.bridges.evals.export import ITEM, LOGGED, Export, Found
from rft.bridges.imported import Note
from rft.traffic.formats import chat, completions
from rft.traffic.formats.format import read_record
from rft.traffic.formats.row import Unreadable, iso, listing, mapping

_TWICE = "the same in another run"


def traffic(export: Export) -> tuple[list[str], list[Note]]:
    """Return one line per conversation, and notes on what was left out."""
    lines: list[str] = []
    left: Counter[str] = Counter()
    seen: dict[str, str] = {}
    for item in export.of_kind(ITEM):
        try:
            row = _conversation(item)
        except Unreadable as trouble:
            left[str(trouble).partition(":")[0]] += 1
            continue
        messages, run = json.dumps(row["messages"], sort_keys=True), str(item.get("run_id"))
        if seen.setdefault(messages, run) != run:
            left[_TWICE] += 1
        else:
            lines.append(json.dumps(row))
    lines += [json.dumps(row) for row in _logged(export.of_kind(LOGGED), left)]
    notes = [Note("conversations", f"{count} are left out: {why}") for why, count in left.items()]
    if lines and export.of_kind(ITEM):
        notes.append(Note("conversations", "those of output items have the time of their run, and no latency"))
    return lines, notes


def has_error(item: Found) -> bool:
    """Whether a model did not answer: `sample.error` is null, or an object of texts."""
    error = mapping(item.get("sample")).get("error")
    return any(error.values()) if isinstance(error, dict) else bool(error)


def _conversation(item: Found) -> dict[str, Any]:
    """Make the conversation of an item. Raises Unreadable, whose text gives the reason before the
    colon."""
    sample = mapping(item.get("sample"))
    if has_error(item):
        raise Unreadable("sample.error")
    answer = [
        chat.message({"role": "assistant", **_without_null(message)}, "sample.output")
        for message in listing(sample.get("output"))
    ]
    if not any(message["content"] or message.get("tool_calls") for message in answer):
        raise Unreadable("no answer")
    asked = chat.messages([_without_null(message) for message in listing(sample.get("input"))], "sample.input")
    time = iso(item.get("created_at"))
    if not item.id or time is None:
        raise Unreadable("no id or time")
    calls = {} if chat.has_calls([*asked, *answer]) else {"tool_errors": 0}
    return {"conversation_id": item.id, "time": time, "messages": [*asked, *answer], **calls}


def _without_null(message: Any) -> Any:
    """Leave out keys that the service writes as null, and put a single content part into a list."""
    if not isinstance(message, dict):
        return message
    kept = {key: value for key, value in message.items() if value is not None}
    return kept | {"content": [kept["content"]]} if isinstance(kept.get("content"), dict) else kept


def _logged(records: list[Found], left: Counter[str]) -> Iterator[dict[str, Any]]:
    keys = ("conversation_id", "time", "messages", "latency_s", "tool_errors", "feedback")
    for record in records:
        for row in read_record(completions.read, record.value):
            if isinstance(row, str):
                left[row.partition(":")[0]] += 1
            else:
                yield {key: row[key] for key in keys if row.get(key) is not None}
