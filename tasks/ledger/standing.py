"""What people said about a request that counts at a moment: its approvals and its overrides.

What somebody signed stays in the chain, and stops counting when they lose the role or the key, when
it expires, when the ledger is restarted, or when four eyes become the rule and the run is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.ledger.facts import Facts, Said, Waiting
from tasks.ledger.policy import Role
from tasks.ledger.statement import Statement, later

DECIDES: tuple[Role, ...] = ("owner", "approver")


@dataclass(frozen=True)
class Standing:
    """How far a request has come."""

    counting: tuple[Said, ...]
    needed: int
    why: str
    """Why so many."""

    @property
    def is_enough(self) -> bool:
        return len(self.counting) >= self.needed


def standing(state: Facts, waiting: Waiting, time: str) -> Standing:
    rules = state.policy.rules_of(waiting.act.model)
    needed, why = rules.approvers, "rules.approvers"
    if rules.four_eyes and waiting.starter is None:
        needed, why = needed + 1, "one more than rules.approvers, because no enrolled key says who started the run"
    return Standing(tuple(counting(state, waiting, time)), needed, why)


def counting(state: Facts, waiting: Waiting, time: str) -> list[Said]:
    """The approvals that count now: one for each person who still has the role and the key."""
    found: dict[str, Said] = {}
    for said in waiting.approvals:
        if _stands(state, waiting, said, DECIDES, time) and not is_own(state, waiting, said.person):
            found.setdefault(said.person, said)
    return list(found.values())


def overriding(state: Facts, waiting: Waiting, time: str) -> list[Said]:
    """The overrides of uncommitted code that still stand."""
    stand = [said for said in waiting.overrides if _stands(state, waiting, said, ("owner",), time)]
    return [said for said in stand if not is_own(state, waiting, said.person)]


def _stands(state: Facts, waiting: Waiting, said: Said, roles: Iterable[Role], time: str) -> bool:
    """Whether what a person said still counts: they have the role and the key, it has not expired,
    and the ledger was not restarted since."""
    statement, person = said.voice.statement, said.person
    holds = state.policy.person_of(said.voice.key) == person and {*state.policy.roles_of(person)} & {*roles}
    return bool(holds) and statement.ledger == state.genesis and time <= end(state, waiting, statement)


def end(state: Facts, waiting: Waiting, said: Statement) -> str:
    """Until when a statement about a request counts: as it says, or less, by the rules."""
    return min(said.expires, later(said.time, days=state.policy.rules_of(waiting.act.model).approval_days))


def is_own(state: Facts, waiting: Waiting, person: str) -> bool:
    """Whether four eyes forbid this person to approve."""
    return state.policy.rules_of(waiting.act.model).four_eyes and person == waiting.starter_name
