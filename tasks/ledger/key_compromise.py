"""Which entries are doubtful, and through which others.

    An entry is doubtful when a key that signed it is marked as compromised from that entry or an
    earlier one on, or when it rests on a doubtful entry.

It rests on the earlier entries that justified it when it was judged:

    each entry                        The entries that last enrolled its machine, its person with
                                      their roles, and that person's key.
    registration                      The last entry that set the model's thresholds.
    request, opened, erasure          The registration that it names.
    request, approval, override,      The last entry that set the model's rules, and the lift of a
    promotion                         rejection of this prompt and these weights.
    approval, override, promotion     The request.
    promotion                         The approvals that it names; for uncommitted code also the
                                      overrides that stood; and what enrolled all these people.
    rollback                          The promotion to which it returns, and such a lift.

It does not rest on what it undoes or replaces. A rollback away from a doubtful champion, or the
lift of a doubtful rejection, is as trustworthy as the person who signed it. If an owner enrols a
person again, with the same key, that person is beyond doubt from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tasks.ledger import keys
from tasks.ledger.approval_status import overriding
from tasks.ledger.entry import (
    Approval,
    Entry,
    Erasure,
    Genesis,
    Lift,
    Opened,
    Override,
    PolicyChange,
    Promotion,
    Registration,
    Request,
    Rollback,
)
from tasks.ledger.facts import Facts, VerifiedStatement
from tasks.ledger.policy import Enrol, EnrolMachine, SetRules, SetThresholds


@dataclass(frozen=True)
class KeyCompromise:
    key: str
    since: int
    """The entry from which on this key is compromised."""
    path: tuple[int, ...] = ()
    """The entries from one that this one rests on to the one that the key signed; empty: this
    one."""

    def __str__(self) -> str:
        rests = "".join(f"{', and that on' if place else 'rests on'} entry {n}" for place, n in enumerate(self.path))
        return f"{rests}{', ' if rests else ''}signed with key {self.key}, compromised since entry {self.since}"


@dataclass
class Grounds:
    """What each entry rests on."""

    of: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    keys: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Entry -> the key of the person who signed it, if one did, and the key of its machine."""
    enrolled: dict[str, int] = field(default_factory=dict[str, int])
    """A person's name or a key -> the entry that last enrolled it."""
    ruled: dict[str | None, int] = field(default_factory=dict[str | None, int])
    """Model -> the entry that last set its rules. None: the models without rules of their own."""
    thresholds: dict[str, int] = field(default_factory=dict[str, int])
    """Model -> the entry that last set its thresholds."""
    lifted: dict[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    """(model, prompt, weights) -> the last lift of its rejection."""

    def take_in(self, state: Facts, entry: Entry, verified_statement: VerifiedStatement | None, machine: str) -> None:
        """Record what a valid entry rests on. `state` is the state before it."""
        self.keys[entry.number] = (verified_statement.key, machine) if verified_statement else (machine,)
        self.of[entry.number] = tuple(sorted({*self._grounds(state, entry, verified_statement, machine)}))
        match entry.act:
            case Genesis(machine=public) | PolicyChange(change=EnrolMachine(key=public)):
                self.enrolled[keys.fingerprint(public)] = entry.number
            case PolicyChange(change=Enrol(name=name, key=public)):
                self.enrolled[name] = self.enrolled[keys.fingerprint(public)] = entry.number
            case PolicyChange(change=SetRules(model=model)):
                self.ruled[model] = entry.number
            case PolicyChange(change=SetThresholds(model=model)):
                self.thresholds[model] = entry.number
            case Registration(model=model):
                self.thresholds.setdefault(model, entry.number)
            case Lift(rejection=number):
                self.lifted[state.rejections[number]] = entry.number
            case _:
                pass

    def _grounds(
        self, state: Facts, entry: Entry, verified_statement: VerifiedStatement | None, machine: str
    ) -> Iterator[int]:
        act = entry.act
        if isinstance(act, Genesis):
            return
        if state.policy.machine_of(machine) is not None:  # otherwise the entry enrols it
            yield self.enrolled[machine]
        if (
            verified_statement is not None and state.policy.person_of(verified_statement.key) is not None
        ):  # otherwise the first owner
            yield from self._person(verified_statement)
        match act:
            case Registration(model=model):
                yield from [self.thresholds[model]] if model in self.thresholds else []
            case Opened() | Erasure():
                yield from [act.registration] if act.registration else []
            case Request():
                yield act.registration
                yield from self._allowed(act)
            case Approval() | Override():
                yield act.request
                yield from self._allowed(state.requests[act.request].act)
            case Promotion():
                yield act.request
                request = state.requests[act.request]
                yield from self._allowed(request.act)
                counted = [approval for approval in request.approvals if approval.number in act.approvals]
                if request.act.edits_sha256 is not None:
                    counted += overriding(state, request, entry.time)
                for approval in counted:
                    yield approval.number
                    yield from self._person(approval.verified_statement)
            case Rollback():
                if act.to:
                    yield act.to
                if (returned := state.requested(act.to)) is not None:
                    yield from self._lift(returned)
            case _:
                pass

    def _person(self, verified_statement: VerifiedStatement) -> Iterator[int]:
        yield from (self.enrolled[verified_statement.person], self.enrolled[verified_statement.key])

    def _allowed(self, request: Request) -> Iterator[int]:
        """Yield the entry that set its model's rules, if any, and the lift of a rejection of it."""
        rules = self.ruled.get(request.model) or self.ruled.get(None)
        yield from [rules] if rules else []
        yield from self._lift(request)

    def _lift(self, request: Request) -> Iterator[int]:
        lift = self.lifted.get((request.model, *request.content.pair))
        yield from [lift] if lift else []

    def doubtful(self, compromised: dict[str, int]) -> dict[int, KeyCompromise]:
        """Return entry -> why it is doubtful, given the keys that are compromised now."""
        found: dict[int, KeyCompromise] = {}
        for number, signed in self.keys.items():
            bad = next((key for key in signed if number >= compromised.get(key, number + 1)), None)
            ground = next((each for each in self.of[number] if each in found), None)
            if bad is not None:
                found[number] = KeyCompromise(bad, compromised[bad])
            elif ground is not None:
                why = found[ground]
                found[number] = KeyCompromise(why.key, why.since, (ground, *why.path))
        return found
