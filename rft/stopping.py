"""A stop in order: a stage is asked to end before its end, and does so where nothing is lost.

Two things ask. `run.max_hours` is a moment in time (RFT_DEADLINE, seconds since 1970), and `rft
cancel` a file beside the run's record. A stage looks where its work is on the disk: after an
optimizer step with its checkpoint (train, policy), before the next batch of rollouts (baseline,
prompt, challenger). It raises `Stopped`, whose exit code tells the driver that this was no failure;
started again, it goes on from there. A stage that was started by hand belongs to no run, and
nothing stops it but its user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rft import files
from rft.errors import Stopped

RUN = "RFT_RUN"
"""The environment variable in which a stage finds the name of its run."""
DEADLINE = "RFT_DEADLINE"
BY_CANCEL, BY_LIMIT = "rft cancel asked for it", "run.max_hours is spent"


def request(state: Path, run: str) -> Path:
    """The file by which `rft cancel` asks."""
    return state / "runs" / f"{run}.stop"


def asked() -> str:
    """Why the stage should end now; empty: it goes on."""
    if (run := os.environ.get(RUN)) and request(files.state(), run).exists():
        return BY_CANCEL
    return BY_LIMIT if time.time() >= float(os.environ.get(DEADLINE) or "inf") else ""


def check(where: str, keep: Callable[[], None] | None = None) -> None:
    """Raises Stopped when it was asked for, after `keep` has brought to the disk what is not there
    yet. `where`: such as `after step 12 of 80`."""
    if why := asked():
        if keep is not None:
            keep()
        raise Stopped(f"stopped in order {where}: {why}")
