"""Reads a grader alone: `grader:G.json`, in OpenAI's form. Rows are its owner's to add."""

from __future__ import annotations

from pathlib import Path

from rft.bridges import foreign
from rft.bridges.imported import SPLITS, Imported
from rft.config import graders
from rft.errors import UserError
from rft.rows import Line, lines
from rft.types import Split

_TOOLS = "tools: a grader names none. If the agent has any: tools.endpoints, tools.mcp, or functions in tools.py"


def read(path: Path, files: Path | None) -> Imported:
    """`files`: the folder with train.jsonl, and perhaps validation.jsonl and test.jsonl; or one
    file of rows."""
    raw = foreign.json_object(path)
    graders.read(raw, str(path))
    if files is None:
        raise UserError(f"{path}: a grader has no rows. Add --files FOLDER with train.jsonl, or --files ROWS.jsonl.")
    found: dict[Split, list[Line]] = {}
    for split in SPLITS:
        given = files if files.is_file() and split == "train" else files / f"{split}.jsonl"
        if given.exists():
            found[split] = lines(given)
    if not found.get("train"):
        raise UserError(f"--files {files}: has no train.jsonl with rows. A row is a JSON object with `messages`.")
    return Imported(f"the grader of {path.name}", found, raw, to_fill=(_TOOLS,))
