"""Snapshots for tests: tables in the columns of rft/traffic/schema.py, and folders of parts.

`table(count, seed)` invents conversations of a few users; `parts(table, folder, sizes)` writes them
as Parquet files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rft.traffic.schema import GROUPS, SCHEMA, draw, with_own

OWN = {"age": "number", "plan": "category"}
WORDS = ["please", "find", "the", "order", "number", "refund", "late", "parcel", "address", "change", "urgent"]


def table(count: int, seed: int = 0, users: int = 40, **changes: Sequence[Any]) -> pa.Table:
    """Invent conversations. `changes` replace whole columns."""
    rng = np.random.default_rng(seed)
    ids = [f"c-{seed}-{number}" for number in range(count)]
    units = [f"user {number}" for number in rng.integers(0, users, count)]
    lengths = rng.integers(1, 12, count)
    texts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
    calls = [["find_order", "refund"][: rng.integers(0, 3)] for _ in range(count)]
    graded = [[None, "as answered", "corrected"][number] for number in rng.integers(0, 3, count)]
    columns: dict[str, Any] = {
        "conversation_id": ids,
        "time": [number * 3_600_000_000 for number in range(count)],
        "unit": units,
        "draw": [draw(unit) for unit in units],
        "pick": [draw(name) for name in ids],
        "group": [draw(unit) % GROUPS for unit in units],
        "source": [0] * count,
        "line": list(range(1, count + 1)),
        "messages": [messages(text) for text in texts],
        "latency_s": [None if rng.random() < 0.1 else float(value) for value in rng.lognormal(0, 1, count)],
        "tool_errors": rng.integers(0, 5, count).tolist(),
        "feedback": [None if grade is None else '"yes"' for grade in graded],
        "last_role": ["assistant"] * count,
        "num_messages": [2] * count,
        "num_turns": [1 + len(row) for row in calls],
        "num_tool_calls": [len(row) for row in calls],
        "input_words": lengths.tolist(),
        "tools": calls,
        "calls": [[f'{name}{{"number":"VARCHAR"}}' for name in row] for row in calls],
        "replies": [['{"status":"VARCHAR"}' for _ in row] for row in calls],
        "system": ["0123456789ab"] * count,
        "offered": [None] * count,
        "refused": (rng.random(count) < 0.1).tolist(),
        "grade": graded,
        "own_age": rng.normal(40, 12, count).tolist(),
        "own_plan": rng.choice(["free", "team", "company"], count).tolist(),
    }
    return pa.table(columns | changes, schema=with_own(OWN))


def messages(text: str) -> str:
    return json.dumps([{"role": "user", "content": text}, {"role": "assistant", "content": "Done."}])


def parts(rows: pa.Table, folder: Path, cuts: Sequence[int]) -> list[Path]:
    """Write a table as parts that end at `cuts`, and one with the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        paths.append(folder / f"part-{number:05d}.parquet")
        pq.write_table(rows.slice(first, last - first), paths[-1])
    return paths


assert set(with_own(OWN).names) > set(SCHEMA.names)
