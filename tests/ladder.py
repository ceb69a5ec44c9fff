"""The stages with a policy, run for real on the tiny recipe: it is built, warm-started, measured,
searched a prompt for, trained, compared.

The stages are pure functions from files to files, so this is what `dvc repro` does, without DVC:
one folder, one process.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rft import config, files, reports, stage_files
from rft.models import source
from tests import small_policy, tiny_recipe

ARCHITECTURE = small_policy.ARCHITECTURE.model_copy(update={"hidden": 96, "head_dim": 48})
STAGES = ("examples", "policy", "baseline", "prompt", "train", "challenger")
SECTIONS: dict[str, Any] = {
    "examples": {"train": 64, "validation": 12, "test": 8},
    "rollout": {"max_turns": 3, "max_tokens": 200, "max_turn_tokens": 24, "batch": 16},
    "policy": {
        "seed": 1,
        "architecture": ARCHITECTURE.model_dump(),
        "warm_start": {"demonstrations": 512, "steps": 80, "batch": 16, "lr": 2e-3, "checkpoint_every": 40},
    },
    "baseline": {"examples": 8, "k": 3, "not_worth_above": 1.0, "not_yet_below": 0.0},
    "prompt": {"rounds": 2, "first_examples": 2, "k": 1, "confirm_k": 1},
    "train": {
        "steps": 4,
        "examples_per_step": 4,
        "group_size": 4,
        "checkpoint_every": 2,
        "validate_every": 2,
        "validation_examples": 4,
        "weights": "full",
        "lr": 1e-3,
    },
    "challenger": {"k": 2},
}


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def params(recipe: Path, **changes: dict[str, Any]) -> config.Params:
    return tiny_recipe.params(recipe, **{name: section | changes.get(name, {}) for name, section in SECTIONS.items()})


def run(stage: str, settings: config.Params) -> None:
    """Run a stage, with data/model as the flow writes it."""
    found = source.resolve(settings.policy, Path(), Path(".rft"))
    if not stage_files.path(reports.Model).exists() or stage_files.model() != found.model:
        source.write(found, Path())
    importlib.import_module(f"rft.stages.{stage}").run(settings)


def run_ladder(folder: Path, recipe: Path) -> Path:
    """Run all stages in a folder, and return it."""
    with inside(folder):
        for stage in STAGES:
            run(stage, params(recipe))
    return folder


def stage_hashes(folder: Path, name: str) -> dict[str, str]:
    """Hashes of what a stage wrote, without wall times."""
    return {
        path.name: files.tree_sha256(path)
        for path in sorted((folder / "data" / name).iterdir())
        if path.name != "timing.json"
    }


def again(ladder: Path, folder: Path, recipe: Path, stage: str, **changes: dict[str, Any]) -> Path:
    """A copy of the folder in which the stage is run once more."""
    shutil.copytree(ladder / "data", folder / "data")
    shutil.rmtree(folder / "data" / stage)
    with inside(folder):
        run(stage, params(recipe, **changes))
    return folder
