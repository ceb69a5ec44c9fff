"""What each stage depends on: the sections of params.yaml and the files that it reads. One table
for two readers.

`tasks/dependencies.py` writes it into dvc.yaml, so that DVC runs a stage again when any of it
changed. `rft/progress.py` hashes it into the name of the stage's work folder, so that unfinished
work is taken up under exactly the conditions under which it was left, and under no others. With a
list for each they drifted apart: a baseline that a kill cut off was finished under another grader,
because DVC knew of the recipe and the folder did not.

The sections are what the code of a stage really reads; a test compares the table with the code
(tests/tasks/test_dependencies.py). Section `run` says how long and where to work, not on what: no
stage depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = "data"
"""The folder of all shelves: each stage leaves its files in `data/STAGE`."""
RECIPE = "${recipe.path}"
"""Filled from params.yaml, as DVC does it."""
PACKAGES = "constraints.txt"
_CHAMPION = f"{DATA}/champion"
_AGENT = (RECIPE, f"{DATA}/policy", _CHAMPION)


@dataclass(frozen=True, slots=True)
class Needs:
    sections: tuple[str, ...]
    files: tuple[str, ...]
    """Files and folders, relative to the top of the tree. PACKAGES is everybody's, and not among
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
            *leaves("examples", "keys.json", "test.jsonl"),
        ),
    ),
    "gate": Needs(
        ("gate",),
        (
            *(path for stage in ("drift", "baseline", "prompt", "train") for path in leaves(stage, "report.json")),
            *leaves("challenger", "report.json", "timing.json"),
        ),
    ),
}


def of(stage: str, params: Any) -> tuple[list[Any], list[Path]]:
    """Look up the sections and the files that a stage depends on, as dvc.yaml has them."""
    found = NEEDS[stage]
    paths = [params.recipe.path if name == RECIPE else name for name in found.files]
    return [getattr(params, name) for name in found.sections], [Path(path) for path in paths]
