"""Invented traffic, to try the ladder before you have a window of your own."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path

from rft.recipe import Example, Message

from .demonstrations import demonstrations
from .examples import Options, examples


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, one conversation per line. Equal arguments give equal bytes."""
    if drifted:
        options = options.model_copy(update={"polite_share": 0.9})
    rng = random.Random(f"window {start} {drifted} {seed}")
    targets = {example.messages[-1]["content"]: example for example in examples(options, "train", 7000, seed)}
    lines: list[str] = []
    for number, messages in enumerate(demonstrations(options, conversations, seed)):
        moment = (
            datetime.datetime.combine(start, datetime.time(), datetime.UTC)
            + datetime.timedelta(days=days) * number / conversations
        )
        lines.append(json.dumps(_row(number, moment, messages, targets, rng)) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def _row(
    number: int, moment: datetime.datetime, messages: list[Message], targets: dict[str, Example], rng: random.Random
) -> dict[str, object]:
    row: dict[str, object] = {
        "conversation_id": f"c-{number:05d}",
        "time": moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "latency_s": round(rng.lognormvariate(0, 0.4), 3),
        "tool_errors": int(rng.random() < 0.02),
        "messages": messages,
    }
    known = targets.get(messages[1]["content"])
    if known is not None and rng.random() < 0.4:
        row["feedback"] = known.target
    return row
