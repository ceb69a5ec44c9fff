"""What this clone has seen: the last head of the ledger, and up to where it verified it.

`.rft/ledger/seen.json` is an anchor. A chain that does not hold the entry that was seen was cut,
rewound or replaced. It also spares the signatures that were verified before. So it must not be
forged: it carries a MAC by a key derived from the machine key. A file that does not fit its MAC is
an error, never a reason to look away.
"""

from __future__ import annotations

import hashlib
import hmac

from pydantic import ValidationError

from rft import files
from rft.reports.base import Report
from tasks.ledger import chain, keys
from tasks.ledger.chain import Stored
from tasks.ledger.objects import Damaged
from tasks.ledger.statement import Sha256
from tasks.runs.clone import Clone

_LABEL = b"agent-rft: what this clone has seen of its ledger\0"


class Seen(Report):
    genesis: Sha256
    number: int
    """Of the last entry."""
    entry: Sha256
    remote: bool = False
    """The ledger was on the remote when it was seen."""


class _Kept(Report):
    seen: Seen
    mac: Sha256


def recall(clone: Clone) -> Seen | None:
    """What was seen; None when nothing was. Raises Damaged for a file that was not written here."""
    file = path(clone)
    if not file.exists():
        return None
    remedy = (
        f"Find out who changed {file}, then delete it: the whole ledger is verified anew, and the head that was seen "
        "last is not remembered."
    )
    try:
        kept = _Kept.model_validate_json(file.read_bytes())
    except ValidationError:
        raise Damaged(f"{file} is no memory of a ledger. {remedy}") from None
    if not hmac.compare_digest(kept.mac, _mac(clone, kept.seen)):
        raise Damaged(
            f"{file} was not written with this clone's machine key: it was forged, or the key is a new one. {remedy}"
        )
    return kept.seen


def keep(clone: Clone, seen: Seen) -> None:
    files.write_text(_Kept(seen=seen, mac=_mac(clone, seen)).model_dump_json() + "\n", path(clone), durable=True)


def path(clone: Clone):
    return clone.state / "ledger" / "seen.json"


def assert_descends(seen: Seen | None, stored: list[Stored], restarted: bool = False) -> None:
    """Raise Damaged when the chain does not hold the entry that was seen last, or when it was
    restarted since, unless that is to be accepted."""
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


def _mac(clone: Clone, seen: Seen) -> str:
    private = keys.machine(clone).file.read_bytes()
    key = hashlib.sha256(_LABEL + private).digest()
    return hmac.new(key, seen.model_dump_json().encode(), hashlib.sha256).hexdigest()
