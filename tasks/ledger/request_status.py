"""The status of a request: it waits for people, or it cannot be approved any more, and why.

One function gives the status for every list and page: `rft runs`, `rft ledger`, an exported agent.
It uses the rules of `authorise`, so a request that waits is one that can still be approved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rft import commands
from tasks.ledger import authorise
from tasks.ledger.approval_status import ApprovalStatus
from tasks.ledger.facts import RequestState
from tasks.ledger.state import State

Kind = Literal["waits", "champion", "was champion", "rejected", "superseded", "expired"]


@dataclass(frozen=True)
class RequestStatus:
    kind: Kind
    description: str
    approval_status: ApprovalStatus
    approve: str | None
    """The command that approves it, or promotes it if it has enough approvals; None: nobody can."""


def status(state: State, request: RequestState, time: str) -> RequestStatus:
    """Return the status of a request at this time."""
    kind, description = _kind(state, request, time)
    is_dirty = request.act.edits_sha256 is not None and not authorise.overriding(state, request, time)
    override = ["--override-dirty"] if is_dirty else []
    approve = commands.command("approve", request.act.run, *commands.WHY, *override)
    needs = ", and an owner's override of uncommitted code" if is_dirty else ""
    return RequestStatus(
        kind,
        description + (needs if kind == "waits" else ""),
        authorise.approval_status(state, request, time),
        approve if kind == "waits" else None,
    )


def open_requests(state: State, time: str) -> list[tuple[RequestState, RequestStatus]]:
    """Return the requests that wait for people, oldest first."""
    every = [(request, status(state, request, time)) for request in state.requests.values()]
    return [(request, request_status) for request, request_status in every if request_status.kind == "waits"]


def _kind(state: State, request: RequestState, time: str) -> tuple[Kind, str]:
    asked, served = request.act, state.champion(request.act.model)
    if served in request.promoted:
        return "champion", "champion"
    if no := state.rejection_of(asked):
        return "rejected", f"rejected by {no.person}"
    found = authorise.approval_status(state, request, time)
    is_closed = asked.champion != served or time > asked.expires
    if request.promoted and (is_closed or not found.counting):  # otherwise somebody has approved it again
        return "was champion", "was champion"
    if asked.champion != served:
        return "superseded", f"superseded: {authorise.describe(served)} is served now"
    if time > asked.expires:
        return "expired", f"expired on {asked.expires}"
    if found.is_enough:
        return "waits", f"has {len(found.counting)} of {found.needed} approvals, and is not promoted yet"
    return "waits", f"waits: {len(found.counting)} of {found.needed} approvals"
