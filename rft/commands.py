"""Compose the commands that messages, tables and pages print, so that each works when pasted.

A command without its `--params` is worse than none: it runs, on another agent. So all printed
commands come from here. They consist of:

    the program     as this user starts it, quoted: `rft` where the shell finds ours, else a path
    the settings    `--params` and `--set` as they were given, after each verb that needs them
                    (NEEDS_SETTINGS). A file inside the clone is named from the clone's top, where
                    every verb looks for it too. So the command works in any folder of the clone
    the arguments   quoted for the shell; the reader fills in what is in CAPITALS

The command line knows the program and the settings, but other processes print messages, too. So
both are in the environment, which the processes of stages inherit (`remember`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rft import files

PROGRAM, SETTINGS = "RFT_PROGRAM", "RFT_SETTINGS"
"""Environment variables. Both hold quoted words."""
AGENT = "RFT_AGENT"
"""Environment variable: the name of the agent that the command line named."""
NEEDS_SETTINGS = frozenset(
    {"run", "doctor", "doctor exploits", "baseline", "traffic drift", "runs gc", "stage run", "stage engine"}
)
"""The verbs that need the settings. The others take them from the run, or the model, that they
name."""
WHY = ("--reason", "TEXT")


def command(verb: str, *arguments: str, settings: Sequence[str] | None = None) -> str:
    """Write one line for a shell, with the settings of this process, or with `settings`. `verb` may
    have several words, such as `runs cancel`."""
    words = [*verb.split(), *arguments]
    if settings is not None:
        words += settings
    elif verb in NEEDS_SETTINGS:
        words += remembered()
    return " ".join([os.environ.get(PROGRAM, "rft"), shlex.join(words)])


def stage(name: str) -> str:
    """Write the command that runs a stage again with the same settings. For a stage that opens the
    test examples this is `run`, because only a run may open them."""
    return command("run") if name == "challenger" else command("stage run", name)


def toolserver(folder: Path, python: str | None = None, sources: Iterable[str] = ()) -> str:
    """Write the command that serves a recipe's tools by hand. A run's worktree is gone when the
    message is read, so the clone's own folder is named instead."""
    worktrees = files.state().resolve() / "worktrees"
    if folder.is_relative_to(worktrees):
        folder = worktrees.parent.parent.joinpath(*folder.relative_to(worktrees).parts[1:])
    more = [word for source in sources for word in ("--source", source)]
    return command("stage tools", str(folder), *(["--python", python] if python else []), *more)


def rollback(agent: str) -> str:
    """Write the command that rolls back to an earlier champion of this agent."""
    return command("rollback", "--model", agent, *WHY)


def remembered() -> list[str]:
    """Return `--params` and `--set` as this process or its parent was given them."""
    return shlex.split(os.environ.get(SETTINGS, ""))


def remember(program: str | None = None, settings: Iterable[str] | None = None) -> None:
    """Set what this process and its children print. `program` is quoted; None changes nothing."""
    if program is not None:
        os.environ[PROGRAM] = program
    if settings is not None:
        os.environ[SETTINGS] = shlex.join(settings)


def options(root: Path, params: str | None = None, overrides: Iterable[str] = ()) -> list[str]:
    """Return the options that give these settings again, in any folder of the clone at `root`."""
    file = from_the_top(root, params) if params else None
    # the default is params.yaml at the top; one in a recipe's folder is another file
    found = ["--params", file] if file and file != "params.yaml" else []
    return [*found, *(word for override in overrides for word in ("--set", override))]


def from_the_top(root: Path, name: str) -> str:
    """Name a file or pattern from the top of the clone, or by its absolute path if it is
    elsewhere."""
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        return name  # named from the top already, or missing: then the message repeats what was typed
    path = Path(os.path.abspath(path))  # links are kept: their names are the user's
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
