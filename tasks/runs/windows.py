"""The window of a run: its log is ingested once, and the run reads the snapshot alone.

A log may be one file or thousands, here or in an object store, and somebody may go on writing it.
So a run begins by ingesting it into `.rft/snapshots`, where the snapshot of the same log under the
same settings is found again. The run's worktree links to it as data/window, stage `traffic` keeps
the conversations for good, and params.yaml names the log and its hash. The snapshot itself is a
cache: `rft runs gc` may remove it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from glob import has_magic
from pathlib import Path

from rft import config, stage_files
from rft.traffic.addresses import is_address, shown
from tasks.runs.clone import Clone

ReportLine = Callable[[str], None]


def folder(clone: Clone) -> Path:
    """Where the snapshots of this clone are."""
    return clone.state / "snapshots"


def take_in(
    clone: Clone, params: config.Params, log: str | Path | None = None, report_line: ReportLine = lambda _: None
) -> tuple[config.Params, dict[str, Path]]:
    """Ingest a log, by default that of `traffic.file`.

    Returns the settings that name it by hash, and what a worktree needs: path there -> its source.
    Raises UserError for a log that is not there, is not the one of `traffic.sha256`, or holds too
    few conversations.
    """
    from rft.traffic import ingest, reading  # a third of the time in which most verbs start

    wanted = str(params.traffic.file if log is None else log)
    snapshot = ingest.ingest(wanted, params.traffic, clone.home, folder(clone), report_line)
    os.utime(snapshot)  # `rft runs gc` counts the days since a run last asked for it
    pinned = {"file": named(clone, wanted), "sha256": reading.manifest(snapshot).sha256}
    traffic = params.traffic.model_copy(update=pinned)
    return params.model_copy(update={"traffic": traffic}), {str(stage_files.SNAPSHOT): snapshot}


def unused(clone: Clone, unfinished: Mapping[str, str]) -> Iterator[Path]:
    """The snapshots that none of these runs links to; each has its agent's folder. By name: the
    links break when a clone is moved, and the next start of the run makes them anew."""
    links = [clone.worktrees / name / place / stage_files.SNAPSHOT for name, place in unfinished.items()]
    if not all(link.is_symlink() for link in links):
        return  # a worktree is gone, or was copied with what its links led to: nobody knows which
    linked = {Path(os.readlink(link)).name for link in links}
    for path in sorted(folder(clone).glob("*")):
        if path.name not in linked:
            yield path


def inside(clone: Clone, log: str) -> list[str]:
    """List the paths in the agent's folder that hold the log: they are not edits of it."""
    if is_address(log) or Path(log).is_absolute():
        return []
    found = clone.home.glob(log) if has_magic(log) else [clone.home / log]
    return [path.relative_to(clone.home).as_posix() for path in found if path.exists()]


def named(clone: Clone, log: str) -> str:
    """Name a log as reports do: what lies in the clone by its path there, and an address
    without what may be secret in it."""
    if is_address(log):
        return shown(log)
    path = clone.home / log
    return path.relative_to(clone.home).as_posix() if path.is_relative_to(clone.home) else log
