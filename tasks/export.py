"""`rft export`: write an agent's folder, whole or not at all.

rft/export writes the content. The folder is written beside its final place, and renamed at the end.
A folder that exists is left alone, and so is a `.part` that no export made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rft import config, export, stage_files
from rft.errors import UserError
from rft.export import Dtype, Manifest, Origin
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from tasks.promotion.agents import Agent, laid_out
from tasks.runs import records
from tasks.runs.clone import Clone

MARK = ".rft-export"
"""Marks a `.part` folder that an export made."""
_LOGS = tuple(
    map(str, (stage_files.SHOWN_ROLLOUTS, stage_files.rollouts("challenger"), stage_files.rollouts("baseline")))
)
"""Logs that people may read come first, because an error quotes what differs."""


def write(agent: Agent, folder: Path, merge: bool = False, dtype: Dtype | None = None) -> Manifest:
    """Export an agent. Raises UserError for a folder that exists, or that runs would carry along as
    an edit."""
    folder = folder.resolve()
    origin = Origin(
        model=agent.model,
        version=agent.version,
        run=agent.run,
        revision=agent.at.commit,
        standing=agent.standing,
        withdrawn=agent.withdrawn,
    )
    clone = agent.at.clone
    with (
        records.held(clone.state / "export.lock", wait=True),
        _whole(clone, folder) as part,
        laid_out(agent) as tree,
        contextlib.chdir(tree),
    ):
        params = config.load("params.yaml", recorded=True)
        return export.write(params, part, origin, merge, dtype, seen(agent))


def check_place(clone: Clone, folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already. Name a folder that does not: nothing is written over.")
    clone.refuse_taken_along(folder)


def seen(agent: Agent) -> list[LogRow]:
    """Return recorded rollouts of this agent."""
    for path in _LOGS:
        content = agent.at.read(path)
        if content and (rows := [row for row in rollout_log.read(content, path) if row.arm == agent.arm]):
            return rows
    return []


@contextlib.contextmanager
def _whole(clone: Clone, folder: Path) -> Iterator[Path]:
    """Make a folder that gets its name at the end of the block, or is removed if the block
    fails."""
    check_place(clone, folder)
    part = folder.with_name(f"{folder.name}.part")
    if part.exists() and not (part / MARK).exists():
        raise UserError(f"{part} is in the way: the export is written there first. Move it, or name another folder.")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        (part / MARK).touch()
        (part / "whole").mkdir()
        yield part / "whole"
        os.rename(part / "whole", folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


__all__ = ["check_place", "seen", "write"]
