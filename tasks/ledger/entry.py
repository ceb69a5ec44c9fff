"""What an entry of the ledger says.

`entry.json` is canonical JSON (RFC 8785). It holds the SHA-256 of the entry before and of the other
files of its commit, so the chain rests on SHA-256 where Git's own names are SHA-1. Every act on a
model names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rft import files
from rft.errors import UserError, removed
from rft.reports.base import Report
from tasks.ledger.policy import Change, Name, PublicKey, Settings
from tasks.ledger.statement import Content, Sha256, Time

Commit = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class Genesis(Report):
    kind: Literal["genesis"] = "genesis"
    machine: PublicKey
    nonce: str
    """So that no two ledgers are one."""
    restarts: Sha256 | None = None
    """The last entry before it, when the ledger goes on without its people and machines, because
    the owners' keys were lost. Numbers and champions go on too (see restart.py)."""
    reason: str | None = None


class PolicyChange(Report):
    """People or rules change. Signed by an owner; the first owner signs for themselves."""

    kind: Literal["policy"] = "policy"
    change: Change


class DvcFile(Report):
    """A file in DVC, by its hashes."""

    sha256: Sha256
    md5: str = Field(pattern=r"^[0-9a-f]{32}$")
    size: int = Field(ge=0)


def gate_of(settings: str) -> dict[str, Any]:
    """Return section `gate` of settings. Before there was alpha, it was 5 % for one look."""
    return {"alpha": 0.05} | json.loads(settings)["gate"]


class Registration(Report):
    """A look at a test set, written down before the set is opened."""

    kind: Literal["registration"] = "registration"
    model: str
    run: str
    champion: int = Field(ge=0)
    """The promotion that is compared with; 0 is the beginning."""
    candidates: list[tuple[str, str]] = Field(min_length=1, max_length=2)
    """Each a prompt and weights, as Content.pair names them."""
    test_sha256: Sha256
    grader_sha256: Sha256
    """Of the recipe's folder."""
    measured_sha256: Sha256
    """Of all settings by which rollouts are sampled and graded. Others draw anew: another look."""
    settings: Settings
    """The thresholds of this run. For a model without any, they are its thresholds from now on."""
    look: int = Field(ge=1)
    """At the examples of this test set: the first, the second, ..."""
    level: float | None = Field(default=None, gt=0, lt=0.5, exclude_if=lambda level: level is None)
    """The one-sided level at which the gate asks for each candidate: this look's share of what
    earlier looks left of alpha. None: by an earlier version, which spent alpha / looks."""
    examples: DvcFile
    """One line per test example, by which later looks at it are counted."""

    @property
    def gate(self) -> dict[str, Any]:
        """Section `gate` of its settings."""
        return gate_of(self.settings)


class Opened(Report):
    """Somebody looked into a test set. No later look of the model can use its examples."""

    kind: Literal["opened"] = "opened"
    model: str
    run: str
    """Whose rollouts were shown."""
    test_sha256: Sha256
    registration: int = Field(ge=0)
    """The look of that run; 0: it registered none."""
    examples: DvcFile
    """As in a registration."""
    who: str
    """As Git knew them; a claim."""
    reason: str = Field(min_length=1, max_length=2000)


class Erasure(Report):
    """The list of a look's examples is erased. How many looks other sets share with it cannot be
    counted any more, so the set is retired. Signed by an owner, once there is one."""

    kind: Literal["erasure"] = "erasure"
    model: str
    registration: int
    reason: str = Field(min_length=1, max_length=2000)


class Request(Report):
    """A run's challenger may become champion, if people agree."""

    kind: Literal["request"] = "request"
    model: str
    run: str
    revision: Commit
    candidate: Literal["champion_new_prompt", "challenger"]
    content: Content
    champion: int = Field(ge=0)
    """The promotion that it was judged against; 0 is the beginning."""
    registration: int
    """The look at the test that it rests on."""
    edits_sha256: Sha256 | None
    """Of uncommitted edits; None: the code is a commit's."""
    edited: list[str] = []
    key: str
    """The run's key, which its starter signed, where there is a statement."""
    started_by: str
    """As Git knew them; a claim, where there is no statement."""
    expires: Time


class Approval(Report):
    kind: Literal["approval"] = "approval"
    model: str
    request: int


class Rejection(Report):
    kind: Literal["rejection"] = "rejection"
    model: str
    request: int


class Lift(Report):
    """A rejection of a prompt and weights no longer holds."""

    kind: Literal["lift"] = "lift"
    model: str
    rejection: int


class Override(Report):
    """An owner takes the responsibility for what would stop a promotion."""

    kind: Literal["override"] = "override"
    model: str
    request: int


class Promotion(Report):
    """From here on, this is the champion."""

    kind: Literal["promotion"] = "promotion"
    model: str
    request: int
    approvals: list[int]
    before: int = Field(ge=0)
    """The champion that it replaces."""
    weights_signature: Sha256 | None
    """Of model.sig, by which OpenSSF model signing verifies the weights."""
    smoke: str
    """What the smoke test did."""


class Rollback(Report):
    kind: Literal["rollback"] = "rollback"
    model: str
    before: int
    to: int = Field(ge=0)


class Reconcile(Report):
    """Somebody moved what shows the champion, and it was set right."""

    kind: Literal["reconcile"] = "reconcile"
    model: str
    projection: str
    found: str
    set: str


Act = Annotated[
    Genesis
    | PolicyChange
    | Registration
    | Opened
    | Erasure
    | Request
    | Approval
    | Rejection
    | Lift
    | Override
    | Promotion
    | Rollback
    | Reconcile,
    Field(discriminator="kind"),
]


class Entry(Report):
    schema_: Literal["agent-rft/ledger/1"] = Field(default="agent-rft/ledger/1", alias="schema")
    number: int = Field(ge=1)
    previous: Sha256 | None
    """The entry before; None at the beginning."""
    time: Time
    machine: Name
    act: Act
    files: dict[str, Sha256]
    """The other files of the commit."""

    @cached_property
    def content(self) -> bytes:
        return files.canonical(self.model_dump(mode="json", by_alias=True))

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Entry:
        """A copy is hashed anew: pydantic would take over what was computed."""
        made = super().model_copy(update=update, deep=deep)
        for name in ("content", "id"):
            vars(made).pop(name, None)
        return made


def parse(content: bytes, where: str) -> Entry:
    """Raises UserError for what is not an entry in its canonical form."""
    try:
        made = Entry.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        if any(each.get("ctx", {}).get("tag") == "imported" for each in error.errors()):
            raise removed(f"{where}: an entry of kind 'imported'") from None
        key = ".".join(map(str, first["loc"]))
        what = f"{where}: {key}: {first['msg']}"
        raise UserError(
            f"{what}. It is not an entry of the ledger, or a later version's: read it with that one."
        ) from None
    if made.content != content:
        raise UserError(f"{where}: entry.json is not in canonical form (RFC 8785).")
    return made
