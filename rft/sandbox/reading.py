"""Read, write and list a folder that hostile code filled, from outside the sandbox.

Code in a sandbox cannot see the host's files. But it can leave `answer.json -> /etc/shadow`, and
a program on the host that opens that name reads the host's file. It can leave a pipe, on which a
reader waits for ever, or a file of many gigabytes. So nothing here trusts a name that the other
side chose. Each folder of a path is opened relative to the one above it (`dir_fd`), never through a
link, and without waiting. What was opened is checked before it is read.

    read_file    reads a regular file up to a size
    write_file   writes a file, and replaces anything of that name, also a link or a pipe
    list_files   lists names with their kind and size; links are named, never followed

If something cannot be read, a `Refusal` is raised: the code in the sandbox caused it, not we.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from rft.errors import ToolError

MAX_READ_BYTES = 100 * 2**20
MAX_FILES = 100_000
MAX_DEPTH = 64

Kind = Literal["file", "folder", "link", "other"]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Refusal(ToolError):
    """A file that cannot be read or written safely. The policy sees the message."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a workspace, such as `Entry("src/a.py", "file", 120)`. `other` is a pipe, a socket
    or a device."""

    path: str
    kind: Kind
    num_bytes: int


def read_file(folder: int, path: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
    """Read a regular file below the open folder `folder`. Raises Refusal."""
    *parents, name = parts(path)
    with _walk(folder, parents, path) as parent, refusing(path):
        handle = os.open(name, _FILE, dir_fd=parent)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise Refusal(f"{path!r} is a {_kind(found.st_mode)}, not a regular file.")
            if found.st_size > max_bytes:
                raise Refusal(f"{path!r} has {found.st_size:,} bytes; at most {max_bytes:,} are read.")
            return _read(handle, max_bytes, path)
        finally:
            os.close(handle)


def write_file(folder: int, path: str, content: bytes, owner: tuple[int, int] | None = None) -> None:
    """Write a file below `folder`, never through a link, and make missing folders above it.
    `owner`: the user and group of what is made. Raises Refusal."""
    *parents, name = parts(path)
    with _walk(folder, parents, path, make=owner or (-1, -1)) as parent, refusing(path):
        part = f".{os.urandom(8).hex()}.part"
        handle = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent
        )
        try:
            try:
                if owner:
                    os.fchown(handle, *owner)
                written = 0
                while written < len(content):
                    written += os.write(handle, content[written:])
            finally:
                os.close(handle)
            os.replace(part, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=parent)
            raise


def list_files(folder: int, path: str = ".", max_files: int = MAX_FILES) -> list[Entry]:
    """List all names below a folder, sorted. No name is left out: it raises Refusal for more than
    `max_files` names, or for a tree deeper than `MAX_DEPTH`."""
    where = [] if path in ("", ".") else parts(path)
    with _walk(folder, where, path) as start, refusing(path):
        found: list[Entry] = []
        for entry in _below(start, "/".join(where), len(where)):
            found.append(entry)
            if len(found) > max_files:
                raise Refusal(f"{path!r} holds more than {max_files:,} names.")
    return sorted(found, key=lambda entry: entry.path)


def check_folder(folder: int, path: str) -> str:
    """Return the path of a folder below `folder`, without superfluous parts. Raises Refusal if
    there is no such folder, or if its owner cannot enter it."""
    names = [] if path in ("", ".") else parts(path)
    for depth in range(len(names) + 1):
        with _walk(folder, names[:depth], path) as place:
            if os.fstat(place).st_mode & 0o500 != 0o500:
                raise Refusal(f"{path!r} {_WHY[errno.EACCES]}.")
    return "/".join(names)


def parts(path: str) -> list[str]:
    """Split a relative path into names. Raises Refusal for an absolute path and for `..`."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names or "\0" in path or PurePosixPath(path).is_absolute():
        raise Refusal(f"{path!r} is not a path inside the workspace. Write a relative path without '..'.")
    if len(names) > MAX_DEPTH:
        raise Refusal(f"{path[:80]!r}... is deeper than {MAX_DEPTH} folders.")
    return names


def kind_of(mode: int) -> Kind:
    """Name the kind of file that a mode describes."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


@contextlib.contextmanager
def _walk(folder: int, names: list[str], path: str, make: tuple[int, int] | None = None) -> Iterator[int]:
    """Yield the folder `names` below `folder`, opened name by name. `make`: the owner of missing
    folders, which are made."""
    here = os.dup(folder)
    try:
        for name in names:
            with refusing(path):
                if make is not None:
                    _make(name, here, make)
                below = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _make(name: str, parent: int, owner: tuple[int, int]) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)


def _below(folder: int, prefix: str, depth: int) -> Iterator[Entry]:
    if depth > MAX_DEPTH:
        raise Refusal(f"{prefix[:80]!r}... is deeper than {MAX_DEPTH} folders.")
    with os.scandir(folder) as names:
        found = [(name.name, name.stat(follow_symlinks=False)) for name in names]
    for name, about in found:
        path = f"{prefix}/{name}" if prefix else name
        kind = kind_of(about.st_mode)
        yield Entry(path, kind, about.st_size if kind == "file" else 0)
        if kind == "folder":
            with refusing(path):
                inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _below(inner, path, depth + 1)
            finally:
                os.close(inner)


def _read(handle: int, max_bytes: int, path: str) -> bytes:
    """Read to the end, but at most `max_bytes`, because the file may grow while it is read."""
    pieces: list[bytes] = []
    total = 0
    while piece := os.read(handle, 2**20):
        total += len(piece)
        if total > max_bytes:
            raise Refusal(f"{path!r} grew beyond {max_bytes:,} bytes while it was read.")
        pieces.append(piece)
    return b"".join(pieces)


_WHY = {
    errno.ELOOP: "is a link, which is not followed",
    errno.ENOTDIR: "leads through something that is not a folder, or through a link",
    errno.ENXIO: "is a socket or a pipe",
    errno.ENOENT: "does not exist",
    errno.EACCES: "has a mode that forbids it",
    errno.EISDIR: "is a folder",
    errno.ENOSPC: "does not fit: the workspace is full",
    errno.ENAMETOOLONG: "has too long a name",
    errno.EEXIST: "is in the way",
    errno.ENOTEMPTY: "is a folder that is not empty",
}


@contextlib.contextmanager
def refusing(path: str) -> Iterator[None]:
    """Turn the kernel's error into a Refusal in words, if the cause is in the workspace."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WHY:
            raise
        raise Refusal(f"{path!r} {_WHY[error.errno]}.") from None


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "pipe"
    return {"folder": "folder", "link": "link"}.get(kind_of(mode), "device or socket")
