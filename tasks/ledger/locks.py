"""Locks that a killed Git left on the ledger's refs.

Git locks a ref by a file beside it. A killed Git leaves this file. From then on every command that
writes the ref fails, until somebody removes the file by hand. Only one process at a time writes
these refs (book.lock), and Git holds such a lock for some milliseconds. So a lock that lasts for
seconds belongs to nobody. In that time, a Git that outlived its driver has ended too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git

T = TypeVar("T")
PATIENCE_S = 5.0


def past(clone: Clone, command: Callable[[], T], *refs: str) -> T:
    """Run a Git command. If locks on these refs are in the way, and nobody holds them, remove the
    locks and run it once more."""
    try:
        return command()
    except GitError as error:
        found = _locks(clone, refs)
        if "File exists" not in str(error) or not found:
            raise
    time.sleep(PATIENCE_S)
    for path, since in found.items():
        if _since(path) == since:
            path.unlink(missing_ok=True)
    return command()


def _locks(clone: Clone, refs: tuple[str, ...]) -> dict[Path, float]:
    paths = (clone.root / git(clone.root, "rev-parse", "--git-path", f"{ref}.lock") for ref in refs)
    return {path: since for path in paths if (since := _since(path)) is not None}


def _since(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
