"""The one tool, which opens a drawer of the row's cabinet, and the grader.

An answer earns 1 for the number on the slip, and else nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

EMPTY = " empty"


def look(drawer: Annotated[str, Field(description="1 is the topmost")], item: dict[str, Any]) -> str:
    """What lies in a drawer."""
    number, last = drawer.strip(), item["metadata"]["drawers"]
    if number not in {str(known) for known in range(1, last + 1)}:
        raise ToolError(f"no such drawer: {number[:20]}")
    return f" {item['target']}" if int(number) == item["metadata"]["drawer"] else EMPTY


TOOLS = [look]


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    right = (sample.get("output_text") or "").strip() == item["target"]
    return {"score": float(right), "solved": right, "reason": "found" if right else f"the slip says {item['target']}"}
