"""What another version of agent-rft means for an agent: new files, and stages that run again.

Each version writes the agent's stages (dvc.yaml), and lines of .gitignore and .dvcignore in its
folder. A run records the hash of each module that a stage can load (rft/engine.py). So the effect
of the installed version is known before a run. Stages whose modules or packages have other bytes
run again, and then the stages that read their files. The ledger, runs and champions do not change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rft import config, files, needs, reports, stage_files
from rft.errors import UserError
from rft.process import ROOT
from rft.reports.environment import Environment
from tasks import dependencies
from tasks.runs import agent_folder, engine, records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.git import GitError

KEPT = ".edited"
"""The ending of the copy that is kept of a hand-edited file when the file is written anew."""


@dataclass(frozen=True)
class Outlook:
    """What this version means for an agent."""

    run: str | None
    """The newest run that is over."""
    version: str | None
    """The version of agent-rft that drove it."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """Stage -> the modules and packages that make it run again. Empty for an old run without
    hashes: all of its stages run again."""


def outlook(clone: Clone, params: config.Params) -> Outlook:
    """Compare the agent's newest run with what is installed."""
    newest = next((record for record in reversed(records.of_agent(clone)) if record.revision), None)
    if newest is None or newest.revision is None:
        return Outlook(None, None)
    at = Revision(clone, newest.revision)
    before = {stage: _read(at, needs.engine(stage)[0]) for stage in needs.NEEDS}
    now = engine.hashes(clone.home, params.recipe, clone.state)
    return Outlook(newest.name, _version(at), _changed(before, now, _read(at, needs.PINS)))


def _changed(
    before: dict[str, dict[str, str]], now: dict[str, dict[str, str]], pins: dict[str, str]
) -> dict[str, list[str]]:
    packages = _differing(pins, now[needs.PINS])
    found = {
        stage: [*packages, *_differing(hashes, now[needs.engine(stage)[0]])]
        for stage, hashes in before.items()
        if hashes  # the run got to this stage
    }
    return {stage: names for stage, names in found.items() if names}


def _differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _read(at: Revision, path: str) -> dict[str, str]:
    try:
        found = json.loads(at.file(path) or b"{}")
    except (ValueError, RecursionError):  # not as a run writes it: rft audit says so
        return {}
    return found if isinstance(found, dict) else {}


def _version(at: Revision) -> str | None:
    content = at.file(str(stage_files.ENVIRONMENT))
    return reports.parse(Environment, content, str(stage_files.ENVIRONMENT)).starts[-1].tool if content else None


# -- the agent's own files -------------------------------------------------------------------------
def stale(clone: Clone) -> list[str]:
    """Return the names of our files whose content this version would write differently."""
    return [name for name, text in _ours(clone).items() if not _is(clone.home / name, text)]


def rewrite(clone: Clone) -> list[tuple[str, str | None]]:
    """Write these files anew. Return each name, with the copy that was made if somebody had edited
    the file."""
    made: list[tuple[str, str | None]] = []
    for name in stale(clone):
        place = clone.home / name
        kept = None
        if place.exists() and name == "dvc.yaml" and dependencies.is_edited(place.read_text(encoding="utf-8")):
            kept = f"{name}{KEPT}"
            files.write_text(place.read_text(encoding="utf-8"), clone.home / kept)
        files.write_text(_text(place, _ours(clone)[name]), place)
        made.append((name, kept))
    return made


def refuse_stale(clone: Clone) -> None:
    """Raise UserError for an agent's folder that Git ignores, and for a dvc.yaml that this version
    did not write. In a clone of agent-rft the developer is responsible for dvc.yaml."""
    place = clone.home / "dvc.yaml"
    if _is_ignored(clone, clone.from_the_top("params.yaml")):
        what = f"{clone.folder or '.'}: Git ignores it, so no run can record it"
        raise UserError(f"{what}. Take it out of .gitignore, then: git add {clone.folder or '.'}")
    if (clone.root / engine.START).exists() or "dvc.yaml" not in stale(clone):
        return
    name = clone.from_the_top("dvc.yaml")
    if not place.exists():
        raise UserError(f"{name}: missing. It has the stages of a run. Write it: rft upgrade")
    if dependencies.is_edited(place.read_text(encoding="utf-8")):
        keeps = f"It keeps a copy, dvc.yaml{KEPT}"
        raise UserError(f"{name} was edited by hand, and says what a run does. Write it anew: rft upgrade. {keeps}.")
    raise UserError(f"{name} was written by another version of agent-rft. See what changes: rft upgrade --check")


def _is_ignored(clone: Clone, path: str) -> bool:
    try:
        clone.git("check-ignore", "--quiet", "--", path)  # a tracked file is not ignored
    except GitError:
        return False
    return True


def _ours(clone: Clone) -> dict[str, str]:
    lists = {".gitignore": agent_folder.IGNORED, ".dvcignore": agent_folder.NOT_WALKED}
    return {"dvc.yaml": dependencies.render(ROOT), **(lists if clone.folder else {})}


def _is(place: Path, text: str) -> bool:
    if not place.exists():
        return False
    there = place.read_text(encoding="utf-8")
    return there == text if place.name == "dvc.yaml" else set(text.splitlines()) <= set(there.splitlines())


def _text(place: Path, text: str) -> str:
    """Return the new text, with the lines that the user added to an ignore list."""
    if place.name == "dvc.yaml" or not place.exists():
        return text
    ours = set(text.splitlines())
    added = [line for line in place.read_text(encoding="utf-8").splitlines() if line and line not in ours]
    return text + "".join(f"{line}\n" for line in added)
