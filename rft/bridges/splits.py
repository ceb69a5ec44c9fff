"""Cuts missing splits from the training rows.

Rows that ask the same belong together, so only the messages are hashed. Two rows with the same
input are always in one split, and a row stays in its split when others are added or removed. A
format may also name a key that is equal in rows of one test, asked in other words (Promptfoo's
prompts x tests).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence, Set
from typing import Any

from rft.errors import UserError
from rft.rows import Line
from rft.types import Split

SHARES: dict[Split, int] = {"test": 20, "validation": 10}
"""Percent of the training inputs that a missing split takes."""
ENOUGH = 24
LEAST = 2
"""A single example shows nothing."""


def cut(rows: dict[Split, list[Line]], same_test_key: str | None = None) -> tuple[dict[Split, list[Line]], list[str]]:
    """Return all three splits, and lines that say what was cut.

    `same_test_key`: a key that is equal in rows of one test. Raises UserError where too few
    different inputs are left.
    """
    train, notes = rows["train"], list[str]()
    asked = _asked(train, same_test_key)
    found: dict[Split, list[Line]] = dict(rows)
    missing: list[Split] = [name for name in SHARES if not rows.get(name)]
    for name in missing:
        taken = _chosen({asked[line] for line in train}, SHARES[name], name)
        found[name] = [line for line in train if asked[line] in taken]
        train = [line for line in train if asked[line] not in taken]
    found["train"] = train
    if missing and not train:
        raise UserError(
            f"{rows['train'][0].where.partition(':')[0]}: {len(rows['train'])} rows with "
            f"{len(set(asked.values()))} different inputs are too few to cut "
            f"{' and '.join(missing)} from. Add rows."
        )
    for name in missing:
        notes.append(f"{name}: {len(found[name])} rows were cut from the training rows by a hash of their messages")
    if len(found["test"]) < ENOUGH:
        notes.append(f"test: {len(found['test'])} rows cannot settle a gain of a few percent: bring {ENOUGH} or more")
    if missing:
        notes.append(f"train: {len(train)} of {len(rows['train'])} rows are left")
    return found, notes


def overlap(rows: dict[Split, list[Line]]) -> None:
    """Raises UserError if two splits share messages, naming a line of each."""
    seen: dict[str, tuple[Split, str]] = {}
    for name, lines in rows.items():
        for line in lines:
            split, where = seen.setdefault(_input(line), (name, line.where))
            if split != name:
                raise UserError(
                    f"{line.where}: has the messages of {where}, which is a row of {split}. What is learned would be "
                    "measured on itself. Remove one of them."
                )


def _asked(lines: Sequence[Line], same_test_key: str | None) -> dict[Line, str]:
    """Map each row to what it asks: its messages, or the first of all messages of the same test."""
    first: dict[str, str] = {}

    def root(name: str) -> str:
        while first.setdefault(name, name) != name:
            first[name] = name = first[first[name]]
        return name

    for line in lines if same_test_key else ():
        test = f"test {json.dumps(json.loads(line.text).get(same_test_key), sort_keys=True)}"  # sorts after messages
        one, other = sorted((root(_input(line)), root(test)))
        first[other] = one
    return {line: root(_input(line)) for line in lines}


def _chosen(inputs: Set[str], percent: int, salt: str) -> set[str]:
    """Choose the inputs whose hash falls into the share. If that gives less than half of the share,
    as can happen with few inputs, choose those with the smallest hashes."""
    places = {key: int(hashlib.sha256(f"{salt} {key}".encode()).hexdigest()[:8], 16) for key in inputs}
    below = {key for key, place in places.items() if place < percent * (1 << 32) // 100}
    least = max(LEAST, len(places) * percent // 200)
    return below if len(below) >= least else set(sorted(places, key=lambda key: places[key])[:least])


def _input(line: Line) -> str:
    messages: Any = json.loads(line.text).get("messages")
    return json.dumps(messages, sort_keys=True)
