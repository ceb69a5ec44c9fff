"""A workspace: a Git repository with agents in it, each a folder, and the file that lists them.

rft.yaml, at the top:

    agents: [agents/refunds, agents/billing]     folders from the top; "." is the top itself
    slots: 1                                     how many scheduled runs may go on at once
    schedules:                                   what `rft up` runs, and when
      refunds:                                   an agent's name
        cron: "0 3 * * 1"                        Mondays at three
        timezone: Europe/Berlin                  default: UTC
        window: data/inbox/*.jsonl               in the agent's folder; the last by name
    ledger: {remote: origin}                     where the ledger of approvals is shared

An agent is a folder with params.yaml, dvc.yaml, dvc.lock, a recipe and data/. Its name is `agent:`
in its params.yaml, or else the name of its recipe's folder. The name stays when the folder moves. A
repository without rft.yaml is a workspace of one agent, at its top.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml
from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rft import config, files
from rft.errors import ConfigError, UserError, did_you_mean
from tasks.runs.git import git

FILE = "rft.yaml"
NEEDED = ("params.yaml", "dvc.yaml")
"""The files that make a folder an agent."""
_OF_LEDGER = """\
# The ledger of approvals: `rft ledger` shows it, docs/ledger.md explains it.
# remote: a Git remote that several clones share, such as origin; null: this clone alone.
# genesis: which ledger it is. Written once, when the first person approves: commit it.
"""
_HEAD = "# The agents of this repository, each a folder. `rft agents` lists them.\n"


class Schedule(BaseModel):
    """When the ladder of an agent runs, and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cron: str
    timezone: str = "UTC"
    window: str | None = None
    params: str | None = None
    clean_only: bool = True

    def next(self, after: datetime) -> datetime:
        """Return when the ladder is due next. Raises ValueError, which names key and value."""
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"timezone {self.timezone!r} is not known, such as Europe/Berlin") from None
        try:
            return next(CronSim(self.cron, after.astimezone(zone)))
        except CronSimError as error:
            raise ValueError(f"cron {self.cron!r}: {error}") from None
        except StopIteration:
            raise ValueError(f"cron {self.cron!r} is never due") from None


class Workspace(BaseModel):
    """rft.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    agents: tuple[str, ...] = ()
    slots: int = Field(default=1, ge=1)
    schedules: dict[str, Schedule] = {}
    ledger: dict[str, Any] | None = None
    """The ledger, and where it is shared (tasks/ledger/remote.py)."""

    @field_validator("agents")
    @classmethod
    def _normal(cls, folders: Sequence[str]) -> tuple[str, ...]:
        found: list[str] = []
        for folder in folders:
            path = PurePosixPath(folder)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{folder!r} is not a folder below the top of the repository")
            found.append("" if path == PurePosixPath() else path.as_posix())
        if len(set(found)) < len(found):
            raise ValueError("a folder is named twice")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    folder: str
    """The path from the top; empty: the top itself."""

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.folder or 'at the top'})"


def read(root: Path) -> Workspace | None:
    """Read rft.yaml; None where there is none. Raises ConfigError, which names file and key."""
    path = root / FILE
    if not path.exists():
        return None
    raw = config.read_yaml(path, FILE) or {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{FILE}: holds {type(raw).__name__}, expected keys such as 'agents:'")
    return config.parse(raw, FILE, Workspace)


def write(root: Path, workspace: Workspace) -> None:
    named = {"agents": [folder or "." for folder in workspace.agents]}
    files.write_text(_HEAD + yaml.safe_dump(named, sort_keys=False), root / FILE)


def add(root: Path, folder: str) -> None:
    """Add an agent's folder to rft.yaml, and leave the rest of the file as it is. Raises UserError
    where that is not possible."""
    path = root / FILE
    text, before = path.read_text(encoding="utf-8"), read(root) or Workspace()
    lines = text.splitlines(keepends=True)
    at = next((number for number, line in enumerate(lines) if line.startswith("agents:")), None)
    if at is None:
        text += f"agents:\n- {folder}\n"
    elif lines[at].split("#")[0].strip() in ("agents:", "agents: []"):
        text = "".join([*lines[:at], "agents:\n", f"- {folder}\n", *lines[at + 1 :]])
    else:
        text = text.replace(lines[at], lines[at].replace("[", f"[{folder}, ", 1), 1)
    try:
        made = Workspace.model_validate(yaml.safe_load(text))
    except (ValueError, yaml.YAMLError):
        made = None
    if made is None or set(made.agents) != {folder, *before.agents}:
        raise UserError(f"{FILE}: write the new agent into it by hand: {folder}, below 'agents:'")
    files.write_text(text, path)


def set_ledger(root: Path, ledger: dict[str, Any]) -> None:
    """Write section `ledger` of rft.yaml anew, and leave the rest of the file as it is."""
    path = root / FILE
    text = re.sub(
        r"(?m)^(?:# The ledger of approvals.*\n(?:#.*\n)*)?ledger:.*\n(?:[ \t].*\n|\n)*",
        "",
        path.read_text(encoding="utf-8"),
    )
    gap = "" if text.endswith("\n") else "\n"
    files.write_text(f"{text}{gap}{_OF_LEDGER}{yaml.safe_dump({'ledger': ledger}, sort_keys=False)}", path)


def folders(root: Path) -> tuple[str, ...]:
    """List the agents' folders, from the top."""
    workspace = read(root)
    return ("",) if workspace is None else workspace.agents


def agents(root: Path) -> list[Agent]:
    """List the workspace's agents, except those that a sparse checkout leaves out. Raises UserError
    for a folder that is not an agent, and for two agents of one name."""
    found = [Agent(name(root, folder), folder) for folder in folders(root) if not _left_out(root, folder)]
    by_name: dict[str, str] = {}
    for agent in found:
        if (other := by_name.setdefault(agent.name, agent.folder)) != agent.folder:
            remedy = f"Give one of them another name: `agent: NAME` in {agent.folder or '.'}/params.yaml"
            raise UserError(f"{other or '.'} and {agent.folder or '.'} are both named {agent.name!r}. {remedy}")
    return found


def _left_out(root: Path, folder: str) -> bool:
    """Say whether Git has the folder but must not check it out (skip-worktree)."""
    return not (root / folder).exists() and git(root, "ls-files", "-t", "--", f"{folder}/params.yaml").startswith("S ")


def name(root: Path, folder: str) -> str:
    """Return an agent's name. Raises UserError for a folder that is not an agent."""
    for needed in NEEDED:
        if not (root / folder / needed).exists():
            remedy = f"If the folder has moved, name its new place in {FILE}; else remove it there"
            raise UserError(f"{FILE}: agents: {folder or '.'} has no {needed}. {remedy}")
    path = root / folder / "params.yaml"
    raw = config.read_yaml(path, str(path.relative_to(root)))
    raw = raw if isinstance(raw, dict) else {}
    recipe = raw.get("recipe")
    given = raw.get("agent") or (Path(str(recipe.get("path", ""))).name if isinstance(recipe, dict) else "")
    return str(given or config.Recipe().path.rsplit("/", 1)[-1])


def choose(root: Path, here: Path, wanted: str | None) -> str | None:
    """Return the folder of the named agent, or of the one around `here`, or of the only one; None
    where several are possible."""
    if wanted is None and read(root) is None:
        return ""
    every = agents(root)
    if wanted is not None:
        if (folder := {agent.name: agent.folder for agent in every}.get(wanted)) is None:
            known = did_you_mean(wanted, [agent.name for agent in every]) if every else "There is none yet."
            raise UserError(f"--agent {wanted}: no agent of this workspace has that name. {known}")
        return folder
    around = [agent.folder for agent in every if here.is_relative_to(root / agent.folder)]
    if around:
        return max(around, key=len)
    return every[0].folder if len(every) == 1 else None
