"""Hashes the files of a base model once, however often they are read.

A model of 8 GB takes a minute to hash, and a run has five stages that load it. So the hashes of a
folder are kept in `.rft/hashes`, each with the size and the times of its file. A change of a file
changes one of them: the time of the last change of its metadata (ctime) cannot be set by hand.
Files are read as streams, so even the largest needs little memory.

    model_files(folder, ...)    every file that belongs to a model, hashed
    names(folder)               which files those are
    sha256(place)               one hash of it all, computed without the kept hashes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rft import files
from rft.reports.model import ModelFile, sha256_of

_NOT_OURS = {".git", ".cache", "__pycache__"}
"""Folders of Git, of the hub's downloader and of Python: they change, and are not a part of the
model."""


def names(folder: Path) -> list[str]:
    """Name the files of a model folder, in order of their paths."""
    return sorted(_walk(folder), key=lambda name: name.split("/"))


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, found in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in _NOT_OURS]
        for name in found:
            yield (Path(place) / name).relative_to(folder).as_posix()


def model_files(
    folder: Path, wanted: Iterable[str], state: Path, report_line: Callable[[str], None] = lambda line: None
) -> dict[str, ModelFile]:
    """Hash these files of a folder. `state`: the clone's state folder, which keeps the hashes;
    `report_line` is told of a file that takes a while."""
    folder = folder.resolve()
    kept_at = state / "hashes" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"
    kept, fresh = _kept(kept_at), dict[str, list[int | str]]()
    found: dict[str, ModelFile] = {}
    for name in wanted:
        stamp = _stamp(folder / name)
        before = kept.get(name, [])
        if before[:-1] != stamp:
            if stamp[0] > 2**30:
                report_line(f"hashing {name} ({stamp[0] / 2**30:.1f} GiB)")
            before = [*stamp, files.sha256(folder / name)]
            if _stamp(folder / name) != stamp:
                before = [*stamp[:1], 0, 0, before[-1]]  # it was written to meanwhile: hash it again next time
        fresh[name] = before
        found[name] = ModelFile(sha256=str(before[-1]), num_bytes=stamp[0])
    if fresh != {name: kept.get(name) for name in fresh}:
        files.write_text(json.dumps({"folder": str(folder), "files": kept | fresh}) + "\n", kept_at)
    return found


def sha256(place: Path) -> str:
    """Hash a model (a folder or a GGUF file) from its bytes as they are now, without the kept
    hashes."""
    if place.is_file():
        return files.sha256(place)
    found = {
        name: ModelFile(sha256=files.sha256(place / name), num_bytes=(place / name).stat().st_size)
        for name in names(place)
    }
    return sha256_of(found, None)


def _stamp(path: Path) -> list[int]:
    seen = path.stat()
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]


def _kept(path: Path) -> dict[str, list[int | str]]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return {}  # a hash that is lost is computed again
