"""Git as a function: arguments in, text out.

Plumbing commands record a run. They need an author, and a newcomer may not have configured one, so
Git gets an identity of ours. The caller's hooks do not run. Variables such as GIT_DIR, which Git
sets for hooks, would point every command at the wrong repository, so they are dropped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rft.errors import InfrastructureError, UserError

_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "agent-rft"), ("EMAIL", "agent-rft@localhost"))
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "advice.detachedHead=false",
)
_FOREIGN = frozenset(
    f"GIT_{what}"
    for what in ("DIR", "WORK_TREE", "INDEX_FILE", "PREFIX", "COMMON_DIR", "OBJECT_DIRECTORY", "NAMESPACE")
)


class GitError(InfrastructureError):
    """A Git command failed. The message holds the command and Git's own words."""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # a replacement (git replace) would show other bytes under a recorded name
    return kept | _IDENTITY | {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1"}


def git(where: Path, *arguments: str, given: bytes | None = None, index: Path | None = None) -> str:
    """Return standard output without its last newline. Raises GitError; UserError without Git."""
    return git_bytes(where, *arguments, given=given, index=index).decode("utf-8", "surrogateescape").removesuffix("\n")


def unfiltered(where: Path) -> list[str]:
    """Return options for Git that turn off the user's filters, such as LFS: in a worktree of ours
    they would fetch what no stage reads."""
    try:
        listed = git(where, "config", "--name-only", "--get-regexp", r"^filter\.").splitlines()
    except GitError:  # no filter is set
        return []
    names = {name.removeprefix("filter.").rpartition(".")[0] for name in listed}
    off = ("smudge=", "clean=", "process=", "required=false")
    return [word for name in sorted(names) for each in off for word in ("-c", f"filter.{name}.{each}")]


def git_bytes(
    where: Path,
    *arguments: str,
    given: bytes | None = None,
    index: Path | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """Return standard output. `timeout_s` is for commands that ask another machine."""
    variables = environment()
    if index is not None:
        variables["GIT_INDEX_FILE"] = str(index)
    if timeout_s is not None and not sys.stdin.isatty():
        variables["GIT_TERMINAL_PROMPT"] = "0"
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=where,
            input=given,
            env=variables,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git {' '.join(arguments)} did not end within {timeout_s:.0f} s in {where}") from None
    except FileNotFoundError:
        if not where.is_dir():
            raise UserError(f"{where}: no such folder.") from None
        why = "Every run is recorded as a Git revision: install git, then try again."
        raise UserError(f"git is not installed, or not in PATH. {why}") from None
    if done.returncode != 0:
        raise GitError(f"git {' '.join(arguments)} failed in {where}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
