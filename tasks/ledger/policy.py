"""People, machines, roles and rules: who may do what, from the next entry on.

A policy is the result of a chain of changes, which begins with an empty policy. Only entries of
kind `policy` hold changes, and each entry's files must be exactly the result of the changes up to
it. `policy.yaml` is for readers. `allowed_signers` is OpenSSH's list of keys. Keys are never
deleted from it, so that old signatures can always be verified. Only policy.yaml says whose key
counts, and for what.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, StringConstraints

from rft import files
from rft.errors import UserError
from rft.reports.base import Report
from tasks.ledger import keys


def _is_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Role = Literal["owner", "approver", "author"]
"""An approver approves, rejects and rolls back. An owner does that too, overrides, and changes
people and rules. An author starts runs under their own name."""
ROLES: tuple[Role, ...] = ("owner", "approver", "author")
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._@+-]{0,63}$")]
"""A principal of allowed_signers, where blanks, commas and wildcards have a meaning."""
Fingerprint = Annotated[str, StringConstraints(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")]
Time = Annotated[str, StringConstraints(pattern=r"^2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"), AfterValidator(_is_time)]
PublicKey = Annotated[str, StringConstraints(pattern=r"^(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}$")]


def _is_canonical(text: str) -> str:
    """Accept settings of the gate in their canonical form: equal settings have equal text."""
    try:
        raw = json.loads(text)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(raw, dict) or set(raw) != {"gate", "challenger"} or files.canonical(raw).decode() != text:
        raise ValueError("not the canonical JSON of sections gate and challenger")
    if not isinstance(raw["gate"], dict) or not isinstance(raw["gate"].get("looks"), int) or raw["gate"]["looks"] < 1:
        raise ValueError("gate.looks is not a number of looks")
    return text


def looks_of(settings: str) -> int:
    """Return how many looks at one test set these thresholds allow."""
    return json.loads(settings)["gate"]["looks"]


Settings = Annotated[str, AfterValidator(_is_canonical)]
"""Sections `gate` and `challenger` of params.yaml, as canonical JSON."""


class Rules(Report):
    """What a promotion needs. Written by `rft ledger rules`."""

    approvers: int = Field(default=1, ge=1, le=20)
    """How many people must approve."""
    four_eyes: bool = False
    """The person who started the run, or wrote its uncommitted edits, cannot approve it."""
    request_days: float = Field(default=30.0, gt=0, le=3650)
    """How long a request waits before it expires."""
    approval_days: float = Field(default=7.0, gt=0, le=3650)
    """How long an approval counts."""


class Person(Report):
    roles: list[Role]
    keys: list[Fingerprint]


class Policy(Report):
    people: dict[Name, Person] = {}
    machines: dict[Name, Fingerprint] = {}
    rules: Rules = Rules()
    models: dict[str, Rules] = {}
    """Models with rules of their own."""
    compromised: dict[Fingerprint, int] = {}
    """Key -> the entry from which on it is doubtful."""
    thresholds: dict[str, Settings] = {}
    """Model -> the thresholds of its gate. A run with other thresholds cannot be promoted."""
    clocks: Time | None = Field(default=None, exclude_if=lambda clocks: clocks is None)
    """Until when clocks are not compared, because an owner said so (tasks/ledger/clocks.py)."""

    def rules_of(self, model: str) -> Rules:
        return self.models.get(model, self.rules)

    def person_of(self, fingerprint: str) -> str | None:
        return next((name for name, person in self.people.items() if fingerprint in person.keys), None)

    def machine_of(self, fingerprint: str) -> str | None:
        return next((name for name, key in self.machines.items() if key == fingerprint), None)

    def roles_of(self, name: str) -> list[Role]:
        return self.people[name].roles if name in self.people else []

    def holders(self, *roles: Role) -> list[str]:
        return [name for name, person in self.people.items() if {*roles} & {*person.roles}]

    def yaml(self) -> bytes:
        return _yaml(self.model_dump_json())


@lru_cache(maxsize=256)
def _yaml(policy: str) -> bytes:
    """Return policy.yaml of a policy that is given as JSON. Cached, because it takes 2 ms, and each
    change and each read of the ledger need it twice."""
    # the verbs are those of version 0.1: ledgers hold these bytes, and verification compares them
    head = "# Written by agent-rft: rft people, rft ledger rules, rft policy sign. Judges the next entry.\n"
    raw = json.loads(policy)
    return (head + yaml.safe_dump(raw, sort_keys=True, default_flow_style=None, width=1000)).encode()


# -- changes ---------------------------------------------------------------------------------------
class Enrol(Report):
    change: Literal["enrol"] = "enrol"
    name: Name
    roles: list[Role] = Field(min_length=1)
    key: PublicKey
    """A further key, if the person is known already."""


class Remove(Report):
    change: Literal["remove"] = "remove"
    name: Name


class EnrolMachine(Report):
    change: Literal["enrol_machine"] = "enrol_machine"
    name: Name
    key: PublicKey


class RemoveMachine(Report):
    change: Literal["remove_machine"] = "remove_machine"
    name: Name


class SetThresholds(Report):
    """The thresholds of a model's gate from now on. Written by `rft ledger policy sign`."""

    change: Literal["thresholds"] = "thresholds"
    model: str
    settings: Settings


class SetRules(Report):
    change: Literal["rules"] = "rules"
    model: str | None
    """The model; None: all models without rules of their own."""
    rules: Rules


class Compromised(Report):
    """Somebody else got hold of a key. It is removed, and what it signed since then is doubtful."""

    change: Literal["compromised"] = "compromised"
    key: Fingerprint
    since: int = Field(ge=1)


class SetClocks(Report):
    """Clocks are not compared until a given time. Written by `rft ledger clocks`."""

    change: Literal["clocks"] = "clocks"
    until: Time


Change = Annotated[
    Enrol | Remove | EnrolMachine | RemoveMachine | SetRules | SetThresholds | SetClocks | Compromised,
    Field(discriminator="change"),
]


def changed(policy: Policy, change: Change) -> Policy:
    """Apply a change. Raises UserError for one that makes no sense, or leaves no owner or no
    machine."""
    people, machines, models = dict(policy.people), dict(policy.machines), dict(policy.models)
    rules, compromised, thresholds = policy.rules, dict(policy.compromised), dict(policy.thresholds)
    clocks = policy.clocks
    match change:
        case Enrol():
            _assert_free(policy, change.name, change.key)
            if change.name in machines:
                raise UserError(f"{change.name} is the name of a machine. Choose another.")
            before = people.get(change.name, Person(roles=[], keys=[]))
            key = keys.fingerprint(change.key)
            roles: list[Role] = [role for role in ROLES if role in change.roles]
            people[change.name] = Person(roles=roles, keys=list(dict.fromkeys([*before.keys, key])))
        case EnrolMachine():
            _assert_free(policy, change.name, change.key)
            if change.name in people or change.name in machines:
                raise UserError(f"{change.name} is enrolled already. Choose another name for this machine.")
            machines[change.name] = keys.fingerprint(change.key)
        case Remove():
            _drop(people, change.name, "person")
        case RemoveMachine():
            _drop(machines, change.name, "machine")
        case SetRules(model=model):
            rules = change.rules if model is None else rules
            models |= {} if model is None else {model: change.rules}
        case SetThresholds():
            thresholds[change.model] = change.settings
        case SetClocks():
            clocks = change.until
        case Compromised():
            compromised[change.key] = min(change.since, compromised.get(change.key, change.since))
            machines = {name: key for name, key in machines.items() if key != change.key}
            people = {
                name: person.model_copy(update={"keys": [key for key in person.keys if key != change.key]})
                for name, person in people.items()
            }
            people = {name: person for name, person in people.items() if person.keys}
    made = Policy(
        people=people,
        machines=machines,
        rules=rules,
        models=models,
        compromised=compromised,
        thresholds=thresholds,
        clocks=clocks,
    )
    if policy.holders("owner") and not made.holders("owner"):
        raise UserError("that would leave no owner, and only an owner changes people. Enrol another owner first.")
    if not made.machines:
        raise UserError("that would leave no machine, and only a machine appends entries. Enrol another one first.")
    return made


def _assert_free(policy: Policy, name: str, public: str) -> None:
    key = keys.fingerprint(public)
    if key in policy.compromised:
        raise UserError(f"key {key} is marked as compromised and cannot be enrolled again. Make another.")
    holder = policy.person_of(key) or policy.machine_of(key)
    if holder is not None and holder != name:
        raise UserError(f"key {key} belongs to {holder} already. One key has one holder: make another.")


def _drop(among: dict[str, Any], name: str, what: str) -> None:
    if name not in among:
        raise UserError(f"no {what} {name!r} is enrolled. There are: {', '.join(among) or 'none'}.")
    del among[name]


# -- allowed_signers -------------------------------------------------------------------------------
def signers(before: bytes, change: Change) -> bytes:
    """Return `allowed_signers` after a change. A new key adds a line, and none is ever removed."""
    if not isinstance(change, Enrol | EnrolMachine):
        return before
    return before if (line := signer_line(change)) in before.splitlines(keepends=True) else before + line


def signer_line(change: Enrol | EnrolMachine) -> bytes:
    namespace = keys.COMMIT if isinstance(change, EnrolMachine) else keys.ACT
    return f'{change.name} namespaces="{namespace}" {change.key}\n'.encode()


def keys_of(signers: bytes, name: str) -> list[str]:
    """Return the fingerprints of all keys that a person or machine ever had."""
    rows = (line.split(" ") for line in signers.decode().splitlines())
    return [keys.fingerprint(" ".join(row[2:4])) for row in rows if row[0] == name]


def name_from(text: str) -> str:
    """Make a principal from a person's or host's name: `Ada Lovelace` becomes `ada-lovelace`."""
    made = re.sub(r"[^a-z0-9._@+-]+", "-", text.casefold()).strip("-._@+")[:40]
    return made or "someone"
