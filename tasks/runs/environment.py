"""Write down with what a run works: Python, agent-rft and every installed package.

The stages' pins are in constraints.txt, which says what was asked for; this says what was there. It
goes into the run's revision, and its hash into the record in the commit's message, so that a list
that was replaced is found out.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from rft import reports, stage_files
from rft.reports.environment import Environment, Start


def record(tree: Path, started: str) -> None:
    """Write what is installed now into a run's folder, after what earlier starts of it had."""
    path = tree / stage_files.ENVIRONMENT
    before = reports.read(Environment, path).starts if path.exists() else []
    now = Start(
        started=started,
        python=platform.python_version(),
        platform=platform.platform(),
        tool=metadata.version("agent-rft"),
        packages=installed(),
    )
    if not before or before[-1].model_copy(update={"started": started}) != now:
        reports.write(Environment(starts=[*before, now]), path)


def sha256(tree: Path) -> str | None:
    """Of what was written; None where a run's folder has none."""
    path = tree / stage_files.ENVIRONMENT
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


@cache
def installed() -> dict[str, str]:
    """Name -> version of every installed distribution, by name. What a process has loaded stays."""
    read = (each.metadata for each in metadata.distributions())  # once: each time is a file to parse
    found = {each["Name"]: each["Version"] for each in read if each["Name"]}
    return dict(sorted(found.items(), key=lambda row: row[0].casefold()))
