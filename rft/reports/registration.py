"""The registration: under which thresholds, and as which look, a run's test set is opened.

It has two files. `Opening` names only the look, and stage `challenger` depends on it. So a
measurement from before the look was registered, by hand or in another run, never counts as its
result. A measurement from after it counts, whatever thresholds judge it. Stage `gate` depends on
`Registration`, which has the rest.
"""

from __future__ import annotations

from pydantic import Field

from rft.reports.base import Report


def _is_none(value: object) -> bool:
    return value is None


class Opening(Report):
    """`data/registration/opening.json`, written by the flow: it lets stage `challenger` open the
    test examples. The copy in Git does not allow that."""

    look: str = ""
    """SHA-256 of the ledger's entry that registered this look first. `NOTHING_NEW` where there is
    no candidate, and only the champion is measured."""
    test_sha256: str = ""
    """Hash of the test examples that may be opened."""


NOTHING_NEW = "nothing new"


class Registration(Report):
    """`data/registration/registration.json`, written by the flow. The copy in Git says that nothing
    is registered, so a decision that is made by hand asks nobody to promote it."""

    registered: bool = False
    entry: int = 0
    """Its number in the ledger."""
    look: int = 0
    looks: int = 0
    """How many looks the thresholds allow."""
    level: float | None = Field(default=None, exclude_if=_is_none)
    """The one-sided level at which the gate judges each candidate. None: not registered, or
    registered by an earlier version."""
    by_policy: bool = False
    """Whether the thresholds are those of the ledger's promotion policy. With others, the run ends
    with a decision, and nobody is asked to promote it."""

    @property
    def description(self) -> str:
        if not self.registered:
            return "not registered in the ledger, so nobody is asked to promote it"
        look = f"look {self.look} of {self.looks} at this test set, registered as entry {self.entry}"
        other = "with other thresholds than the policy's: nobody is asked to promote it"
        return look if self.by_policy else f"{look} {other}"
