"""What this clone has seen: the last head of the ledger, which it has verified.

`.rft/ledger/seen.json` is an anchor: a chain without the entry that was seen was cut, rewound or
replaced. The file also saves verifying the same signatures again. So it must not be forged. It
carries a MAC, by a key derived from the machine key. A file that does not fit its MAC is an error,
and is never ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from pydantic import ValidationError

from rft import files
from rft.errors import UserError
from rft.reports.base import Report
from tasks.ledger import chain, keys
from tasks.ledger.chain import Stored
from tasks.ledger.objects import Damaged
from tasks.ledger.statement import Sha256
from tasks.runs.clone import Clone

_LABEL = b"agent-rft: what this clone has seen of its ledger\0"


class LastVerified(Report):
    genesis: Sha256
    number: int
    """The number of the last entry."""
    entry: Sha256
    remote: bool = False
    """The ledger was on the remote when it was seen."""


class _SeenFile(Report):
    seen: LastVerified
    mac: Sha256


def recall(clone: Clone) -> LastVerified | None:
    """Return what was seen; None: nothing. Raises Damaged for a file that was not written here."""
    file = path(clone)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}. It says what this clone saw last. {_owned(file)}") from None
    remedy = (
        f"Find out who changed {file}, then delete it: the whole ledger is verified anew, and the head that was seen "
        "last is not remembered."
    )
    try:
        kept = _SeenFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        how = "It was cut off or changed, or a later version of agent-rft wrote it: then use that one"
        raise Damaged(f"{file}: {key}: {first['msg']}. {how}. {remedy}") from None
    if not hmac.compare_digest(kept.mac, _mac(clone, kept.seen)):
        raise Damaged(
            f"{file} was not written with this clone's machine key: it was forged, or the key is a new one. {remedy}"
        )
    return kept.seen


def keep(clone: Clone, seen: LastVerified) -> None:
    """Remember what was seen. The caller holds the clone's lock, so that an older state never
    replaces a newer one."""
    file = path(clone)
    try:
        files.write_text(_SeenFile(seen=seen, mac=_mac(clone, seen)).model_dump_json() + "\n", file, durable=True)
    except (PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{error.filename}: {error.strerror}, so nothing is remembered. {_owned(file)}") from None


def assert_writable(clone: Clone) -> None:
    """Raise UserError before an append if the entry could not be remembered: its act would look
    refused."""
    file = path(clone)
    if not all(os.access(each, os.W_OK | os.X_OK) for each in (clone.state, file.parent) if each.exists()):
        raise UserError(f"{file} cannot be written, so nothing is appended. {_owned(file)}")


def _owned(file: Path) -> str:
    return f"Move away what is not a file of ours, and let this user read and write {file.parent}."


def path(clone: Clone) -> Path:
    return clone.state / "ledger" / "seen.json"


def assert_descends(seen: LastVerified | None, stored: list[Stored], restarted: bool = False) -> None:
    """Raise Damaged when the chain does not hold the entry that was seen last. Also when it was
    restarted since, unless `restarted` accepts that."""
    if seen is None:
        return
    last = stored[-1].entry
    if last.number < seen.number:
        raise Damaged(
            f"the ledger ends with entry {last.number}, but this clone saw entry {seen.number} ({seen.entry[:16]}): it "
            "was cut or rewound. Fetch it whole from your remote or another clone: git fetch REMOTE "
            "rft-ledger:refs/rft/ledger"
        )
    if stored[seen.number - 1].entry.id != seen.entry:
        raise Damaged(
            f"entry {seen.number} of the ledger is {stored[seen.number - 1].entry.id[:16]}, but this clone saw "
            f"{seen.entry[:16]} there: the chain was rewritten or replaced. Compare it with another clone's."
        )
    newest = chain.genesis(stored)
    if newest.entry.id != seen.genesis and not restarted:
        raise Damaged(chain.restart(newest))


def _mac(clone: Clone, seen: LastVerified) -> str:
    private = keys.machine(clone).file.read_bytes()
    key = hashlib.sha256(_LABEL + private).digest()
    return hmac.new(key, seen.model_dump_json().encode(), hashlib.sha256).hexdigest()
