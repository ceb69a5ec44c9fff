"""Section `run`: how long a run may work, how long its files are kept, and who is told of it.

No stage reads it, and it is not part of a run's identity. A run that stopped at its limit continues
as the same run when the limit is raised. A shorter retention repeats no stage, and neither does a
new address for messages or events.
"""

from __future__ import annotations

from pydantic import Field

from rft.config.notify import Notify
from rft.config.openlineage import OpenLineage
from rft.config.section import Section


class Retention(Section):
    """Age in days after which `rft runs gc` may remove files. null: never.

    It never removes a revision, the ledger, or files that a champion, a request for promotion or an
    unfinished run needs.
    """

    work_days: float | None = Field(default=14.0, ge=0, allow_inf_nan=False)
    """For unfinished work of stages (`.rft/progress`), counted from its last change. Also for
    snapshots of logs (`.rft/snapshots`), counted from their last use, and for what killed commands
    left in `.rft`."""
    logs_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """For output of stages and servers (`.rft/logs`)."""
    pages_days: float | None = Field(default=365.0, ge=0, allow_inf_nan=False)
    """For HTML pages of runs, and findings of `rft traffic drift` (`.rft/reports`, `.rft/cache`).
    `rft runs report` can write a run's page again while the run's files are in the cache."""
    cache_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """For files in DVC's cache that only runs use, and no branch or tag. The age counts from the
    end of the latest of these runs. The runs' revisions stay."""


class Run(Section):
    """How long a run may work, how long its files are kept, and who is told of it. After a change
    here a run is still the same run."""

    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Hours that a run may work, over all its starts. After them it stops at its next checkpoint.
    The same command with a higher limit continues it. null: no limit."""
    retention: Retention = Retention()
    """Which files `rft runs gc` may remove, by age."""
    notify: Notify = Notify()
    """Who is told that a request waits for approval, and that a scheduled run failed
    (docs/notify.md)."""
    openlineage: OpenLineage | None = None
    """Where the run's lineage events go while it works (docs/exports.md). null: nowhere."""
