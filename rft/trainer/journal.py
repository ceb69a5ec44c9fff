"""What a run writes down with each step: a line of numbers, and a line of wall times.

    metrics.jsonl    what was learned. Equal runs leave equal bytes
    times.jsonl      the seconds of the same steps, in a file of their own for that reason

Both may be followed while they grow (rft/lines.py). A run that was cut off cuts them back to its
checkpoint and goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft import files

Numbers = dict[str, Any]


def timed(step: int, total_s: float, phases: Mapping[str, float], tokens: int) -> Numbers:
    """Return seconds of a step by phase. The rest is `other`, so that they add up to the whole; it
    is below zero if sampling ran at the same time (lag)."""
    spent = dict(sorted(phases.items())) | {"other": total_s - sum(phases.values()), "step": total_s}
    return {
        "step": step,
        **{f"time/{name}_s": round(seconds, 4) for name, seconds in spent.items()},
        "throughput/tokens_per_s": round(tokens / total_s, 1),
        "throughput/steps_per_hour": round(3600 / total_s, 1),
    }


class Lines:
    """A file of JSON lines that grows with each step, and is cut back to a checkpoint."""

    def __init__(self, path: Path):
        self.path, self.rows = path, list[Numbers]()

    def add(self, row: Numbers) -> None:
        self.rows.append(row)
        with self.path.open("a") as handle:
            handle.write(json.dumps(row) + "\n")
            handle.flush()
            os.fsync(handle.fileno())  # a checkpoint relies on it

    def back_to(self, step: int) -> None:
        """Keep whole lines up to the step; a kill may have cut the last."""
        self.rows = [row for row in _whole(self.path) if row["step"] <= step]
        files.write_text(self.text(), self.path, durable=True)

    def text(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self.rows)


def _whole(path: Path) -> list[Numbers]:
    found: list[Numbers] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found
