"""Compose the commands that messages, tables and pages print, so that each works as it is pasted.

A command that lost its `--params` is worse than none: it works, on another agent. So whoever prints
one asks here. Three things make it whole:

    the program     as this user starts it: `rft` where the shell finds ours, else a path to it.
                    Quoted
    the settings    `--params` and `--set` as they were given, behind each verb that needs them
                    (NEEDS_SETTINGS). A file inside the clone is named from its top, where every
                    verb looks for it too, so that the command works in any folder of the clone
    the arguments   quoted for the shell; in CAPITALS what the reader must write

The command line knows the first two, and messages of the engine need them in another process. They
travel in the environment, which the processes of stages inherit (`remember`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rft import files

PROGRAM, SETTINGS = "RFT_PROGRAM", "RFT_SETTINGS"
"""Environment variables; both hold words that are quoted already."""
NEEDS_SETTINGS = frozenset({"run", "doctor", "stage", "drift", "exploits", "gc"})
"""The others take them from the run, or the model, that they name."""
WHO_AND_WHY = ("--by", "NAME", "--reason", "TEXT")


def command(verb: str, *arguments: str, settings: Sequence[str] | None = None) -> str:
    """One line for a shell. `settings`: those of a run instead of this process's own; `()` for
    none."""
    words = [verb, *arguments]
    if settings is not None:
        words += settings
    elif verb in NEEDS_SETTINGS:
        words += remembered()
    return " ".join([os.environ.get(PROGRAM, "rft"), shlex.join(words)])


def stage(name: str) -> str:
    """Run one stage again, with the settings that this one has."""
    return command("stage", name)


def toolserver(folder: Path) -> str:
    """Serve a recipe's tools by hand. A run's worktree is gone when its message is read: then the
    clone's own folder is named."""
    worktrees = files.state().resolve() / "worktrees"
    if folder.is_relative_to(worktrees):
        folder = worktrees.parent.parent.joinpath(*folder.relative_to(worktrees).parts[1:])
    return command("serve-tools", str(folder))


def rollback(recipe: str) -> str:
    """Go back to another champion of the recipe in this folder."""
    return command("rollback", "--model", Path(recipe).name, *WHO_AND_WHY)


def remembered() -> list[str]:
    """`--params` and `--set`, as this process or the one that started it was given them."""
    return shlex.split(os.environ.get(SETTINGS, ""))


def remember(program: str | None = None, settings: Iterable[str] | None = None) -> None:
    """For this process and its children. `program` is quoted, as it would be typed; what is None
    stays as it is."""
    if program is not None:
        os.environ[PROGRAM] = program
    if settings is not None:
        os.environ[SETTINGS] = shlex.join(settings)


def options(root: Path, params: str | None = None, overrides: Iterable[str] = ()) -> list[str]:
    """What follows a verb to get these settings again, from any folder of the clone at `root`."""
    file = from_the_top(root, params) if params else None
    # which is the default, and in a recipe's folder another file
    found = ["--params", file] if file and file != "params.yaml" else []
    return [*found, *(word for override in overrides for word in ("--set", override))]


def from_the_top(root: Path, name: str) -> str:
    """A file or pattern as every folder of the clone can name it: from the top, or whole when it
    lies elsewhere."""
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        # meant from the top, where it is looked for; or it is not there, and the message names what
        # was typed
        return name
    path = Path(os.path.abspath(path))  # links are kept: their names are the user's
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
