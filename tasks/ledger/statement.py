"""What a person signs: one decision, bound by hashes to what it is about.

A statement is canonical JSON. It names this ledger by its genesis, so that it cannot be moved to
another ledger. It names the request and the hashes of decision, prompt, weights and test set, so
that it cannot be moved to other content. It expires, and a nonce makes each statement count once.
It does not name its place in the chain: an approval from elsewhere stays valid when other entries
come first.
"""

from __future__ import annotations

import hashlib
import secrets as random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from rft import files, secrets
from rft.errors import UserError
from rft.reports.base import Report
from tasks.ledger import keys
from tasks.ledger.keys import Key
from tasks.ledger.policy import Change, Time

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


SKEW_S = 300
"""How far the clocks of two machines may differ."""
_ONE_DAY_S = 86_400.0


class Content(Report):
    """What is judged and would be served, by hash."""

    decision_sha256: Sha256
    prompt_sha256: Sha256
    """Hash of the prompt and of how its answers are made of rollouts
    (tasks/promotion/content.py)."""
    weights_sha256: Sha256 | None
    """Hash of the weights that would be served; None: only those of the base model."""
    base_sha256: Sha256 | None
    test_sha256: Sha256

    @property
    def pair(self) -> tuple[str, str]:
        """Prompt and weights. A rejection holds for this pair, in any run and with any settings."""
        return self.prompt_sha256, self.weights_sha256 or f"base {self.base_sha256}"


class Statement(Report):
    act: Literal["approve", "reject", "lift", "rollback", "override", "start", "policy", "erase"]
    ledger: Sha256
    """The genesis entry of the ledger."""
    model: str | None = None
    request: Sha256 | None = None
    """For approve, reject, override: the request's entry."""
    rejection: Sha256 | None = None
    """For lift: the entry of the rejection that is lifted."""
    content: Content | None = None
    """For approve, reject, override: what the request is about."""
    overrides: list[Literal["dirty"]] = []
    registration: Sha256 | None = None
    """For erase: the look whose list of examples is erased."""
    pair: tuple[str, str] | None = None
    """For lift: the prompt and weights that are no longer rejected."""
    champion: Sha256 | None = None
    """For rollback: the promotion that is withdrawn."""
    to: Sha256 | None = None
    """For rollback: the promotion to return to; None: the beginning."""
    run: str | None = None
    """For start: the hash of commit, edits, settings and champion."""
    change: Change | None = None
    """For policy: the change of people or rules."""
    reason: str = Field(max_length=2000)
    time: Time
    expires: Time
    nonce: str = Field(min_length=16, max_length=64)

    @property
    def content_bytes(self) -> bytes:
        return files.canonical({key: value for key, value in self.model_dump(mode="json").items() if value})

    @property
    def id(self) -> str:
        return hashlib.sha256(self.content_bytes).hexdigest()


class Signed(Report):
    """A statement with its signature, not verified yet."""

    statement: Statement
    signature: str

    @property
    def key(self) -> str:
        """The fingerprint of the key that the signature names."""
        return keys.fingerprint(keys.signer(self.signature))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def later(time: str, days: float = 0.0, seconds: float = 0.0) -> str:
    moved = datetime.fromisoformat(time) + timedelta(seconds=days * _ONE_DAY_S + seconds)
    return moved.isoformat(timespec="seconds").replace("+00:00", "Z")


def nonce() -> str:
    return random.token_hex(16)


def text(given: str) -> str:
    """Replace bytes that are not UTF-8, for example in a name or an argument."""
    return given.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def reason(given: str) -> str:
    """Prepare a reason that is kept for ever: without secrets, on one line. Raises UserError for an
    empty one, and for one that is too long."""
    clean = " ".join(secrets.redact(text(given)).split())
    if not clean:
        raise UserError("--reason must not be empty: the ledger keeps it for whoever asks a year later.")
    if len(clean) > 2000:
        raise UserError(f"--reason has {len(clean)} characters, and the ledger takes 2000. Say it shorter.")
    return clean


def sign(key: Key, statement: Statement) -> Signed:
    return Signed(statement=statement, signature=keys.sign(key, statement.content_bytes, keys.ACT))


def made_elsewhere(signature: Path) -> Signed:
    """Read the signature that ssh-keygen left beside its statement: X.json.sig for X.json."""
    document = signature.with_suffix("")
    for file in (signature, document):
        if not file.exists():
            raise UserError(f"{file} does not exist. Sign the file that --print wrote, and name its .sig file.")
    made = parse(document.read_bytes(), str(document))
    return Signed(statement=made, signature=signature.read_text(encoding="ascii", errors="replace"))


def parse(content: bytes, where: str) -> Statement:
    """Parse a statement. Raises UserError for what is not one in its canonical form."""
    try:
        made = Statement.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {key}: {first['msg']}. Not a statement of agent-rft.") from None
    if made.content_bytes != content:
        raise UserError(f"{where}: not in canonical form (RFC 8785), so no signature of it can be verified.")
    return made
