"""Unfinished work of a stage, kept outside the shelves, which DVC empties before a stage runs.

`folder` is named by a hash of all that the stage depends on (its settings, its input files, the engine's own source), so work is
taken up again only by the very stage that left it. `say` prints the progress lines that the command line turns into bars:
`[train] 12/80 reward 0.41`. A stage removes its folder when its shelf is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from rft import redact


def state() -> Path:
    """This clone's state folder; a run in its worktree is told by the environment where it lies."""
    return Path(os.environ.get("RFT_STATE", ".rft"))


def folder(stage: str, sections: Iterable[BaseModel], inputs: Iterable[Path]) -> Path:
    digest = hashlib.sha256()
    for section in sections:
        digest.update(section.model_dump_json(by_alias=True).encode() + b"\0")
    for path in [*inputs, Path(__file__).parent]:
        digest.update(tree_sha256(path).encode())
    path = state() / "progress" / f"{stage}-{digest.hexdigest()[:16]}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def tree_sha256(path: Path) -> str:
    """Over relative names and bytes of a file or folder; a missing path has a hash of its own."""
    digest = hashlib.sha256()
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(path)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def publish(part: Path, whole: Path) -> None:
    """Make a finished folder visible under its name, all at once, after its bytes are on the disk."""
    for path in [*part.rglob("*"), part]:
        _sync(path)
    if whole.exists():
        shutil.rmtree(whole)
    os.replace(part, whole)
    _sync(whole.parent)


def _sync(path: Path) -> None:
    """Files and directories alike: a name is on the disk when its directory is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Reporter:
    """Progress lines, at most one a quarter of a second, the last one always."""

    def __init__(self, stage: str, total: int):
        self.stage, self.total, self._last = stage, total, 0.0

    def __call__(self, done: int, message: str) -> None:
        now = time.monotonic()
        if done >= self.total or now - self._last >= 0.25:
            self._last = now
            say(self.stage, f"{done}/{self.total} {message}")


def say(stage: str, message: str) -> None:
    print(redact.text(f"[{stage}] {message}"), flush=True, file=sys.stdout)
