"""Record what a run works with: Python, agent-rft and every installed package.

constraints.txt pins what was asked for; this list says what was installed. The list goes into the
run's revision, and its hash into the record in the commit's message. So a list that was replaced is
noticed.
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
    """Add what is installed now to the list in a run's folder, after the run's earlier starts."""
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
    """Return the hash of the list; None where a run's folder has none."""
    path = tree / stage_files.ENVIRONMENT
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


@cache
def installed() -> dict[str, str]:
    """Return name -> version of every installed distribution, in order of name. Cached: what a
    process has loaded does not change."""
    read = (each.metadata for each in metadata.distributions())  # each access parses a file
    found = {each["Name"]: each["Version"] for each in read if each["Name"]}
    return dict(sorted(found.items(), key=lambda row: row[0].casefold()))
