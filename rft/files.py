"""Write files and folders that are either whole or absent, and hash them.

A process may be killed, or a disk fill up, at any line. So nothing is written in place. `replacing`
hands out a temporary name beside the file and renames it when the block has ended well; `publish`
does the same with a folder, and `kept` with a file that is made once and then read by all. With
`durable`, the file also survives a power cut: its bytes reach the disk before its name, and its
name before the call returns.

`tree_sha256` hashes a file or folder, and `digest` a JSON value. Two programs may write the same
value in different bytes, so `digest` hashes the form of RFC 8785, which is the same in every
language.

`state` is the folder of this clone's work in progress.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rfc8785

from rft.errors import InfrastructureError, UserError

LARGEST = 2**53 - 1
"""The largest integer of canonical JSON. Many readers use doubles, which skip integers above it."""
STATE = "RFT_STATE"
"""The environment variable in which a stage finds `state()`."""
_ASIDE = ".aside"
_HALF = "holds half of a surrogate pair (\\ud800 to \\udfff), which no file can hold. Remove it."
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def state() -> Path:
    """Return this clone's state folder. In a run's worktree the environment names it."""
    return Path(os.environ.get(STATE, ".rft"))


# -- one file --------------------------------------------------------------------------------------
@contextlib.contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` when the block has ended well. A reader sees
    the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        yield part
        if durable:
            sync(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def write_text(text: str, path: Path, durable: bool = False) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path, durable) as part:
        part.write_text(text, encoding="utf-8")


def kept(path: Path, write: Callable[[Path], object]) -> Path:
    """Return a file that is made from others, such as an index. `write` makes it if it is missing:
    whole or not at all, even when two processes make it at once.

    Raises InfrastructureError where it cannot be written.
    """
    if path.exists():
        return path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        write(part)
        os.replace(part, path)
    except OSError as error:
        remedy = f"Free some space, or run where {path.parent} is writable."
        raise InfrastructureError(f"{path}: cannot be written ({error.strerror or error}). {remedy}") from None
    finally:
        if part.exists():
            part.unlink()
    return path


def sync(path: Path) -> None:
    """Bring a file or a folder (the names in it) to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def delete(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- a folder --------------------------------------------------------------------------------------
def publish(part: Path, whole: Path) -> None:
    """Give a finished folder its name, once its bytes are on the disk. At every moment `whole` is
    the old folder or the new one."""
    for path in [*part.rglob("*"), part]:
        sync(path)
    if not whole.exists():
        os.replace(part, whole)
    elif not _exchange(part, whole):
        aside = whole.with_name(whole.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(whole, aside)  # after a kill from here to the next line, `recover` takes this back
        os.rename(part, whole)
        shutil.rmtree(aside)
    sync(whole.parent)
    shutil.rmtree(part, ignore_errors=True)  # after an exchange, the old one


def recover(folder: Path) -> None:
    """Restore what a kill in `publish` left aside anywhere below, unless its successor exists."""
    for aside in sorted(folder.rglob(f"*{_ASIDE}")):
        whole = aside.with_name(aside.name.removesuffix(_ASIDE))
        if whole.exists():
            shutil.rmtree(aside)
        else:
            os.rename(aside, whole)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names atomically. Return False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0


# -- hashes ----------------------------------------------------------------------------------------
def sha256(path: Path) -> str:
    """Hash a file's bytes, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Hash a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def tree_sha256(path: Path) -> str:
    """Hash a file, or the relative names and bytes of a folder. A missing path has its own hash."""
    if path.is_file():
        return sha256(path)
    whole = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            whole.update(f"{file.relative_to(path)}\0".encode() + bytes.fromhex(sha256(file)))
    return whole.hexdigest()


def digest(value: Any) -> str:
    """Hash a JSON value, whatever the order of its keys. Raises UserError like `canonical`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """Write a JSON value in its one form (RFC 8785). `canonical({"b": 1.0, "a": "é"})` is
    `{"a":"é","b":1}` in UTF-8.

    Raises UserError, which names the key, for a value without such a form.
    """
    for key, why in without_form(value):
        raise UserError(f"'{key}' {why}")
    return rfc8785.dumps(value)


def without_form(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong and what to do) for each value that canonical JSON cannot hold."""
    if isinstance(value, dict | list | tuple):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            inner = str(name).encode("utf-8", "backslashreplace").decode()  # an error must be printable
            inner = f"{key}.{inner}" if key else inner
            if not _is_text(str(name)):
                yield inner, f"is a key that {_HALF}"
            yield from without_form(each, inner)
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield key, f"= {value}: JSON keeps integers exact only up to {LARGEST}. Write a smaller one."
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, f"= {value}: not a JSON number. Write a finite one."
    elif isinstance(value, str) and not _is_text(value):
        yield key, _HALF


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
