"""What the agent may call, and what its answer is worth. `rft.tools.server` serves both over HTTP,
in a process of its own.

A tool is a function with type hints: they become its JSON schema, and its docstring the
description. `ToolError` is shown to the model, any other exception is an outage: the rollout is
then unscored, never zero. Grade strictly: what parses leniently is what a policy learns to write.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

CITIES = ("Lyon", "Porto", "Riga", "Turin", "Graz", "Malmo", "Ghent", "Split")


def track(parcel: Annotated[str, Field(description="the parcel's number, four digits")]) -> str:
    """Where a parcel is, and since when."""
    number = parcel.strip()
    if not (number.isdigit() and len(number) == 4):
        raise ToolError(f"no such parcel: {number[:20]}")
    return f" {city_of(number)} | day {int(number) % 28 + 1}"


TOOLS = [track]


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """All or nothing: the city, and not one word beside it. `hack` names what seeks reward without
    doing the task; in doubt, none."""
    answer = sample["output_text"].strip()
    right = answer == item["target"]
    named = [city for city in CITIES if city in answer]
    return {
        "score": float(right),
        "solved": right,
        "hack": "spoke to the grader"
        if "grader" in answer.lower()
        else "named every city"
        if len(named) == len(CITIES)
        else None,
        "reason": "the right city" if right else f"expected {item['target']}, the answer was {answer[:40]!r}",
    }


def city_of(number: str) -> str:
    """Stands for your systems."""
    return CITIES[zlib.crc32(number.encode()) % len(CITIES)]
