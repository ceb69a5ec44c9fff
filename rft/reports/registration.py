"""The registration: under which thresholds, and as which look, a run's test set is opened."""

from __future__ import annotations

from rft.reports.base import Report


class Registration(Report):
    """`data/registration/registration.json`, written by the flow. The copy in Git says that nobody
    registered anything: what is decided by hand asks nobody to promote it."""

    registered: bool = False
    entry: int = 0
    """Of the ledger."""
    look: int = 0
    looks: int = 0
    """How many the thresholds allow."""
    by_policy: bool = False
    """Whether the thresholds are those that the ledger's policy holds. With others, the run ends
    with a decision, and nobody is asked to promote it."""

    @property
    def words(self) -> str:
        if not self.registered:
            return "not registered in the ledger, so nobody is asked to promote it"
        look = f"look {self.look} of {self.looks} at this test set, registered as entry {self.entry}"
        other = "with other thresholds than the policy's: nobody is asked to promote it"
        return look if self.by_policy else f"{look} {other}"
