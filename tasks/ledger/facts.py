"""The facts that single entries of a ledger establish: statements, requests, looks, champions.

`State` (state.py) holds all of them. The modules that judge (approval_status.py, key_compromise.py)
need only `Facts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rft.gate import terms
from tasks.ledger.entry import Registration, Request
from tasks.ledger.policy import Policy, name_from
from tasks.ledger.statement import Statement

BEGINNING = 0
"""The number of the champion before any promotion: the base policy with the seed prompt."""


@dataclass(frozen=True)
class VerifiedStatement:
    """A verified statement, with the person who signed it, and their key."""

    person: str
    key: str
    statement: Statement


@dataclass(frozen=True)
class SignedEntry:
    """An entry with a person's statement."""

    number: int
    time: str
    verified_statement: VerifiedStatement

    @property
    def person(self) -> str:
        return self.verified_statement.person

    @property
    def reason(self) -> str:
        return self.verified_statement.statement.reason


@dataclass
class RequestState:
    """A request, and what people said about it."""

    number: int
    id: str
    time: str
    act: Request
    starter: VerifiedStatement | None
    """The signed start of the run, by the person who started it; None: unknown."""
    approvals: list[SignedEntry] = field(default_factory=list[SignedEntry])
    """The approvals since its last promotion: an approval counts for one promotion."""
    overrides: list[SignedEntry] = field(default_factory=list[SignedEntry])
    promoted: list[int] = field(default_factory=list[int])

    @property
    def starter_name(self) -> str:
        """The person who started the run: proven by a statement, or else what Git's user.name
        claims."""
        return self.starter.person if self.starter else name_from(self.act.started_by)


@dataclass(frozen=True)
class Look:
    """A registered look at a test set."""

    number: int
    time: str
    act: Registration
    by_policy: bool
    """Its thresholds were those of the policy. Only then may it lead to a request."""
    policy: str
    """The thresholds that the policy had then."""

    @property
    def what(self) -> tuple[object, ...]:
        """What the look measures. A second look at the same is the same look, and free."""
        return what_of(self.act)

    @property
    def price(self) -> float:
        """The part of alpha that it spends, for both candidates together."""
        gate = self.act.gate
        return gate["alpha"] / gate["looks"] if self.act.level is None else terms.CANDIDATES * self.act.level


def what_of(act: Registration) -> tuple[object, ...]:
    measured = (act.grader_sha256, act.measured_sha256)
    return act.model, act.champion, frozenset(act.candidates), act.test_sha256, *measured


@dataclass(frozen=True)
class Champion:
    """A promotion."""

    number: int
    id: str
    time: str
    model: str
    run: str
    revision: str
    before: int
    """The champion that it replaced."""
    approvals: tuple[SignedEntry, ...]
    overrides: tuple[SignedEntry, ...]
    own_run: bool
    """The person who started the run approved it too."""
    request: int
    smoke: str

    @property
    def who(self) -> str:
        """The people who approved it."""
        return ", ".join(approval.person for approval in self.approvals)

    @property
    def why(self) -> str:
        return "; ".join(approval.reason for approval in self.approvals)


@dataclass(frozen=True)
class Move:
    """A promotion or a rollback: from here on, `champion` is served."""

    number: int
    time: str
    model: str
    champion: int
    by: SignedEntry | None = None
    """The signed entry of a rollback."""

    @property
    def who(self) -> str:
        return self.by.person if self.by else ""

    @property
    def why(self) -> str:
        return self.by.reason if self.by else ""


class Facts(Protocol):
    """The part of `State` that judging a request or an entry needs."""

    genesis: str
    policy: Policy
    requests: dict[int, RequestState]
    rejections: dict[int, tuple[str, str, str]]

    def requested(self, champion: int) -> Request | None: ...
