"""Stages outside of any run: nothing is recorded.

    run_stage         One stage: this folder's data/ goes in, the stage's files come out.
    measure           The baseline of given rows: no traffic, no ledger, no files of other stages.

The stage runs as in a run: DVC runs it, in a worktree whose params.yaml has every value written
out. So any settings work, not only those of the clone's params.yaml, and a section that the file
leaves out is not an error. What a run or an earlier try made from the same inputs comes from the
cache. The worktree has the user's uncommitted edits, and is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rft import commands, config, needs, reports, stage_files
from rft.errors import UserError
from rft.models import source
from rft.types import Example
from tasks.runs import edits, engine, records, repro, windows
from tasks.runs import run as runs
from tasks.runs.champion import Served
from tasks.runs.clone import Clone

_BROUGHT = (str(stage_files.folder("champion")), str(stage_files.folder("model")), str(stage_files.SNAPSHOT))
"""What the flow writes, not a stage."""


def run_stage(clone: Clone, params: config.Params, name: str) -> repro.Outcome:
    """Run one stage. The clone's files change only if it succeeds. Raises UserError for a missing
    file, and StageFailed with the stage's own message."""
    runs.refuse_missing_recipe(clone, params)
    for path in _stage_files(name):
        if not path.startswith(_BROUGHT) and not (clone.home / path).exists():
            before = commands.stage(Path(path).parts[1])
            raise UserError(f"stage {name} reads {path}, which is missing. Run the stage that writes it: {before}")
    with _worktree(clone, params, name) as tree:
        for path in _stage_files(name):
            if (
                path not in (str(stage_files.SNAPSHOT), str(stage_files.folder("model")))
                and (clone.home / path).exists()
            ):
                _copy(clone.home / path, tree / path)
        engine.write(tree, params.recipe, clone.state)
        outcome = repro.repro(tree, name, clone.state, log=clone.log("by-hand", name))
        _keep(clone, tree, name)
    return outcome


def measure(
    clone: Clone,
    params: config.Params,
    rows: Sequence[Example],
    served: Served,
    recipe: Mapping[str, str] | None = None,
) -> reports.BaselineReport:
    """Run stages `policy` and `baseline` with these rows as validation examples, and leave the
    files of `baseline`. `recipe` holds the files of a recipe that exists only for this measurement.

    A later run with the same settings and rows takes both stages from the cache. Raises UserError
    and StageFailed like `run_stage`.
    """
    if recipe is None:
        runs.refuse_missing_recipe(clone, params)
    with _worktree(clone, params, "baseline") as tree:
        for name, text in (recipe or {}).items():
            place = tree / params.recipe.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        reports.write_lines((row.line for row in rows), tree / stage_files.examples_file("validation"))
        reports.write_json(params.examples.keys.model_dump(), tree / stage_files.KEYS)
        served.place(tree)
        engine.write(tree, params.recipe, clone.state)
        for name in ("policy", "baseline"):
            repro.repro(tree, name, clone.state, log=clone.log("by-hand", name))
        _keep(clone, tree, "baseline")
        return reports.read(reports.BaselineReport, tree / stage_files.path(reports.BaselineReport))


def _keep(clone: Clone, tree: Path, name: str) -> None:
    """Replace the stage's folder in the clone by the new one."""
    fresh = folder(clone) / "shelf"
    _copy(tree / stage_files.folder(name), fresh)
    stage_folder = clone.home / stage_files.folder(name)
    shutil.rmtree(stage_folder, ignore_errors=True)
    stage_folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(fresh, stage_folder)


def lock(clone: Clone) -> Path:
    """Return the lock that a stage by hand holds. `rft runs gc` holds it so that none starts."""
    return clone.state / "by-hand.lock"


@contextlib.contextmanager
def _worktree(clone: Clone, params: config.Params, name: str) -> Iterator[Path]:
    """Make the worktree, one at a time: two would write the same files. First clears what a killed
    one left."""
    place = folder(clone)
    with records.held(lock(clone)) as free:
        if not free:
            raise UserError(
                "another stage is being run by hand in this clone, or `rft runs gc` is at work in it. Wait for it."
            )
        worktree = place / "tree"
        clear(clone)
        place.mkdir(parents=True)
        try:
            inputs = runs.given_model(clone, params)
            if name == "traffic":
                params, inputs = runs.with_inputs(clone, params)
            out = map(clone.from_the_top, [*inputs, *windows.inside(clone, params.traffic.file)])
            tree = runs.lay_out(
                clone, worktree, clone.git("rev-parse", "HEAD"), edits.find(clone, out, params.recipe.sources), inputs
            )
            source.write(source.resolve(params.policy, clone.home, clone.state), tree)
            runs.write_params(tree / "params.yaml", params.model_dump(mode="json", by_alias=True))
            yield tree
        finally:
            clear(clone)


def folder(clone: Clone) -> Path:
    return clone.state / "by-hand"


def clear(clone: Clone) -> None:
    """Remove what a stage by hand left. The caller holds the lock."""
    runs.remove_tree(clone, folder(clone) / "tree")
    shutil.rmtree(folder(clone), ignore_errors=True)


def _stage_files(name: str) -> list[str]:
    return [path for path in needs.NEEDS[name].files if path.startswith(f"{needs.DATA}/")]


def _copy(source: Path, target: Path) -> None:
    """Copy as plain files: a link into DVC's cache must never be written through."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
