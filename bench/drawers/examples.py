"""The rows: a cabinet, the drawer that holds its slip, and the number on the slip.

Any number of cabinets can be drawn, and splits share none. Each drawer holds the slip with equal
chance. So a short search mostly fails, and if the slip lies deep, all rollouts of a group fail.
"""

from __future__ import annotations

import random

from pydantic import BaseModel, ConfigDict, Field

from rft.types import Example

REMAINDERS = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}
SLIPS = range(100, 300)
FURNITURE = (" chair", " lamp", " desk", " clock")
"""A note names up to 60 pieces of furniture. The warm start batches dialogues by length, and
without these pieces it would batch them by patience."""


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    drawers: int = Field(default=12, ge=2)


def examples(options: Options, split: str, count: int, seed: int) -> list[Example]:
    rng = random.Random(f"{split} {seed}")
    numbers = [number for number in range(100_000) if number % 5 in REMAINDERS[split]]
    return [_example(options, number, rng) for number in rng.sample(numbers, count)]


def _example(options: Options, number: int, rng: random.Random) -> Example:
    drawer, slip = rng.randint(1, options.drawers), f"slip {rng.choice(SLIPS)}"
    room = "".join(rng.choices(FURNITURE, k=rng.randrange(60)))
    note = {"role": "user", "content": f"In the room:{room}. What lies in cabinet {number:05d}?"}
    slices = "shallow" if drawer <= options.drawers // 2 else "deep"
    return Example(
        f"cabinet-{number:05d}", (note,), slip, {"drawer": drawer, "drawers": options.drawers, "slice": slices}
    )
