"""Take over from a workspace the source files that the user allows, and no others.

A patch that changes tests, or how tests or Python start, changes its own judge. Such files are
always left out, even if allowed: conftest.py, settings of pytest and other tools, files that Python
runs at its start, and anything in a folder of tests. Links are left out, too. A list names what was
left out.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from rft.errors import UserError
from rft.sandbox.reading import Refusal
from rft.sandbox.sandbox import Sandbox

NEVER = (
    "conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.ini", "*.cfg", "*.toml", "test_*.py",
    "*_test.py",
)  # fmt: skip
TESTS = ("test", "tests", "testing")
MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes of a workspace: `Patch({"src/a.py": b"..."}, ("src/b.py",))`."""

    files: dict[str, bytes]
    deleted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths, each with the reason."""


async def source_patch(sandbox: Sandbox, allowed: Sequence[str]) -> Patch:
    """Read the changes of a workspace in files that match one of `allowed`, such as `src/*.py`. A
    `*` matches folders, too."""
    if not allowed:
        raise UserError("A patch needs the files that it may change, such as ['src/*.py'].")
    files: dict[str, bytes] = {}
    deleted: list[str] = []
    left_out: list[str] = []
    for change in await sandbox.diff():
        if change.kind == "folder":
            continue
        if why := _why_not(change.path, change.kind, allowed):
            left_out.append(f"{change.path}: {why}")
        elif change.how == "deleted":
            deleted.append(change.path)
        else:
            try:
                files[change.path] = await sandbox.read_file(change.path, MAX_FILE_BYTES)
            except Refusal as refusal:
                left_out.append(f"{change.path}: {refusal}")
    return Patch(files, tuple(deleted), tuple(left_out))


def _why_not(path: str, kind: str, allowed: Sequence[str]) -> str:
    """Say why a file is left out; empty if it is not."""
    *folders, name = PurePosixPath(path).parts
    if kind != "file":
        return "not a regular file"
    if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in NEVER):
        return "tests, settings and what runs at the start are never taken"
    if any(folder.lower() in TESTS for folder in folders):
        return "in a folder of tests"
    return "" if any(fnmatch.fnmatchcase(path, pattern) for pattern in allowed) else "not allowed"
