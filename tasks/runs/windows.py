"""The window of a run: its log is ingested once, and the run reads only the snapshot.

A log may be one file or thousands, here or in an object store, and it may still grow. So a run
begins by ingesting it into `.rft/snapshots`. A later run with the same log and the same settings
finds the snapshot there. The run's worktree links to it as data/window, stage `traffic` keeps the
conversations for good, and params.yaml names the log and its hash. The snapshot itself is a cache:
`rft runs gc` may remove it.
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
    """Return the folder of this clone's snapshots."""
    return clone.state / "snapshots"


def take_in(
    clone: Clone, params: config.Params, log: str | Path | None = None, report_line: ReportLine = lambda _: None
) -> tuple[config.Params, dict[str, Path]]:
    """Ingest a log, by default that of `traffic.file`.

    Returns the settings, which name it by hash, and what a worktree needs: path there -> its
    source. Raises UserError for a log that is missing, that differs from `traffic.sha256`, or that
    holds too few conversations.
    """
    from rft.traffic import ingest, reading  # at the top, these would take a third of most verbs' start

    wanted = str(params.traffic.file if log is None else log)
    snapshot = ingest.ingest(wanted, params.traffic, clone.home, folder(clone), report_line)
    os.utime(snapshot)  # `rft runs gc` counts the days since a run last asked for it
    pinned = {"file": named(clone, wanted), "sha256": reading.manifest(snapshot).sha256}
    traffic = params.traffic.model_copy(update=pinned)
    return params.model_copy(update={"traffic": traffic}), {str(stage_files.SNAPSHOT): snapshot}


def unused(clone: Clone, unfinished: Mapping[str, str]) -> Iterator[Path]:
    """Yield the snapshots to which none of these runs links (`unfinished`: run -> its agent's
    folder). They are compared by name: links break when a clone is moved, until the run's next
    start makes them anew."""
    links = [clone.worktrees / name / place / stage_files.SNAPSHOT for name, place in unfinished.items()]
    if not all(link.is_symlink() for link in links):
        return  # a worktree is gone, or its link became a copy: the snapshot in use is not known
    linked = {Path(os.readlink(link)).name for link in links}
    for path in sorted(folder(clone).glob("*")):
        if path.name not in linked:
            yield path


def inside(clone: Clone, log: str) -> list[str]:
    """List the paths in the agent's folder that hold the log: they do not count as edits."""
    if is_address(log) or Path(log).is_absolute():
        return []
    found = clone.home.glob(log) if has_magic(log) else [clone.home / log]
    return [path.relative_to(clone.home).as_posix() for path in found if path.exists()]


def named(clone: Clone, log: str) -> str:
    """Name a log as reports do: by its path in the agent's folder, or by its address without the
    parts that may be secret."""
    if is_address(log):
        return shown(log)
    path = clone.home / log
    return path.relative_to(clone.home).as_posix() if path.is_relative_to(clone.home) else log
