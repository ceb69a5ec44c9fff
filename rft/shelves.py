"""What each stage depends on: the sections of params.yaml and the files that it reads. One table for two readers.

`tasks/dependencies.py` writes it into dvc.yaml, so that DVC runs a stage again when any of it changed. `rft/progress.py` hashes it into the name of
the stage's work folder, so that unfinished work is taken up under exactly the conditions under which it was left, and under no others. With a list
for each they drifted apart: a baseline that a kill cut off was finished under another grader, because DVC knew of the recipe and the folder did not.

The sections are what the code of a stage really reads; a test compares the table with the code (tests/test_dependencies.py). Section `run` says how
long and where to work, not on what: no stage depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

RECIPE = "${recipe.path}"
"""Filled from params.yaml, as DVC does it."""
CHAMPION = "data/champion"
PACKAGES = "constraints.txt"
_AGENT = (RECIPE, "data/policy", CHAMPION)


@dataclass(frozen=True, slots=True)
class Needs:
    sections: tuple[str, ...]
    files: tuple[str, ...]
    """Files and folders, relative to the top of the tree. PACKAGES is everybody's, and not among them."""


def of(shelf: str, *names: str) -> tuple[str, ...]:
    return tuple(f"data/{shelf}/{name}" for name in names)


NEEDS = {
    "traffic": Needs(("recipe", "traffic", "examples"), ("${traffic.file}", RECIPE, CHAMPION)),
    "drift": Needs(
        ("recipe", "tools", "drift", "examples"),
        (*of("traffic", "conversations.jsonl", "current_profile.json", "reference_profile.json", "report.json"), RECIPE),
    ),
    "examples": Needs(("recipe", "drift", "examples"), (RECIPE, *of("traffic", "conversations.jsonl", "report.json"))),
    "policy": Needs(("recipe", "policy"), (RECIPE,)),
    "baseline": Needs(
        ("recipe", "tools", "rollout", "policy", "baseline"),
        (*_AGENT, *of("examples", "keys.json", "validation.jsonl")),
    ),
    "prompt": Needs(
        ("recipe", "tools", "rollout", "policy", "prompt"),
        (*_AGENT, *of("baseline", "report.json"), *of("examples", "keys.json", "validation.jsonl")),
    ),
    "train": Needs(
        ("recipe", "tools", "rollout", "examples", "policy", "train"),
        (*_AGENT, *of("baseline", "report.json"), *of("prompt", "prompt.json"), *of("examples", "keys.json", "train.jsonl", "validation.jsonl")),
    ),
    "challenger": Needs(
        ("recipe", "tools", "rollout", "examples", "policy", "train", "challenger"),
        (*_AGENT, *of("prompt", "prompt.json"), *of("train", "report.json", "weights"), *of("examples", "keys.json", "test.jsonl")),
    ),
    "gate": Needs(
        ("gate",),
        (
            *(path for stage in ("drift", "baseline", "prompt", "train") for path in of(stage, "report.json")),
            *of("challenger", "report.json", "timing.json"),
        ),
    ),
}
