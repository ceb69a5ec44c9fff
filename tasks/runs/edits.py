"""The user's uncommitted work: it is copied into a run's worktree, and makes the run dirty.

Changes of tracked files are copied as a binary patch, and files that are neither tracked nor
ignored as they are. Some files do not count as edits:
- params.yaml (a run writes its own, and records it) and dvc.lock (a result);
- data/champion, data/engine, data/model, data/registration and data/environment.json (written by
  the flow);
- infra/ledger.yaml (written when the first person approves, and read only in the clone).

A dirty run records the hash of its edits. It cannot be promoted without an override, because no
branch holds its code. What is copied stays in a Git revision for ever. So a run is refused when a
file holds the value of a declared secret (an `env:NAME` in params.yaml) or is too large for Git.
The message names the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rft import stage_files
from rft.errors import UserError
from rft.secrets import variables
from tasks.runs import engine, workspace
from tasks.runs.clone import Clone
from tasks.runs.git import git, git_bytes

_NOT_EDITS = (
    "params.yaml",
    "dvc.lock",
    str(stage_files.ENVIRONMENT),
    str(stage_files.folder("champion")),
    str(stage_files.folder("engine")),
    str(stage_files.folder("model")),
    str(stage_files.folder("registration")),
)
"""Paths in the agent's folder."""
_OF_LEDGER = "infra/ledger.yaml"
_MAX_BYTES = 50 * 2**20


@dataclass(frozen=True)
class Edits:
    patch: bytes
    changed: tuple[str, ...]
    untracked: tuple[str, ...]
    sha256: str | None
    """None: the tree is clean."""

    @property
    def dirty(self) -> bool:
        return self.sha256 is not None


def find(clone: Clone, inputs: Iterable[str] = (), sources: Iterable[str] = ()) -> Edits:
    """Find all edits except `inputs` (paths from the top), which reach a run in another way.
    `sources` is recipe.sources. Raises UserError for what cannot be copied: a nested repository, or
    a file that is too large."""
    paths = (*scope(clone, sources), *_excluded(_OF_LEDGER, *map(clone.from_the_top, _NOT_EDITS), *inputs))
    diff = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    patch = git_bytes(clone.root, *diff, "--binary", "--full-index", "--", *paths)
    changed = _names(git_bytes(clone.root, *diff, "--name-only", "-z", "--", *paths))
    untracked = _names(git_bytes(clone.root, "ls-files", "--others", "--exclude-standard", "-z", "--", *paths))
    digest = hashlib.sha256(patch)
    for name in untracked:
        path = clone.root / name
        if name.endswith("/"):
            what = f"{name} is a Git repository inside this one and cannot travel into a run"
            raise UserError(f"{what}. Move it out, or list it in .gitignore.")
        if not path.is_symlink() and path.stat().st_size > _MAX_BYTES:
            what = (
                f"{name} ({path.stat().st_size // 2**20} MiB) is untracked and would be recorded in Git with this run"
            )
            raise UserError(f"{what}. List it in .gitignore, or: dvc add {name}")
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape") + hashlib.sha256(_content(path)).digest())
    return Edits(patch, changed, untracked, digest.hexdigest() if changed or untracked else None)


def refuse_filtered(clone: Clone, sources: Iterable[str] = ()) -> None:
    """Raise UserError for a file of the agent that Git keeps through a filter, such as LFS. No
    filter runs in a worktree, so a stage would read a pointer in place of the file."""
    listed = ("ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *scope(clone, sources))
    told = git_bytes(clone.root, "check-attr", "-z", "--stdin", "filter", given=git_bytes(clone.root, *listed))
    words = told.decode("utf-8", "surrogateescape").split("\0")
    for name, value in zip(words[::3], words[2::3], strict=False):
        if value not in ("unspecified", "unset", "set"):
            what = f"{name}: Git keeps it by a filter ({value}), and none runs in the worktree of a run"
            raise UserError(f"{what}. Take it out of .gitattributes, or let DVC keep it: dvc add {name}")


def between(clone: Clone, before: str, after: str, folder: str = "") -> Edits:
    """Return the edits of a recorded run: the difference between the commit `before`, at which it
    began, and its own commit `after`. A run's inputs are in neither. Files that a stage left in the
    worktree and that Git does not ignore count too: the next stage could read them, and no branch
    has them.
    """
    diff = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
    paths = (".", *_excluded(_OF_LEDGER, *((PurePosixPath(folder) / name).as_posix() for name in _NOT_EDITS)))
    patch = git_bytes(clone.root, *diff, "-p", "--binary", "--full-index", before, after, "--", *paths)
    changed = _names(git_bytes(clone.root, *diff, "--name-only", "-z", before, after, "--", *paths))
    return Edits(patch, changed, (), hashlib.sha256(patch).hexdigest() if changed else None)


def scope(clone: Clone, sources: Iterable[str] = ()) -> tuple[str, ...]:
    """List the paths on which a run of the agent may depend, as Git takes them. They are its folder
    and what its recipe imports, and in a clone of agent-rft also the engine. The rest of the
    repository belongs to others."""
    others = [folder for folder in workspace.folders(clone.root) if folder != clone.folder]
    if clone.folder == "":
        return (".", *_excluded(workspace.FILE, *others))
    inner = [folder for folder in others if folder.startswith(f"{clone.folder}/")]
    own = engine.PARTS if (clone.root / engine.START).exists() else ()
    return (*(f":(literal){path}" for path in (clone.folder, *own, *sources)), *_excluded(*inner))


def _excluded(*paths: str) -> Iterator[str]:
    return (f":(exclude,literal){path}" for path in paths)


def carry(edits: Edits, clone: Clone, tree: Path) -> None:
    """Apply the edits in a fresh worktree of the same commit."""
    if edits.patch:
        git(tree, "apply", "--whitespace=nowarn", "--binary", "-", given=edits.patch)
    for name in edits.untracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(clone.root / name, tree / name, follow_symlinks=False)


def declared_secrets(params: Any) -> dict[str, str]:
    """Return NAME -> value, for every `env:NAME` in the settings whose variable is set."""
    names = sorted({*variables(params)})
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def refuse_secrets(tree: Path, names: Iterable[str], secrets: dict[str, str]) -> None:
    """Raise UserError for a file that holds a secret's value. The message names the file and the
    variable, never the value."""
    for name in names if secrets else ():
        content = _content(tree / name)
        for variable, value in secrets.items():
            if value.encode() in content:
                raise UserError(
                    f"{name} holds the value of the secret {variable}, and a run would record it in Git for ever. "
                    f"Take it out of the file (write env:{variable} where it is read), or list the file in .gitignore."
                )


def recorded_files(clone: Clone, worktree: Path, sources: Iterable[str] = ()) -> tuple[str, ...]:
    """List the agent's files that a snapshot of this worktree would hold."""
    listed = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return _names(git_bytes(worktree, *listed, "--", *scope(clone, sources)))


def _names(listing: bytes) -> tuple[str, ...]:
    return tuple(sorted(name for name in listing.decode("utf-8", "surrogateescape").split("\0") if name))


def _content(path: Path) -> bytes:
    if path.is_symlink():
        return os.readlink(path).encode("utf-8", "surrogateescape")
    return path.read_bytes() if path.is_file() else b""
