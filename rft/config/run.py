"""Section `run`: how long a run may work, and what is kept of runs. No stage reads it, and it is no
part of what a run is.

So a run that stopped at its limit goes on as the same run when the limit is raised, and a shorter
retention repeats nothing.
"""

from __future__ import annotations

from pydantic import Field

from rft.config.section import Section


class Retention(Section):
    """What `rft gc` may remove, by age in days; null keeps it for ever.

    Whatever its age, nothing goes that a champion, a request for promotion or an unfinished run
    needs; and never a revision or the ledger.
    """

    work_days: float | None = Field(default=14.0, ge=0, allow_inf_nan=False)
    """Unfinished work of stages (`.rft/progress`) that no stage has touched for so long, and what
    killed commands left in `.rft`."""
    logs_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """What stages and servers printed (`.rft/logs`)."""
    pages_days: float | None = Field(default=365.0, ge=0, allow_inf_nan=False)
    """The HTML pages of runs, and what `rft drift` found (`.rft/reports`, `.rft/cache`). `rft
    report` makes a run's page anew from its bytes, while they are there."""
    cache_days: float | None = Field(default=90.0, ge=0, allow_inf_nan=False)
    """Bytes in DVC's cache to which only runs refer that ended longer ago, and no branch or tag.
    Their revisions stay."""


class Run(Section):
    """How long a run may work, and what is kept of runs. It is no part of what a run is: changed,
    the same run goes on."""

    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Hours of work, added up over all starts of a run; then it stops in order at its next
    checkpoint, and the same command with a higher limit goes on with it. null: no limit."""
    retention: Retention = Retention()
    """What `rft gc` may remove, by age."""
