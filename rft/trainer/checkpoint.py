"""Exact resume: everything that a training run will still read, in one folder that is there whole
or not at all.

    checkpoints/000040/
        manifest.json    step, what the run was configured with, cursor and pass rates, log offset,
                         best validation, RNG; and the hash of
        state.pt         weights, optimizer, critic
    best/000020/         the weights that were best on validation: those of each step that a
                         checkpoint names, and perhaps of a later one
        weights.pt

The best weights have a folder a step, because a run that goes on from a checkpoint may find another
step best than before the kill (sampling on a GPU is not repeatable): what the checkpoint names must
still be there. A folder that no checkpoint names goes after the next checkpoint.

A folder is written under another name, its bytes and its directory are brought to the disk, then
one rename publishes it. A kill leaves the old checkpoints, or the old ones and the new. It lies
under `.rft/`, because DVC empties a stage's shelf before the stage runs, and is gone when the
stage's shelf is whole. The last step of a run has a checkpoint too. The newest `keep_checkpoints`
stay.

Bad input: a manifest of another configuration, or a state whose bytes are not those that were
written, is an error that names the folder. Nothing falls back by itself to older weights: what a
run continues from is never a surprise.
"""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rft import files
from rft.errors import UserError


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    configuration: str
    """Hash of what the run depends on: its settings and inputs."""
    curriculum: dict[str, Any]
    watch: dict[str, Any]
    best: dict[str, Any] | None
    """Step and reward of the best validation so far, whose weights lie in `best/STEP`."""
    rng: list[int]
    """The state of torch's generator, the only one that is not a function of seed and step."""
    stopped: str = ""
    """Why the run ended before its last step: it does not go on."""
    sha256: str = ""
    """Of state.pt."""


def write(folder: Path, manifest: Manifest, state: dict[str, Any], keep: int) -> None:
    """`folder` holds all checkpoints of a run; the newest `keep` stay."""
    part = folder / "new.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    torch.save(state, part / "state.pt")
    whole = asdict(manifest) | {"sha256": files.sha256(part / "state.pt")}
    (part / "manifest.json").write_text(json.dumps(whole) + "\n")
    files.publish(part, folder / f"{manifest.step:06d}")
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old)


def newest(folder: Path, configuration: str) -> tuple[Manifest, dict[str, Any]] | None:
    """None when there is none. Raises UserError for one of another configuration, or one that is
    damaged."""
    found = _all(folder)
    if not found:
        return None
    last = found[-1]
    remedy = f"Delete {last} to go on from the checkpoint before it, or {folder.parent} to train anew."
    try:
        manifest = Manifest(**json.loads((last / "manifest.json").read_text()))
        damaged = files.sha256(last / "state.pt") != manifest.sha256
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{last}: this checkpoint cannot be read ({type(error).__name__}: {error}). {remedy}"
        ) from error
    if damaged:
        raise UserError(
            f"{last / 'state.pt'}: these are not the bytes that were written: cut in half or changed. {remedy}"
        )
    if manifest.configuration != configuration:
        other = f"({manifest.configuration}, not {configuration})"
        raise UserError(f"{last}: this checkpoint belongs to a run with other settings or inputs {other}. {remedy}")
    return manifest, torch.load(last / "state.pt", weights_only=True)


def write_best(folder: Path, step: int, state: dict[str, Any]) -> None:
    part = folder / "new.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    torch.save(state, part / "weights.pt")
    files.publish(part, folder / f"{step:06d}")


def read_best(folder: Path, step: int) -> dict[str, Any]:
    """Raises UserError when the weights are missing or cut off."""
    path = folder / f"{step:06d}" / "weights.pt"
    try:
        return torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = f"Put them back, or delete {folder.parent} to train anew."
        raise UserError(f"{path}: the best weights of this run cannot be read ({why}). {remedy}") from error


def forget_bests(folder: Path, checkpoints: Path) -> None:
    """All but those that one of the checkpoints names."""
    named = {(json.loads((path / "manifest.json").read_text())["best"] or {}).get("step") for path in _all(checkpoints)}
    for path in _all(folder):
        if int(path.name) not in named:
            shutil.rmtree(path)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit())
