"""Stop a stage before its end on request, at a point where no work is lost.

There are two requests: `run.max_hours`, which sets a moment (RFT_DEADLINE, seconds since 1970), and
`rft runs cancel`, which writes a file beside the run's record. A stage looks for them where its
work is on the disk. Train and policy look after an optimizer step with its checkpoint; baseline,
prompt and challenger look before the next batch of rollouts. Then the stage raises `Stopped`, whose
exit code tells the driver that this is not a failure. When it is started again, the stage continues
from there. A stage that was started by hand belongs to no run, and only its user stops it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rft import files
from rft.errors import Stopped

RUN = "RFT_RUN"
"""The environment variable that holds the name of a stage's run."""
DEADLINE = "RFT_DEADLINE"
BY_CANCEL, BY_LIMIT = "rft runs cancel asked for it", "run.max_hours is spent"


def request(state: Path, run: str) -> Path:
    """Name the file by which `rft runs cancel` asks."""
    return state / "runs" / f"{run}.stop"


def asked() -> str:
    """Say why the stage should end now; empty if it should go on."""
    if (run := os.environ.get(RUN)) and request(files.state(), run).exists():
        return BY_CANCEL
    return BY_LIMIT if time.time() >= float(os.environ.get(DEADLINE) or "inf") else ""


def check(where: str, keep: Callable[[], None] | None = None) -> None:
    """Raise Stopped when a stop was asked for, after `keep` has written the rest to the disk.
    `where`: such as `after step 12 of 80`."""
    if why := asked():
        if keep is not None:
            keep()
        raise Stopped(f"stopped in order {where}: {why}")
