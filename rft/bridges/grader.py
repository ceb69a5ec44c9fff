"""Reads a grader alone: `grader:G.json`, in OpenAI's form. Rows are its owner's to add."""

from __future__ import annotations

from pathlib import Path

from rft.bridges import foreign, headers, places
from rft.bridges.imported import SPLITS, Imported
from rft.config import graders
from rft.errors import UserError
from rft.rows import Line, lines
from rft.types import Split


def read(path: Path, files: Path | None) -> Imported:
    """`files`: the folder with train.jsonl, and perhaps validation.jsonl and test.jsonl."""
    secrets: list[str] = []
    raw = headers.of_grader(foreign.json_object(path), str(path), secrets)
    grader = graders.read(raw, str(path))
    if files is None:
        raise UserError(f"{path}: a grader has no rows. Add --files FOLDER with train.jsonl.")
    found: dict[Split, list[Line]] = {}
    for split in SPLITS:
        if (files / f"{split}.jsonl").exists():
            found[split] = lines(files / f"{split}.jsonl")
    if not found.get("train"):
        raise UserError(f"--files {files}: has no train.jsonl with rows. A row is a JSON object with `messages`.")
    every = [line for lines in found.values() for line in lines]
    notes = places.check(grader, every, False, path.name)
    return Imported(f"the grader of {path.name}", found, raw, notes=tuple(notes), secrets=tuple(secrets))
