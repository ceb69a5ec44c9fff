"""The registration: under which thresholds, and as which look, a run's test set is opened.

It comes in two files. `Opening` names the look alone, and stage `challenger` depends on it: so what
was measured before the look was registered, by hand or in another run, is never taken for its
result, and what was measured after is, under whatever thresholds it is judged. Stage `gate` depends
on `Registration`, which has the rest.
"""

from __future__ import annotations

from pydantic import Field

from rft.reports.base import Report


def _is_none(value: object) -> bool:
    return value is None


class Opening(Report):
    """`data/registration/opening.json`: what lets stage `challenger` open the test examples.
    Written by the flow; the copy in Git lets nobody."""

    look: str = ""
    """The ledger's entry that registered this look first, by its SHA-256; `NOTHING_NEW` where there
    is no candidate, and the champion alone is measured."""
    test_sha256: str = ""
    """Of the test examples that may be opened."""


NOTHING_NEW = "nothing new"


class Registration(Report):
    """`data/registration/registration.json`, written by the flow. The copy in Git says that nobody
    registered anything: what is decided by hand asks nobody to promote it."""

    registered: bool = False
    entry: int = 0
    """Of the ledger."""
    look: int = 0
    looks: int = 0
    """How many the thresholds allow."""
    level: float | None = Field(default=None, exclude_if=_is_none)
    """The one-sided level at which the gate asks for each candidate. None: not registered, or by an
    earlier version."""
    by_policy: bool = False
    """Whether the thresholds are those that the ledger's policy holds. With others, the run ends
    with a decision, and nobody is asked to promote it."""

    @property
    def description(self) -> str:
        if not self.registered:
            return "not registered in the ledger, so nobody is asked to promote it"
        look = f"look {self.look} of {self.looks} at this test set, registered as entry {self.entry}"
        other = "with other thresholds than the policy's: nobody is asked to promote it"
        return look if self.by_policy else f"{look} {other}"
