"""Windows of production traffic for the tiny recipe (tests/tiny_recipe.py): one conversation a key,
of an agent that looks it up.

`conversation(number)` is one row as a production log would hold it, `rows(count, seed)` a window,
`write` the file.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rft import config, files, stage_files
from rft.reports import Manifest
from rft.traffic import ingest, reading

MONDAY = datetime.datetime(2026, 3, 2, 8, tzinfo=datetime.UTC)


def value(number: int) -> str:
    return f"{(number * 7919 + 1234) % 9973:04d}"


def call(n: int, number: int, tool: str = "lookup") -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps({"key": f"k{number:04d}"})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{n}", "type": "function", "function": function}],
    }


def conversation(number: int, calls: int = 1, note: str = "value of {key}", **changes: Any) -> dict[str, Any]:
    """`changes` replace keys of the row; `...` takes a key out."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": note.format(key=f"k{number:04d}")}]
    for n in range(calls):
        messages += [call(n, number), {"role": "tool", "tool_call_id": f"call_{n}", "content": value(number)}]
    row: dict[str, Any] = {
        "conversation_id": f"c-{number:05d}",
        "time": (MONDAY + datetime.timedelta(minutes=number)).isoformat(),
        "latency_s": 1.0 + number % 7 / 10,
        "tool_errors": 0,
        "messages": [*messages, {"role": "assistant", "content": value(number)}],
        "feedback": value(number),
    }
    return {key: content for key, content in (row | changes).items() if content is not ...}


def rows(count: int, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Keys of the training split alone, drawn anew for each seed."""
    numbers = [number for number in range(9_000) if number % 5 < 3]
    return [conversation(number, **changes) for number in sorted(random.Random(seed).sample(numbers, count))]


def take_in(file: Path | str, traffic: config.Traffic, **changes: Any) -> Manifest:
    """Ingest a log into data/window of this folder, as the flow does before a run."""
    section = traffic.model_copy(update=changes)
    snapshot = ingest.ingest(str(file), section, Path.cwd(), Path.cwd() / "state/snapshots")
    files.delete(stage_files.SNAPSHOT)
    stage_files.SNAPSHOT.parent.mkdir(parents=True, exist_ok=True)
    stage_files.SNAPSHOT.symlink_to(snapshot)
    return reading.manifest(snapshot)


def snapshot(place: Path, window: Iterable[Any], **changes: Any) -> Path:
    """Ingest rows into a snapshot below a folder; return it."""
    log = write(place / "log.jsonl", window)
    return ingest.ingest(str(log), config.Traffic(min_conversations=1, **changes), place, place / "snapshots")


def write(path: Path, window: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in window), encoding="utf-8")
    return path
