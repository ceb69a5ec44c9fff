"""What people said about a request that counts at a moment: its approvals and its overrides.

What somebody signed stays in the chain, and stops counting when they lose the role or the key, when
it expires, when the ledger is restarted, or when four eyes become the rule and the run is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.ledger.facts import Facts, RequestState, SignedEntry
from tasks.ledger.policy import Role
from tasks.ledger.statement import Statement, later

DECIDES: tuple[Role, ...] = ("owner", "approver")


@dataclass(frozen=True)
class ApprovalStatus:
    """How far a request has come."""

    counting: tuple[SignedEntry, ...]
    needed: int
    why: str
    """Why so many."""

    @property
    def is_enough(self) -> bool:
        return len(self.counting) >= self.needed


def approval_status(state: Facts, request: RequestState, time: str) -> ApprovalStatus:
    rules = state.policy.rules_of(request.act.model)
    needed, why = rules.approvers, "rules.approvers"
    if rules.four_eyes and request.starter is None:
        needed, why = needed + 1, "one more than rules.approvers, because no enrolled key says who started the run"
    return ApprovalStatus(tuple(counting(state, request, time)), needed, why)


def counting(state: Facts, request: RequestState, time: str) -> list[SignedEntry]:
    """The approvals that count now: one for each person who still has the role and the key."""
    found: dict[str, SignedEntry] = {}
    for approval in request.approvals:
        if _stands(state, request, approval, DECIDES, time) and not is_own(state, request, approval.person):
            found.setdefault(approval.person, approval)
    return list(found.values())


def overriding(state: Facts, request: RequestState, time: str) -> list[SignedEntry]:
    """The overrides of uncommitted code that still stand."""
    stand = [override for override in request.overrides if _stands(state, request, override, ("owner",), time)]
    return [override for override in stand if not is_own(state, request, override.person)]


def _stands(state: Facts, request: RequestState, signed: SignedEntry, roles: Iterable[Role], time: str) -> bool:
    """Whether what a person said still counts: they have the role and the key, it has not expired,
    and the ledger was not restarted since."""
    statement, person = signed.verified_statement.statement, signed.person
    holds = state.policy.person_of(signed.verified_statement.key) == person and {*state.policy.roles_of(person)} & {
        *roles
    }
    return bool(holds) and statement.ledger == state.genesis and time <= end(state, request, statement)


def end(state: Facts, request: RequestState, statement: Statement) -> str:
    """Until when a statement about a request counts: as it says, or less, by the rules."""
    return min(statement.expires, later(statement.time, days=state.policy.rules_of(request.act.model).approval_days))


def is_own(state: Facts, request: RequestState, person: str) -> bool:
    """Whether four eyes forbid this person to approve."""
    return state.policy.rules_of(request.act.model).four_eyes and person == request.starter_name
