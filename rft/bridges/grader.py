"""Reads a grader alone, `grader:G.json`, in OpenAI's form.

The grader is the whole file, or its key `grader`, as in requests and answers of the service's trial
of a grader. The owner adds the rows.
"""

from __future__ import annotations

import json
from pathlib import Path

from rft.bridges import foreign, headers, places
from rft.bridges.imported import SPLITS, Imported, Note
from rft.config import graders
from rft.errors import UserError
from rft.rows import Line, lines
from rft.types import Split


def read(path: Path, files: Path | None) -> Imported:
    """Read a grader. `files`: the folder with train.jsonl, and perhaps validation.jsonl and
    test.jsonl; or one file of rows."""
    secrets: list[str] = []
    found = foreign.json_object(path)
    if "method" in found:
        raise UserError(f"{path}: holds a job. Write --from openai:{path}.")
    inner = found.get("grader")
    is_trial = "type" not in found and isinstance(inner, dict)
    raw = headers.of_grader(inner if is_trial else found, str(path), secrets)
    grader = graders.read(raw, str(path))
    if files is None:
        raise UserError(f"{path}: a grader has no rows. Add --files FOLDER with train.jsonl, or --files ROWS.jsonl.")
    rows: dict[Split, list[Line]] = {}
    for split in SPLITS:
        given = files if files.is_file() and split == "train" else files / f"{split}.jsonl"
        if given.exists():
            rows[split] = lines(given)
    if not rows.get("train"):
        raise UserError(f"--files {files}: has no train.jsonl with rows. A row is a JSON object with `messages`.")
    every = [line for split in rows.values() for line in split]
    notes = [Note(f"{path.name}: {key}", "is of a trial, not a row") for key in found if is_trial and key != "grader"]
    notes += places.check(grader, every, False, path.name)
    return Imported(
        f"the grader of {path.name}", rows, raw, notes=tuple(notes), to_fill=(_tools(every),), secrets=tuple(secrets)
    )


def _tools(lines: list[Line]) -> str:
    """Say that the tools must be added, and which ones the rows offer."""
    offered: set[str] = set()
    for line in lines:
        found = json.loads(line.text).get("tools") or []
        offered |= {str(tool.get("function", tool).get("name")) for tool in found if isinstance(tool, dict)}
    if offered:
        return f"tools: the rows offer {', '.join(sorted(offered))}; give each an address in tools.endpoints"
    return "tools: a grader names none. If the agent has any: tools.endpoints, tools.mcp, or functions in tools.py"
