"""Record the engine that a run works with: data/engine, one file of hashes per stage.

rft/engine.py says what the hashes mean, and lets each stage check them. The engine of a run is the
installed package. In a clone of agent-rft that somebody develops, the engine is the clone's own
code: each worktree has the code of its commit, with the run's uncommitted edits.
"""

from __future__ import annotations

import json
from pathlib import Path

from rft import config, engine, files, needs, sources
from rft.process import ROOT
from rft.tools import interpreter
from tasks import dependencies

START = "agent_rft.py"
"""A file that only a clone of agent-rft has at its top. A user's own package may be named `rft`."""
_KEPT = 50
"""The number of engines whose modules are kept. Each edit in a development clone makes a new
one."""
PARTS = (START, "rft", "tasks", "flows")
"""The code that a run in such a clone works with, besides its agent."""


def folder(place: Path) -> Path:
    """Return the folder whose `rft` the stages in this agent's folder run."""
    top = next((tree for tree in (place, *place.parents) if (tree / ".git").exists()), place)
    return top if (top / START).exists() else ROOT


def write(place: Path, recipe: config.Recipe, state: Path) -> list[str]:
    """Write the files below an agent's folder, in a worktree or not. Return those that changed."""
    return [name for name, content in hashes(place, recipe, state).items() if _write(content, place / name)]


def hashes(place: Path, recipe: config.Recipe, state: Path) -> dict[str, dict[str, str]]:
    """Return the contents of the files: name -> module -> hash."""
    theirs = _theirs(place, recipe)
    found: dict[str, dict[str, str]] = {}
    for stage, modules in _hashes(folder(place), place / recipe.path, state).items():
        found[needs.engine(stage)[0]] = modules | (theirs if needs.RECIPE in needs.NEEDS[stage].files else {})
    found[needs.PINS] = engine.pins()
    return found


def _theirs(place: Path, recipe: config.Recipe) -> dict[str, str]:
    """Return hashes of what the recipe imports from elsewhere: one per file of its sources, and one
    for all packages of its own interpreter."""
    listed = sources.listed(recipe.sources, sources.top(place))
    found = {f"{engine.THEIRS}{path}": files.sha256(file) for path, file in listed.items()}
    if recipe.python is not None:
        found[engine.PYTHON] = files.digest(interpreter.facts(recipe.python))
    return found


def _hashes(root: Path, recipe: Path, state: Path) -> dict[str, dict[str, str]]:
    """Return stage -> module -> SHA-256. Reading the imports of 300 files takes a second, and
    hashing the files a hundredth of that. So the result is kept under the hash."""
    given = {path.relative_to(root).as_posix(): files.sha256(path) for path in sorted((root / "rft").rglob("*.py"))}

    def make(part: Path) -> None:
        modules = {stage: dependencies.modules(root, stage, recipe) for stage in needs.NEEDS}
        found = {stage: {path: given[path] for path in paths} for stage, paths in modules.items()}
        part.write_text(json.dumps(found), encoding="utf-8")

    known = files.kept(state / "engine" / f"{files.digest([given, _recipe(recipe)])[:16]}.json", make)
    for old in sorted(known.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return json.loads(known.read_text(encoding="utf-8"))


def _recipe(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): files.sha256(path) for path in sorted(folder.rglob("*.py"))}


def _write(found: dict[str, str], path: Path) -> bool:
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(text, path)
    return True
