"""Exact resume: a folder with everything that a run needs to go on, whole or not there at all.

    checkpoints/000040/
        manifest.json    step, hash of the configuration, curriculum, stop counters, best
                         validation, RNG, and the hash of state.pt
        state.pt         weights, optimizer, critic
    best/000020/
        weights.pt       the weights that were best on validation, without the optimizer: no
                         training continues from them

The best weights have a folder per step. After a kill another step may turn out best, because
sampling on a GPU is not repeatable, and the folder that a checkpoint names must still be there. A
folder that no checkpoint names is removed after the next checkpoint.

A folder is written under another name, synced to the disk, and published by one rename. So a kill
leaves the old checkpoints, or the old ones and the new. The newest `keep_checkpoints` stay, and the
one that a training goes back to if it collapses. All of this is under `.rft/`, because DVC empties
a stage's folder before the stage runs. It is removed when the stage's files are complete.

A manifest of another configuration, or a state whose bytes have changed, is an error that names the
folder. A run that was cut off never continues from older weights than its newest checkpoint.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rft import files
from rft.errors import UserError


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    configuration: str
    """Hash of the run's settings and inputs."""
    curriculum: dict[str, Any]
    watch: dict[str, Any]
    best: dict[str, Any] | None
    """Step and reward of the best validation so far, whose weights are in `best/STEP`."""
    rng: list[int]
    """State of torch's generator, the only one that is not a function of seed and step."""
    stopped: str = ""
    """Why the run ended before its last step. Such a run does not go on."""
    collapsed: str = ""
    """Why its weights are useless."""
    guard: dict[str, Any] = field(default_factory=dict)
    """The state of the guard against a collapse."""
    sha256: str = ""
    """Hash of state.pt."""


def write(folder: Path, manifest: Manifest, state: dict[str, Any], keep: int, spared: Collection[int] = ()) -> None:
    """Write a checkpoint. `folder` holds all checkpoints of a run. The newest `keep` stay, and the
    steps that are `spared`."""
    part = _new_part(folder)
    torch.save(state, part / "state.pt")
    whole = asdict(manifest) | {"sha256": files.sha256(part / "state.pt")}
    (part / "manifest.json").write_text(json.dumps(whole) + "\n")
    files.publish(part, folder / f"{manifest.step:06d}")
    prune(folder, keep, spared)


def prune(folder: Path, keep: int, spared: Collection[int] = ()) -> None:
    """Remove every checkpoint that is neither among the newest `keep` nor `spared`."""
    for old in _all(folder)[:-keep]:
        if int(old.name) not in spared:
            shutil.rmtree(old)


def steps(folder: Path) -> list[int]:
    """List the steps of the checkpoints, in order."""
    return [int(path.name) for path in _all(folder)]


def newest(folder: Path, configuration: str) -> tuple[Manifest, dict[str, Any]] | None:
    """Read the newest checkpoint, if any. Raises UserError like `read`."""
    found = _all(folder)
    return read(found[-1], configuration) if found else None


def read(last: Path, configuration: str) -> tuple[Manifest, dict[str, Any]]:
    """Read a checkpoint. Raises UserError if it is damaged, or of another configuration."""
    folder = last.parent
    remedy = f"Delete {last} to go on from the checkpoint before it, or {folder.parent} to start over."
    try:
        manifest = Manifest(**json.loads((last / "manifest.json").read_text()))
        damaged = files.sha256(last / "state.pt") != manifest.sha256
    except (OSError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{last}: this checkpoint cannot be read ({why}). {remedy}") from error
    if damaged:
        raise UserError(f"{last / 'state.pt'}: was cut off or changed after it was written. {remedy}")
    if manifest.configuration != configuration:
        other = f"({manifest.configuration}, not {configuration})"
        raise UserError(f"{last}: this checkpoint belongs to a run with other settings or inputs {other}. {remedy}")
    return manifest, torch.load(last / "state.pt", weights_only=True)


def write_best(folder: Path, step: int, state: dict[str, Any]) -> None:
    part = _new_part(folder)
    torch.save(state, part / "weights.pt")
    files.publish(part, folder / f"{step:06d}")


def _new_part(folder: Path) -> Path:
    part = folder / "new.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def read_best(folder: Path, step: int) -> dict[str, Any]:
    """Read the best weights. Raises UserError when they are missing or cut off."""
    path = folder / f"{step:06d}" / "weights.pt"
    try:
        return torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = f"Put them back, or delete {folder.parent} to start over."
        raise UserError(f"{path}: the best weights of this run cannot be read ({why}). {remedy}") from error


def prune_bests(folder: Path, checkpoints: Path) -> None:
    """Remove all best weights that no checkpoint names."""
    named = {(json.loads((path / "manifest.json").read_text())["best"] or {}).get("step") for path in _all(checkpoints)}
    for path in _all(folder):
        if int(path.name) not in named:
            shutil.rmtree(path)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit())
