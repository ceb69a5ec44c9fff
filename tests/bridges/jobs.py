"""Jobs of other services with their files, as the services return them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIND = {
    "type": "function",
    "function": {
        "name": "find_item",
        "description": "Find an item.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
EXACT = {
    "type": "string_check",
    "name": "exact",
    "input": "{{sample.output_text}}",
    "reference": "{{item.reference_answer}}",
    "operation": "eq",
}


def row(number: int, **more: Any) -> dict[str, Any]:
    """A row as clients write it: a developer message, parts, numbers in their own form."""
    return {
        "messages": [
            {"role": "developer", "content": "Use find_item before you answer."},
            {"role": "user", "content": [{"type": "text", "text": f"Which jacket is number {number}?"}]},
        ],
        "reference_answer": f"SKU-{number % 5}",
        "price": 1.10,
    } | more


def written(rows: list[dict[str, Any]], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def job(grader: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The job object of OpenAI. `more`: keys of method.reinforcement."""
    return {
        "object": "fine_tuning.job",
        "id": "ftjob-1",
        "model": "o4-mini-2025-04-16",
        "created_at": 1780000000,
        "finished_at": None,
        "fine_tuned_model": None,
        "organization_id": "org-1",
        "result_files": [],
        "status": "succeeded",
        "trained_tokens": None,
        "training_file": "file-train",
        "validation_file": "file-valid",
        "hyperparameters": None,
        "error": None,
        "seed": 7,
        "method": {"type": "reinforcement", "reinforcement": {"grader": grader or EXACT} | more},
    }


def exported(folder: Path, found: dict[str, Any], train: int = 40, valid: int = 10, **more: Any) -> Path:
    """Write a job with its two files; return the job's path."""
    written([row(n, **more) for n in range(train)], folder / "file-train.jsonl")
    written([row(n, **more) for n in range(100, 100 + valid)], folder / "file-valid.jsonl")
    (folder / "job.json").write_text(json.dumps(found))
    return folder / "job.json"
