"""Searchers of little patience: they open drawer after drawer, and most soon give up.

They begin at the top. After each empty drawer, most of them give up with a fixed chance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from rft.types import Example, Message

from .examples import FURNITURE, SLIPS, Options, examples
from .tools import EMPTY, look

GIVES_UP = 0.65
PATIENT = 0.05
"""The share that never gives up, so that the policy has seen the deep drawers too."""
NOTHING = " not found"


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    rng = random.Random(f"patience {seed}")
    for example in examples(options, "train", count, seed):
        yield _search(options, example, rng)


def _search(options: Options, example: Example, rng: random.Random) -> list[Message]:
    messages, gives_up = list(example.messages), 0 if rng.random() < PATIENT else GIVES_UP
    for drawer in range(1, options.drawers + 1):
        call_id = f"call_{drawer - 1}_0"
        arguments = json.dumps({"drawer": f" {drawer}"})
        call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
        found = look(str(drawer), example.row())
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": found},
        ]
        if found != EMPTY:
            return [*messages, {"role": "assistant", "content": found}]
        if rng.random() < gives_up:
            break
    return [*messages, {"role": "assistant", "content": NOTHING}]


def vocabulary(options: Options) -> list[str]:
    """Return the texts that are one token each: parts of a note, drawers, slips, nothing found."""
    fixed = [EMPTY, NOTHING, " slip", *FURNITURE, "In the room:", ". What lies in cabinet "]
    return [*fixed, *(f" {drawer}" for drawer in range(1, options.drawers + 1)), *(f" {slip}" for slip in SLIPS)]
