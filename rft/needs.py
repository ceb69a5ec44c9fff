"""List what each stage depends on: sections of params.yaml, and files that it reads.

The table has two readers. `tasks/dependencies.py` writes it into dvc.yaml, so that DVC runs a stage
again when any of it changed. `rft/progress.py` hashes it into the name of the stage's work folder,
so that unfinished work continues under exactly the conditions under which it was left. When each
had its own list, the lists drifted apart: a baseline that was killed was finished with another
grader, because DVC knew of the recipe and the folder did not.

tests/tasks/test_dependencies.py compares the table with what the code of each stage reads. No stage
depends on section `run`, which says how long to work, not on what.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = "data"
"""Folder of all shelves: each stage leaves its files in `data/STAGE`."""
RECIPE = "${recipe.path}"
"""Filled in from params.yaml, as DVC does."""
PACKAGES = "constraints.txt"
_CHAMPION = f"{DATA}/champion"
_AGENT = (RECIPE, f"{DATA}/policy", _CHAMPION)


@dataclass(frozen=True, slots=True)
class Needs:
    sections: tuple[str, ...]
    files: tuple[str, ...]
    """Files and folders, relative to the top of the tree. PACKAGES, which all need, is not among
    them."""


def leaves(stage: str, *names: str) -> tuple[str, ...]:
    """Name files on the shelf of a stage."""
    return tuple(f"{DATA}/{stage}/{name}" for name in names)


NEEDS = {
    "traffic": Needs(("recipe", "traffic", "examples"), ("${traffic.file}", RECIPE, _CHAMPION)),
    "drift": Needs(
        ("recipe", "tools", "drift", "examples"),
        (
            *leaves("traffic", "conversations.jsonl", "current_profile.json", "reference_profile.json", "report.json"),
            RECIPE,
        ),
    ),
    "examples": Needs(
        ("recipe", "drift", "examples"), (RECIPE, *leaves("traffic", "conversations.jsonl", "report.json"))
    ),
    "policy": Needs(("recipe", "policy"), (RECIPE,)),
    "baseline": Needs(
        ("recipe", "tools", "rollout", "policy", "baseline"),
        (*_AGENT, *leaves("examples", "keys.json", "validation.jsonl")),
    ),
    "prompt": Needs(
        ("recipe", "tools", "rollout", "policy", "prompt"),
        (*_AGENT, *leaves("baseline", "report.json"), *leaves("examples", "keys.json", "validation.jsonl")),
    ),
    "train": Needs(
        ("recipe", "tools", "rollout", "examples", "policy", "train"),
        (
            *_AGENT,
            *leaves("baseline", "report.json"),
            *leaves("prompt", "prompt.json"),
            *leaves("examples", "keys.json", "train.jsonl", "validation.jsonl"),
        ),
    ),
    "challenger": Needs(
        ("recipe", "tools", "rollout", "examples", "policy", "train", "challenger"),
        (
            *_AGENT,
            *leaves("prompt", "prompt.json"),
            *leaves("train", "report.json", "weights"),
            *leaves("examples", "keys.json", "test.jsonl", "validation.jsonl"),
        ),
    ),
    "gate": Needs(
        ("gate",),
        (
            *(path for stage in ("drift", "baseline", "prompt", "train") for path in leaves(stage, "report.json")),
            *leaves("challenger", "report.json", "timing.json"),
            *leaves("registration", "registration.json"),
        ),
    ),
}


def of(stage: str, params: Any) -> tuple[list[Any], list[Path]]:
    """Return the sections and the files that a stage depends on, as in dvc.yaml."""
    found = NEEDS[stage]
    paths = [params.recipe.path if name == RECIPE else name for name in found.files]
    return [getattr(params, name) for name in found.sections], [Path(path) for path in paths]
