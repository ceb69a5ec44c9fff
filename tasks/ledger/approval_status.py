"""Which approvals and overrides of a request count at a given time.

A signed statement stays in the chain. It stops counting when the person loses the role or the key,
when it expires, or when the ledger is restarted. It also stops counting when four eyes become the
rule and the person started the run.
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
    """The approvals that a request has and needs."""

    counting: tuple[SignedEntry, ...]
    needed: int
    why: str
    """Why so many are needed."""

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
    """Return the approvals that count at this time: one for each person who still has the role and
    the key."""
    found: dict[str, SignedEntry] = {}
    for approval in request.approvals:
        if _stands(state, request, approval, DECIDES, time) and not is_own(state, request, approval.person):
            found.setdefault(approval.person, approval)
    return list(found.values())


def overriding(state: Facts, request: RequestState, time: str) -> list[SignedEntry]:
    """Return the overrides of uncommitted code that still stand."""
    stand = [override for override in request.overrides if _stands(state, request, override, ("owner",), time)]
    return [override for override in stand if not is_own(state, request, override.person)]


def _stands(state: Facts, request: RequestState, signed: SignedEntry, roles: Iterable[Role], time: str) -> bool:
    """Say whether a person's statement still counts: the person has the role and the key, the
    statement has not expired, and the ledger was not restarted since."""
    statement, person = signed.verified_statement.statement, signed.person
    holds = state.policy.person_of(signed.verified_statement.key) == person and {*state.policy.roles_of(person)} & {
        *roles
    }
    return bool(holds) and statement.ledger == state.genesis and time <= end(state, request, statement)


def end(state: Facts, request: RequestState, statement: Statement) -> str:
    """Return until when a statement about a request counts: the earlier of its own limit and that
    of the rules."""
    return min(statement.expires, later(statement.time, days=state.policy.rules_of(request.act.model).approval_days))


def is_own(state: Facts, request: RequestState, person: str) -> bool:
    """Say whether the rule of four eyes forbids this person to approve."""
    return state.policy.rules_of(request.act.model).four_eyes and person == request.starter_name
