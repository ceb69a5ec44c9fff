"""Section `run`: how long a run may work, how long its files are kept, and who is told of it.

No stage reads it, and it is not part of a run's identity. A run that stopped at its limit goes on
as the same run when the limit is raised, and a shorter retention repeats nothing. A new address for
its messages or events repeats nothing either.
"""

from __future__ import annotations

from pydantic import Field

from rft.config.notify import Notify
from rft.config.openlineage import OpenLineage
from rft.config.section import Section


class Retention(Section):
    """What `rft runs gc` may remove, by age in days. null: keep it forever.

    It never removes a revision, the ledger, or what a champion, a request for promotion or an
    unfinished run needs.
    """

    work_days: float | None = Field(default=14.0, ge=0, allow_inf_nan=False)
    """Unfinished work of stages (`.rft/progress`), since it last changed; snapshots of logs
    (`.rft/snapshots`), since they were last used; and leftovers of killed commands in `.rft`."""
    logs_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """Output of stages and servers (`.rft/logs`)."""
    pages_days: float | None = Field(default=365.0, ge=0, allow_inf_nan=False)
    """HTML pages of runs, and findings of `rft traffic drift` (`.rft/reports`, `.rft/cache`).
    `rft runs report` writes a run's page again, as long as the run's files are in the cache."""
    cache_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """Files in DVC's cache that only runs refer to, and no branch or tag, since the end of the
    latest of these runs. The runs' revisions stay."""


class Run(Section):
    """How long a run may work, how long its files are kept, and who is told of it. Changes here
    leave a run the same run."""

    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Hours of work, over all starts of a run. After that it stops at its next checkpoint; the same
    command with a higher limit continues it. null: no limit."""
    retention: Retention = Retention()
    """What `rft runs gc` may remove, by age."""
    notify: Notify = Notify()
    """Who is told that a request waits for approval, and that a scheduled run failed
    (docs/notify.md)."""
    openlineage: OpenLineage | None = None
    """Where the run's lineage events go while it goes on (docs/exports.md). null: nowhere."""
