"""List what each stage depends on: parts of params.yaml, and the files that it reads.

The table has two readers. `tasks/dependencies.py` writes it into dvc.yaml, so that DVC runs a stage
again when any of it changed. `rft/progress.py` hashes it into the name of the stage's work folder,
so that unfinished work continues only under the conditions under which it was left. When each
reader had its own list, the lists drifted apart. A killed baseline was then finished with another
grader, because DVC's list had the recipe and the other did not.

tests/tasks/test_dependencies.py compares the table with what the code of each stage reads. No stage
depends on section `run`, which says how long to work, not what to work on.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

DATA = "data"
"""Each stage leaves its files in `data/STAGE`."""
PINS = f"{DATA}/engine/PINS.json"
RECIPE = "${recipe.path}"
"""Filled in from params.yaml, as DVC does."""
_CHAMPION = f"{DATA}/champion"
_ROWS = ("examples.keys", "examples.seed", "examples.train")
"""How rows are read, and on which of them the exploits are played."""
_SPLITS = (
    "examples.block",
    "examples.keys",
    "examples.seed",
    "examples.test",
    "examples.train",
    "examples.validation",
)
"""Which examples the recipe gives. Not `examples.source`, which the flow sets after drift."""
_COUNTED = ("drift.embedder", "drift.engine", "drift.spark_master", "drift.text_sample")
"""How a profile is counted."""
_AGENT = (RECIPE, f"{DATA}/model", f"{DATA}/policy", _CHAMPION)


@dataclass(frozen=True, slots=True)
class Needs:
    sections: tuple[str, ...]
    """Sections, or single keys such as `examples.seed`. With single keys, a stage that does not
    open the test examples is not repeated where only their number changed."""
    files: tuple[str, ...]
    """Files and folders, relative to the agent's folder. Those of the engine, which every stage
    needs, are not among them."""


def engine(stage: str) -> tuple[str, str]:
    """Name the files that say with which engine and packages a stage is to run (rft/engine.py)."""
    return f"{DATA}/engine/{stage}.json", PINS


def leaves(stage: str, *names: str) -> tuple[str, ...]:
    """Return the paths of files that a stage leaves."""
    return tuple(f"{DATA}/{stage}/{name}" for name in names)


NEEDS = {
    "traffic": Needs(("recipe", "tools", "traffic", *_COUNTED, *_SPLITS), (f"{DATA}/window", RECIPE, _CHAMPION)),
    "drift": Needs(
        ("recipe", "tools", "traffic", "drift", *_ROWS),
        (
            *leaves("traffic", "conversations", "current_profile.json", "reference_profile.json", "references"),
            *leaves("traffic", "report.json"),
            RECIPE,
        ),
    ),
    "examples": Needs(
        (
            *("recipe", "drift.embedder", "drift.min_feedback", "drift.text_sample", "examples"),
            *("policy.model", "policy.seed", "policy.server", "policy.warm_start"),
            *("train.source", "train.supervised", "train.warm_start", "train.when_not_ready"),
        ),
        (RECIPE, *leaves("traffic", "conversations", "report.json")),
    ),
    "policy": Needs(("recipe", "policy"), (RECIPE, f"{DATA}/model")),
    "baseline": Needs(
        ("recipe", "tools", "rollout", "policy", "baseline"),
        (*_AGENT, *leaves("examples", "keys.json", "validation.jsonl")),
    ),
    "prompt": Needs(
        ("recipe", "tools", "rollout", "policy", "prompt"),
        (*_AGENT, *leaves("baseline", "report.json"), *leaves("examples", "keys.json", "validation.jsonl")),
    ),
    "train": Needs(
        ("recipe", "tools", "rollout", *_ROWS, "policy", "train"),
        (
            *_AGENT,
            *leaves("baseline", "report.json"),
            *leaves("prompt", "prompt.json"),
            *leaves("examples", "imitated.json", "keys.json", "train.jsonl", "validation.jsonl"),
        ),
    ),
    "challenger": Needs(
        ("recipe", "tools", "rollout", *_ROWS, "policy", "train", "challenger"),
        (
            *_AGENT,
            *leaves("prompt", "prompt.json"),
            *leaves("train", "report.json", "weights"),
            *leaves("examples", "keys.json", "test.jsonl", "validation.jsonl"),
            *leaves("registration", "opening.json"),
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


def from_params(stage: str, params: Any) -> tuple[list[Any], list[Path]]:
    """Return the values of the sections and the files that a stage depends on, as in dvc.yaml."""
    found = NEEDS[stage]
    paths = [params.recipe.path if name == RECIPE else name for name in (*found.files, *engine(stage))]
    sections = [attrgetter(name)(params) for name in found.sections]
    # The agent's name is part of it, so that two agents that are equal in all else, such as new
    # ones, do not wait for each other's work. It is not in NEEDS: DVC would let each stage depend
    # on a setting `agent`.
    named = [agent] if (agent := getattr(params, "agent", None)) else []
    return [*sections, *named], [Path(path) for path in paths]
