"""Find the files of a log, local or at an address.

    data/inbox/window.jsonl          a file
    data/inbox                       a folder: all files in it and below it, except hidden ones
    data/inbox/2026-03-*.jsonl.gz    a pattern; ** stands for any folders
    s3://bucket/logs/*.jsonl         any of these at an address for which fsspec has a driver

Files come sorted by name, so that the same log is the same snapshot everywhere. The name of a file
below the root is relative to it. rft/traffic/compressed.py decompresses what is read;
rft/traffic/addresses.py reads what is not local.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rft.errors import UserError
from rft.traffic.addresses import REMEDY, Remote, Steady, is_address, shown
from rft.traffic.compressed import Stream

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Log:
    """A file of a log. It may be pickled, so that another process can read it."""

    name: str
    address: str = field(repr=False)
    """A path, or an address for fsspec, which may hold secrets."""
    num_bytes: int
    """The size as it is stored, compressed or not."""

    @property
    def path(self) -> Path | None:
        """The local file; None if it is at an address."""
        return None if is_address(self.address) else Path(self.address)

    def sha256(self) -> str:
        """Hash the stored bytes. They are read once; then the hash is kept."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        with self.open_raw() as raw:
            digest = hashlib.sha256()
            while chunk := raw.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def open(self) -> Stream:
        """Open the content, decompressed."""
        return Stream(self.open_raw)

    def open_raw(self) -> Any:
        """Open the stored bytes, as a binary file."""
        if self.path is None:
            return Steady(self.address, self.num_bytes)
        try:
            return self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self.name}: cannot be read ({error.strerror}). {REMEDY}") from None


def find(spec: str, root: Path) -> list[Log]:
    """Find the files of a log, sorted by name. Raises UserError where there are none."""
    if not is_address(spec):
        found = [Log(_name(path, root), os.path.abspath(path), path.stat().st_size) for path in _local(spec, root)]
    elif urlsplit(spec).scheme in ("file", "local"):
        return find(spec.split("://", 1)[1], root)
    else:
        found = [Log(file.name, file.address, file.num_bytes) for file in Remote(spec).found()]
    if not found:
        raise UserError(f"traffic.file = {shown(spec)!r} names no file. {REMEDY}")
    return sorted(found, key=lambda log: (log.name, log.address))


# -- local files -----------------------------------------------------------------------------------
def _local(spec: str, root: Path) -> list[Path]:
    path = root / Path(spec).expanduser()
    if path.is_dir():
        return list(_below(path, frozenset()))
    if path.exists():
        return [_checked(path)]
    if not has_magic(spec):
        raise UserError(f"{_name(path, root)}: there is no such file. {REMEDY}")
    return [_checked(Path(found)) for found in glob(str(path), recursive=True) if not Path(found).is_dir()]


def _below(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    """Yield the files below a folder. Links to folders are followed, but not in circles."""
    above |= {os.path.realpath(folder)}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            yield _checked(path)
        elif os.path.realpath(path) not in above:
            yield from _below(path, above)


def _checked(path: Path) -> Path:
    """Refuse a pipe, because reading it would wait, and a link to nothing."""
    if not path.is_file():
        raise UserError(f"{path}: is not a file that can be read. Remove it, or name the files that count.")
    return path


def _name(path: Path, root: Path) -> str:
    absolute, top = Path(os.path.abspath(path)), Path(os.path.abspath(root))
    return absolute.relative_to(top).as_posix() if absolute.is_relative_to(top) else absolute.as_posix()
