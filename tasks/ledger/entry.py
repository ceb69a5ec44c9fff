"""What an entry of the ledger says.

`entry.json` is canonical JSON (RFC 8785). It holds the SHA-256 of the entry before and of the other
files of its commit, so the chain rests on SHA-256 even where Git's own names are SHA-1. Every act
on a model names the model.
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
    """Makes two ledgers differ."""
    restarts: Sha256 | None = None
    """For a restart: the last entry before it. The owners' keys were lost, so the ledger goes on
    without its people and machines. Numbers and champions go on (see restart.py)."""
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
    """Return section `gate` of settings. Those of early versions have no alpha: it was 5 %."""
    return {"alpha": 0.05} | json.loads(settings)["gate"]


class Registration(Report):
    """A look at a test set, written down before the set is opened."""

    kind: Literal["registration"] = "registration"
    model: str
    run: str
    champion: int = Field(ge=0)
    """The promotion with which the candidates are compared; 0 is the beginning."""
    candidates: list[tuple[str, str]] = Field(min_length=1, max_length=2)
    """Pairs of a prompt and weights, as Content.pair names them."""
    test_sha256: Sha256
    grader_sha256: Sha256
    """Hash of the recipe's folder."""
    measured_sha256: Sha256
    """Hash of all settings for sampling and grading rollouts. Others draw anew: another look."""
    settings: Settings
    """The thresholds of this run. For a model without any, they become its thresholds."""
    look: int = Field(ge=1)
    """The number of this look at the examples of this test set: 1, 2, ..."""
    level: float | None = Field(default=None, gt=0, lt=0.5, exclude_if=lambda level: level is None)
    """The one-sided level at which the gate tests each candidate: this look's share of what earlier
    looks left of alpha. None: from an earlier version, which spent alpha / looks."""
    examples: DvcFile
    """A list with one line per test example, by which later looks at it are counted."""

    @property
    def gate(self) -> dict[str, Any]:
        """Section `gate` of its settings."""
        return gate_of(self.settings)


class Opened(Report):
    """Somebody opened a test set. No later look of the model can use its examples."""

    kind: Literal["opened"] = "opened"
    model: str
    run: str
    """The run whose rollouts were shown."""
    test_sha256: Sha256
    registration: int = Field(ge=0)
    """The look of that run; 0: it registered none."""
    examples: DvcFile
    """The list of examples, as in a registration."""
    who: str
    """The person's name in Git, which is a claim."""
    reason: str = Field(min_length=1, max_length=2000)


class Erasure(Report):
    """The list of a look's examples is erased. The looks that other sets share with it cannot be
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
    """The look at the test set on which it rests."""
    edits_sha256: Sha256 | None
    """Hash of uncommitted edits; None: a commit holds all the code."""
    edited: list[str] = []
    key: str
    """The run's key. The person who started the run may have signed it in a statement."""
    started_by: str
    """The starter's name in Git. Without a statement it is only a claim."""
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
    """An owner takes responsibility for something that would stop a promotion."""

    kind: Literal["override"] = "override"
    model: str
    request: int


class Promotion(Report):
    """From this entry on, the request's candidate is the champion."""

    kind: Literal["promotion"] = "promotion"
    model: str
    request: int
    approvals: list[int]
    before: int = Field(ge=0)
    """The champion that it replaces."""
    weights_signature: Sha256 | None
    """Hash of model.sig, with which OpenSSF model signing verifies the weights."""
    smoke: str
    """What the smoke test did."""


class Rollback(Report):
    kind: Literal["rollback"] = "rollback"
    model: str
    before: int
    to: int = Field(ge=0)


class Reconcile(Report):
    """Somebody moved what shows the champion, and it was corrected."""

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
    """The entry before; None: this is the first one."""
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
        """Copy the entry so that it is hashed anew: pydantic would keep the computed values."""
        made = super().model_copy(update=update, deep=deep)
        for name in ("content", "id"):
            vars(made).pop(name, None)
        return made


def parse(content: bytes, where: str) -> Entry:
    """Parse an entry. Raises UserError for what is not one in its canonical form."""
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
