"""The user's Python interpreter, under which a recipe's tools and `grade` run (recipe.python).

It has the user's packages. Our tool server runs under it, so it also needs four packages of ours
(NEEDED). The user's packages need not be installed here: the server's process describes what a tool
takes and returns (`described`). Both interpreters load examples.py and `recipe.sources`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from rft import files, sources
from rft.errors import UserError
from rft.process import module_command

NEEDED = {"aiohttp": "aiohttp", "pydantic": "pydantic", "rfc8785": "rfc8785", "yaml": "pyyaml"}
"""Modules that the tool server imports -> the distributions that contain them."""
OLDEST = (3, 11)
_PATIENCE_S = 60.0
_PROBE = f"""
import importlib.util, json, sys
from importlib import metadata
packages = sorted({{f"{{one.metadata['Name']}}=={{one.version}}" for one in metadata.distributions()}})
missing = [name for name in {list(NEEDED)} if importlib.util.find_spec(name) is None]
print(json.dumps({{"version": sys.version_info[:3], "packages": packages, "missing": missing}}))
"""


class Described(BaseModel):
    """What tools.py offers."""

    model_config = ConfigDict(frozen=True)
    schemas: list[dict[str, Any]]
    asks: dict[str, list[str]]
    """Function, also `grade` -> the arguments of GIVEN that it takes (rft/tools/signatures.py)."""
    keeps_state: bool
    verifies: bool


def found(python: str) -> str:
    """Return the interpreter as an absolute path. A relative path starts at the top of the clone,
    because the clone's worktrees do not hold the interpreter. Raises UserError if there is none."""
    if "/" not in python:
        place = shutil.which(python)
    else:
        bases = (files.state().resolve().parent, sources.top(Path.cwd()), Path.cwd())
        place = next((path for base in bases if os.access(path := str(base / python), os.X_OK)), None)
    if place is None or Path(place).is_dir():
        raise UserError(f"params.yaml: recipe.python = {python!r}: there is no such interpreter. Name one that exists.")
    return place


def facts(python: str) -> dict[str, Any]:
    """Return the interpreter's version and packages. Raises UserError if the tool server cannot run
    under it."""
    return _facts(found(python), python)


@lru_cache
def _facts(place: str, python: str) -> dict[str, Any]:
    told = _ask([place, "-I", "-c", _PROBE], python)
    if tuple(told["version"][:2]) < OLDEST:
        version, oldest = ".".join(map(str, told["version"])), ".".join(map(str, OLDEST))
        raise UserError(f"params.yaml: recipe.python = {python!r} is Python {version}. The tool server needs {oldest}.")
    if told["missing"]:
        install = " ".join(NEEDED[name] for name in told["missing"])
        raise UserError(
            f"params.yaml: recipe.python = {python!r} lacks {install}, which the tool server needs there. "
            f"Install it: {place} -m pip install {install}"
        )
    return told


def command(python: str | None, *arguments: str) -> list[str]:
    """Compose the command of the tool server's process, under this interpreter; None: under
    ours."""
    ours = module_command("rft.tools.server", *arguments)
    if python is None:
        return ours
    facts(python)
    return [found(python), *ours[1:]]


def described(python: str, folder: Path, options: str, sources: tuple[str, ...]) -> Described:
    """Ask the interpreter what the recipe's tools.py offers. Raises UserError with the
    interpreter's own message."""
    stamp = tuple((path.name, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.py")))
    return _described(python, folder, options, sources, stamp)


@lru_cache
def _described(python: str, folder: Path, options: str, sources: tuple[str, ...], stamp: Any) -> Described:
    arguments = [str(folder), "--options", options, *(word for one in sources for word in ("--source", one))]
    return Described.model_validate(_ask(command(python, *arguments, "--describe"), python))


def _ask(asked: list[str], python: str) -> dict[str, Any]:
    """Return the JSON of the last line. The user's code may print other lines before it."""
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except OSError as error:
        why = f"cannot be started ({error.strerror}). Name one that can be started"
        raise UserError(f"params.yaml: recipe.python = {python!r} {why}.") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"params.yaml: recipe.python = {python!r} did not answer within {_PATIENCE_S:.0f} s.") from None
    if done.returncode:
        raise UserError(f"{done.stderr.strip() or 'no output'}\n(params.yaml: recipe.python = {python!r})")
    try:
        return json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        raise UserError(f"params.yaml: recipe.python = {python!r} answered {done.stdout[-200:]!r}.") from None
