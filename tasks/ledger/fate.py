"""What became of a request: it waits for people, or it cannot be approved any more, and why.

One function says it for every list and page: `rft runs`, `rft ledger`, an exported agent. It asks
the rules that `authorise` asks, so nothing is shown as waiting that an approval would be refused
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rft import commands
from tasks.ledger import authorise
from tasks.ledger.facts import Waiting
from tasks.ledger.standing import Standing
from tasks.ledger.state import State

Kind = Literal["waits", "champion", "was champion", "rejected", "superseded", "expired"]


@dataclass(frozen=True)
class Fate:
    kind: Kind
    words: str
    standing: Standing
    approve: str | None
    """The command that approves it, or promotes what has approvals enough; None: nobody can."""


def of(state: State, waiting: Waiting, time: str) -> Fate:
    """What has become of a request by this time."""
    kind, words = _kind(state, waiting, time)
    is_dirty = waiting.act.edits_sha256 is not None and not authorise.overriding(state, waiting, time)
    override = ["--override-dirty"] if is_dirty else []
    approve = commands.command("approve", waiting.act.run, *commands.WHY, *override)
    needs = ", and an owner's override of uncommitted code" if is_dirty else ""
    return Fate(
        kind,
        words + (needs if kind == "waits" else ""),
        authorise.standing(state, waiting, time),
        approve if kind == "waits" else None,
    )


def open_requests(state: State, time: str) -> list[tuple[Waiting, Fate]]:
    """The requests that wait for people, oldest first."""
    every = [(waiting, of(state, waiting, time)) for waiting in state.requests.values()]
    return [(waiting, fate) for waiting, fate in every if fate.kind == "waits"]


def _kind(state: State, waiting: Waiting, time: str) -> tuple[Kind, str]:
    request, served = waiting.act, state.champion(waiting.act.model)
    if served in waiting.promoted:
        return "champion", "champion"
    if no := state.rejection_of(request):
        return "rejected", f"rejected by {no.person}"
    found = authorise.standing(state, waiting, time)
    is_closed = request.champion != served or time > request.expires
    if waiting.promoted and (is_closed or not found.counting):  # else somebody approved it again since
        return "was champion", "was champion"
    if request.champion != served:
        return "superseded", f"superseded: {authorise.in_words(served)} is served now"
    if time > request.expires:
        return "expired", f"expired on {request.expires}"
    if found.is_enough:
        return "waits", f"has {len(found.counting)} of {found.needed} approvals, and is not promoted yet"
    return "waits", f"waits: {len(found.counting)} of {found.needed} approvals"
