"""The engine that a stage ran: its hashes in data/engine, compared with code that is at hand.

In a development clone the revision holds the engine, and the hashes must be those of its files.
Elsewhere the engine was installed. Then its hashes are those of the package that is installed here,
or of another version, which one can install to verify them. The versions of packages must be those
that the run's list names (data/environment.json).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from packaging.utils import canonicalize_name

from rft import engine as rft_engine
from rft import files, needs, reports, stage_files
from rft.formatting import counted
from rft.process import ROOT
from rft.reports.environment import Environment
from tasks.audit.graph import altered, unverifiable
from tasks.audit.recorded import Recorded
from tasks.runs import engine


def verify(run: Recorded, stage: str) -> str:
    """Say which engine a stage ran. Raises Broken."""
    own, pins = needs.engine(stage)
    modules = _read(run, own)
    tool = _packages(run, _read(run, pins))
    theirs = {name: modules.pop(name) for name in [*modules] if name.startswith(rft_engine.THEIRS)}
    modules.pop(rft_engine.PYTHON, None)  # it belongs to an interpreter that may be elsewhere
    above = {name: name.removeprefix(rft_engine.THEIRS) for name in theirs}
    if changed := [above[name] for name, sha256 in theirs.items() if _recorded_sha256(run, above[name]) != sha256]:
        raise altered(f"{', '.join(changed[:3])} of the revision is not what stage {stage} ran, according to {own}")
    told = f"{counted(len(modules), 'module')} of the engine hashed again"
    told += f" and {counted(len(theirs), 'file')} that the recipe imports" if theirs else ""
    if engine.START in run.everything:
        changed = [name for name, sha256 in modules.items() if _recorded_sha256(run, name) != sha256]
        if changed:
            raise altered(f"{', '.join(changed[:3])} of the revision is not what stage {stage} ran, according to {own}")
        return f"{told}, from the revision"
    changed = [name for name, sha256 in modules.items() if _sha256(ROOT / name) != sha256]
    if not changed:
        return f"{told}, from the installed package"
    what = f"{len(changed)} of {counted(len(modules), 'module')}, such as {changed[0]}"
    raise unverifiable(f"it ran another version of the engine, of agent-rft {tool}: {what}, differ from those here")


def _packages(run: Recorded, pins: dict[str, str]) -> str:
    """Compare the pins with the run's list of packages. Return the version of agent-rft."""
    path = str(stage_files.ENVIRONMENT)
    content = run.ctx.store.file(run.at.commit, run.at.from_the_top(path))
    for start in reports.parse(Environment, content or b"", path).starts:
        listed = {canonicalize_name(name): version for name, version in start.packages.items()}
        if all(listed.get(canonicalize_name(name)) == version for name, version in pins.items()):
            return start.tool
    raise altered(f"{needs.PINS} names other versions of packages than {path}")


def _read(run: Recorded, path: str) -> dict[str, str]:
    try:
        found = json.loads(run.ctx.store.file(run.at.commit, run.at.from_the_top(path)) or b"")
    except (ValueError, RecursionError) as error:
        raise altered(f"{path} of the revision is not as a run writes it ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise altered(f"{path} of the revision is not as a run writes it")
    return found


def _recorded_sha256(run: Recorded, name: str) -> str | None:
    return hashlib.sha256(run.ctx.store.blob(run.everything[name])).hexdigest() if name in run.everything else None


def _sha256(path: Path) -> str | None:
    return files.sha256(path) if path.is_file() else None
