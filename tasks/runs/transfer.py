"""Move bytes of a recorded revision between DVC's cache and DVC's remote.

DVC moves what a folder's dvc.lock names, so the revision is laid out as a worktree for it. A push
that reports success is checked by asking the remote. (`dvc exp push` says "pushed" and uploads
nothing where no commit names the remote.)
"""

from __future__ import annotations

import configparser
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rft.errors import InfrastructureError
from tasks.runs import artifacts, records, repro
from tasks.runs import run as runs
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone

LAID_OUT = "transfer-"
"""The beginning of the names of its scratch folders. The process that uses one holds its `lock`."""


def push(clone: Clone, commit: str) -> None:
    """Upload a revision's outputs, and check that they arrived. Raises InfrastructureError."""
    with _laid(clone, commit) as tree:
        output = _dvc(tree, "push")
        missing = json.loads(_dvc(tree, "status", "--cloud", "--json") or "{}")
        if missing:
            names = ", ".join(sorted(missing)[:5])
            raise InfrastructureError(f"after `dvc push`, DVC's remote still lacks {names} ({output}). Push again.")


def fetch(clone: Clone, at: Revision) -> None:
    """Download what this clone's cache lacks of a revision. Does nothing where it is all here."""
    if at.is_cached():
        return
    with _laid(clone, at.commit) as tree:
        _dvc(tree, "fetch")


def push_files(clone: Clone, outs: Sequence[Out]) -> None:
    """Upload files of the cache that no revision names. Raises InfrastructureError."""
    if not outs:
        return
    with _laid(clone, "HEAD") as tree:
        pointers = [_pointer(replace(out, path=f"{out.md5}.txt"), tree) for out in outs]
        _dvc(tree, "push", *pointers)
        if missing := json.loads(_dvc(tree, "status", "--cloud", "--json", *pointers) or "{}"):
            names = ", ".join(sorted(missing)[:5])
            raise InfrastructureError(f"after `dvc push`, DVC's remote still lacks {names}. Push again.")


def fetch_file(clone: Clone, out: Out) -> bytes:
    """Return the bytes of a file, from the cache or the remote. Raises InfrastructureError."""
    if (found := artifacts.cached(clone, out)) is None:
        with _laid(clone, "HEAD") as tree:
            _dvc(tree, "fetch", _pointer(out, tree))
        found = artifacts.cached(clone, out)
    if found is None:
        raise InfrastructureError(f"DVC's remote does not hold {out.md5}. Fetch it from the clone that made it.")
    return found


def places(clone: Clone, out: Out) -> list[str]:
    """Return the addresses at which DVC's remotes would hold a file."""
    urls = (wanted.get("url", "").strip("\"'") for name, wanted in _settings(clone).items() if "remote" in name)
    return [f"{url.rstrip('/')}/files/md5/{out.md5[:2]}/{out.md5[2:]}" for url in urls if url]


def remotes(clone: Clone) -> list[str]:
    """Return the addresses of DVC's remotes, without their secrets."""
    urls = (wanted.get("url", "").strip("\"'") for name, wanted in _settings(clone).items() if "remote" in name)
    return [re.sub(r"//[^/@]*@", "//...@", url) for url in urls if url]


def _pointer(out: Out, tree: Path) -> str:
    artifacts.link_out(out, tree / out.path)
    return f"{out.path}.dvc"


@contextmanager
def _laid(clone: Clone, commit: str) -> Iterator[Path]:
    """Lay out the agent's folder of a revision, or the top of another commit."""
    folder = Revision(clone, commit).folder
    with (
        tempfile.TemporaryDirectory(prefix=LAID_OUT, dir=clone.state) as scratch,
        records.held(Path(scratch) / "lock", wait=True),  # `rft runs gc` clears away what a kill left
    ):
        tree = Path(scratch) / "tree"
        try:
            home = runs.lay_out_commit(clone, tree, commit, folder)
            with (home / ".dvc/config.local").open("a", encoding="utf-8") as file:
                file.write(_remotes(clone))
            yield home
        finally:
            runs.remove_tree(clone, tree)


def _remotes(clone: Clone) -> str:
    """Return the settings of the clone's remotes, local settings included. The run's commit may
    have none, or others. A relative address would point into the scratch folder, and go with it."""
    lines: list[str] = []
    for section, wanted in _settings(clone).items():
        lines += [f"[{section}]", *(f"    {key} = {value}" for key, value in wanted.items())]
    return "\n".join([*lines, ""])


def _settings(clone: Clone) -> dict[str, dict[str, str]]:
    folder, parser = clone.root / ".dvc", configparser.ConfigParser(interpolation=None)
    parser.read([folder / "config", folder / "config.local"], encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for section in parser.sections():
        wanted = dict(parser[section])
        if section == "core":
            wanted = {key: value for key, value in wanted.items() if key == "remote"}
        elif "remote" not in section:
            continue
        if (url := wanted.get("url", "").strip("\"'")) and "://" not in url:
            wanted["url"] = str((folder / url).resolve())
        found[section] = wanted
    return found


def _dvc(tree: Path, *arguments: str) -> str:
    try:
        return repro.dvc(tree, *arguments)
    except InfrastructureError as error:
        remedy = "Bring DVC's remote back, and let this user read and write it, then run the same command: it goes on"
        if "no remote" in str(error):
            remedy = "Name a remote that all clones reach: dvc remote add --default NAME URL"
        raise InfrastructureError(f"{error}. {remedy}") from None
