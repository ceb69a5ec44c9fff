"""Define the columns of a snapshot: one row per conversation, in the order of the log.

A snapshot is a folder:

    manifest.json        `reports.Manifest`: sources, parts, hashes, and counts of what was not
                         taken
    part-00000.parquet   rows in the order of the log, however many processes wrote it

`messages` and `feedback` are the conversation itself, as JSON. The other columns are what profiles
and contracts count. They are computed once, so that a million conversations are compared without
reading their text. A column that the owner declares (`traffic.columns`) is called `own_NAME`.

**The unit of dependence.** Conversations of one user resemble each other, so statistics may treat
users as independent, but not conversations (`traffic.unit`). Each unit has a `draw`, a hash of its
name (of the conversation's id where no unit is declared), and a `group`, the draw's last byte.
Profiles count per group. 256 groups are few enough to keep, and enough to measure noise (random
groups: Wolter, Introduction to Variance Estimation, ch. 2). They are the same in every file, so
that counts of two files add up.

**Days.** Traffic also differs from day to day, for all users at once. So profiles count per day
(UTC) as well, in 64 slots: a day's number modulo 64.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import pyarrow as pa

GROUPS = 256
DAYS = 64
OWN = "own_"
"""Prefix of the columns that the owner declares."""
MANIFEST = "manifest.json"
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
"""The roles of rft/rows.py, repeated here because a process that makes columns does not load it."""

SCHEMA = pa.schema(
    [
        ("conversation_id", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("unit", pa.string()),  # null: no unit is declared
        ("draw", pa.uint64()),  # hash of the unit, or of the id
        ("pick", pa.uint64()),  # hash of the id; it decides which conversation of a unit a sample takes
        ("group", pa.uint8()),  # draw % GROUPS
        ("source", pa.int32()),  # index in the manifest's sources
        ("line", pa.int64()),  # 1-based; for a format without lines, the record's number
        ("messages", pa.string()),  # a JSON list of chat messages, content a text or null
        ("latency_s", pa.float64()),  # null: not logged
        ("tool_errors", pa.int32()),  # null: not logged
        ("feedback", pa.string()),  # JSON; null: not graded
        ("last_role", pa.string()),
        ("num_messages", pa.int32()),
        ("num_turns", pa.int32()),  # assistant messages
        ("num_tool_calls", pa.int32()),
        ("input_words", pa.int32()),  # words of the user before the agent's first message
        ("tools", pa.list_(pa.string())),  # names called, in order
        ("calls", pa.list_(pa.string())),  # shapes of the arguments: `find_order{"number":"VARCHAR"}`
        ("replies", pa.list_(pa.string())),  # shapes of tool replies: `{"status":"VARCHAR"}`, text, empty
        ("system", pa.string()),  # first 12 digits of the SHA-256 of the system text; null: none
        ("offered", pa.string()),  # the same for the tools' schemas, where the log holds them
        ("refused", pa.bool_()),  # the last answer reads like a refusal
        ("grade", pa.string()),  # `as answered`, `corrected`; null: not graded
    ]
)


def with_own(columns: dict[str, str]) -> pa.Schema:
    """Return the schema with the owner's columns. `columns`: name -> number or category."""
    kinds = {"number": pa.float64(), "category": pa.string()}
    own = [pa.field(OWN + name, kinds[kind]) for name, kind in sorted(columns.items())]
    return pa.schema([*SCHEMA, *own])


def draw(name: str) -> int:
    """Hash a name to 64 bits, as `md5_number_lower` of DuckDB does (rft/traffic/joins.py)."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[8:], "little")
