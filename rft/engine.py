"""Record which engine a stage is to run with, as hashes, and check that it is this one.

A run is reproducible only with the code that made it, and the engine may be installed or a clone.
So a run has files that describe it, and the stage depends on these like on any other file:

    data/engine/STAGE.json   the modules that the stage can load, each with its SHA-256. What its
                             recipe imports from elsewhere (recipe.sources) is named `recipe:PATH`
    data/engine/PINS.json    the installed versions of the packages that decide numbers

The flow writes them when a run begins (tasks/runs/engine.py). `rft stage engine` writes them for
`dvc repro` by hand. A change of a module repeats the stages that can load it, and no other: a
comment in the trainer does not repeat the warm start. Before a stage works, it hashes what Python
really imported (`check`). The version of agent-rft is in neither file; otherwise each upgrade would
repeat all stages.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

from rft import commands, files, needs, sources, stopping
from rft.errors import UserError
from rft.process import ROOT

FOLDER = "RFT_ENGINE"
"""The environment variable that names the folder of a run's engine (agent_rft.py)."""
THEIRS, PYTHON = "recipe:", "recipe.python"
"""The prefix of a path of `recipe.sources`; the key of the packages of `recipe.python`, which have
one hash."""
DECIDING = (
    "accelerate", "datasketch", "great-expectations", "Jinja2", "jsonschema-rs", "msgspec", "nltk", "numpy", "pandas",
    "peft", "pyarrow", "pyspark", "rapidfuzz", "rouge-score", "safetensors", "scipy", "tokenizers", "torch",
    "transformers", "triton",
)  # fmt: skip
"""Distributions whose version can change what a stage computes. Those that only carry bytes, check
types or start processes are not among them; data/environment.json names all."""


def pins() -> dict[str, str]:
    """Return the installed version of each deciding package that is installed."""
    found: dict[str, str] = {}
    for name in DECIDING:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an extra, or a package of another platform
    return found


def check(stage: str) -> None:
    """Raise UserError unless the stage is to run with this engine and these packages."""
    own, packages = (Path(name) for name in needs.engine(stage))
    for path in (own, packages):
        if not path.is_file():
            raise UserError(
                f"{path}: missing. It says with which engine stage {stage} is to run. "
                f"A run writes it; for `dvc repro` by hand write it with: {commands.command('stage engine')}"
            )
    wanted = os.environ.get(FOLDER)
    if wanted and not Path(wanted).resolve().samefile(ROOT):
        raise UserError(f"stage {stage} is to run with the engine in {wanted}, but Python imported that in {ROOT}")
    changed = changed_modules(_read(own), ROOT, sources.top(Path.cwd()))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(f"{own}: the engine in {ROOT} is another one: {', '.join(changed[:3])}{more}. {_remedy()}")
    was, now = _read(packages), pins()
    if was != now:
        names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        told = ", ".join(f"{name} {was.get(name, 'missing')} -> {now.get(name, 'missing')}" for name in names[:3])
        raise UserError(f"{packages}: other packages are installed now: {told}. {_remedy()}")


def changed_modules(hashes: dict[str, str], root: Path, above: Path) -> list[str]:
    """Return the names of the files whose bytes have changed, in the engine at `root` and in the
    repository above."""

    def place(name: str) -> Path:
        return above / name.removeprefix(THEIRS) if name.startswith(THEIRS) else root / name

    return [name for name, sha256 in hashes.items() if name != PYTHON and _sha256(place(name)) != sha256]


def _remedy() -> str:
    if os.environ.get(stopping.RUN):
        again = f"Start it again, and it goes on with what is there: {commands.command('run')}"
        return f"It changed during the run. {again}"
    return f"Run the stage with what is there: {commands.command('stage engine')}, then `dvc repro` again"


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}). Write it again: {commands.command('stage engine')}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected names with hashes. Write it again: {commands.command('stage engine')}")
    return found


def _sha256(path: Path) -> str | None:
    return files.sha256(path) if path.is_file() else None
