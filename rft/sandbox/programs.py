"""The programs that make sandboxes, and the PATH by which they are found.

They may be outside /usr/bin, as with Nix, with Homebrew or in a folder of the user. They must not
get our environment, because programs inside the sandbox could read the secrets in it. So they get
only a PATH: the folders in which our own PATH has these programs, then the system's folders.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

NEEDED = ("bwrap", "nsenter", "prlimit", "cp", "tar", "sh")
AS_ROOT = ("chown",)
_SOMETIMES = ("env", "systemd-run")


def missing() -> list[str]:
    """Return the programs that are missing here."""
    return [name for name in (*NEEDED, *(AS_ROOT if os.geteuid() == 0 else ())) if shutil.which(name) is None]


def environment() -> dict[str, str]:
    """Return the environment of the programs around a sandbox."""
    return {"PATH": _path(os.environ.get("PATH", os.defpath))}


@cache
def _path(ours: str) -> str:
    found = [shutil.which(name, path=ours) for name in (*NEEDED, *AS_ROOT, *_SOMETIMES)]
    folders = [str(Path(program).parent) for program in found if program and os.path.isabs(program)]
    return os.pathsep.join(dict.fromkeys([*folders, *os.defpath.split(os.pathsep)]))


__all__ = ["environment", "missing"]
