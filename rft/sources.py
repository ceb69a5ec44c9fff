"""Let a recipe import files of its repository that lie outside its folder (recipe.sources).

    sources: [src/refunds]      `import refunds`, a package, or a folder of modules
    sources: [lib/money.py]     `import money`

Each name is found in the run's worktree, as it was committed or edited when the run began. It is
not taken from an interpreter that has the same package installed. The finder knows these names
alone, so no other file beside them hides a package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from rft.errors import UserError

MARK = ".rft-top"
"""Marks the top of a tree that is not a Git repository: the files of a revision, written out for
use."""
SKIPPED = frozenset({"__pycache__"})


def top(place: Path) -> Path:
    """Return the top of the repository, or of the run's worktree, around a folder."""
    here = place.resolve()
    above = (here, *here.parents)
    return next((folder for folder in above if (folder / MARK).exists() or (folder / ".git").exists()), here)


def listed(paths: Iterable[str], above: Path) -> dict[str, Path]:
    """Return every file of the sources, by its path from `above`. Raises UserError for one that is
    not there, or that lies elsewhere."""
    found: dict[str, Path] = {}
    for source in paths:
        place = (above / source).resolve()
        if not place.is_relative_to(above) or place == above:
            raise UserError(f"recipe.sources: {source!r} is not a file or folder below the top, {above}. Name one.")
        if not place.exists():
            raise UserError(f"recipe.sources: {source!r}: there is none in {above}. Name a path that exists there.")
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        found |= {
            path.relative_to(above).as_posix(): path
            for path in inside
            if path.is_file() and SKIPPED.isdisjoint(path.parts) and path.suffix != ".pyc"
        }
    return found


class Finder(MetaPathFinder):
    def __init__(self, names: dict[str, Path]):
        self.names = names
        """Name of a module or package -> the folder that it is in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self.names.get(fullname)
        return PathFinder.find_spec(fullname, [str(folder)], target) if folder else None


def place(paths: Iterable[str], above: Path) -> None:
    """Make the modules of these sources importable, and those of earlier calls no longer."""
    listed(paths, above)
    names = dict(name for source in paths for name in _names((above / source).resolve()))
    for finder in [each for each in sys.meta_path if isinstance(each, Finder)]:
        if finder.names == names:
            return
        sys.meta_path.remove(finder)
        for module in [name for name in sys.modules if name.partition(".")[0] in finder.names.keys() | names.keys()]:
            del sys.modules[module]
    for name in names:
        if name in sys.stdlib_module_names or name in sys.modules:
            what = f"recipe.sources: a module {name!r} would hide that of Python or of agent-rft"
            raise UserError(f"{what}. Give it another name, or name the modules beside it one by one.")
    if names:
        sys.meta_path.insert(0, Finder(names))


def _names(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a source offers: itself, and the modules in a folder that is not a package."""
    if source.suffix == ".py" or (source / "__init__.py").exists():
        yield source.stem, source.parent
        return
    yield source.name, source.parent
    for inside in sorted(source.iterdir()) if source.is_dir() else ():
        if inside.suffix == ".py" or (inside / "__init__.py").exists():
            yield inside.stem, source
