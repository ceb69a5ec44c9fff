"""Which look at its examples a registration is: counted by example, in every clone.

A test set inherits the highest count among its examples, so one example more, one less or another
order makes no fresh set. What an example is was said by the leakage check: its input text, whatever
its case, its spaces, its id or its target. A list of keyed hashes, one per example, lies in DVC,
and the registration holds the list's hash. A list that cannot be fetched is an error, never a count
of zero.

The clone that registers counts, and it might lie: the ledger cannot see lists. So whoever asks for
a promotion or approves one counts again (`assert_counted`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable

from rft import commands, shelves
from rft.errors import UserError
from rft.windows.profile import user_text
from tasks.ledger.entry import Kept, Registration
from tasks.ledger.state import Look, State, what_of
from tasks.runs import artifacts, transfer
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone


def lines(state: State, rows: bytes) -> set[str]:
    """Name each example. Keyed with the ledger's first entry, so that equal examples of two ledgers
    have nothing in common."""
    key = bytes.fromhex(state.ids[1])
    return {hmac.new(key, _asked(row).encode(), hashlib.sha256).hexdigest() + "\n" for row in rows.splitlines()}


def _asked(row: bytes) -> str:
    return " ".join(user_text(json.loads(row)["messages"]).casefold().split())


def listed(some: set[str]) -> bytes:
    return "".join(sorted(some)).encode()


def out(listed: Kept) -> Out:
    return Out("examples.txt", listed.md5, listed.size, None)


def count(clone: Clone, looks: Iterable[Look], wanted: Registration, names: set[str]) -> int:
    """Count one more than the example that was looked at most; the same look again counts once."""
    first = {look.what: look for look in sorted(looks, key=lambda look: -look.number)}
    if (same := first.get(what_of(wanted))) is not None:
        return same.act.look
    counts = dict.fromkeys(names, 0)
    for look in first.values():
        for name in names & _list_of(clone, look):
            counts[name] += 1
    known = [look.act.look for look in first.values() if look.act.test_sha256 == wanted.test_sha256]
    return 1 + max([*counts.values(), *known], default=0)


def _list_of(clone: Clone, look: Look) -> set[str]:
    kept = look.act.examples
    content = transfer.fetch_file(clone, out(kept))
    if hashlib.sha256(content).hexdigest() != kept.sha256:
        raise UserError(
            f"the list of test examples of entry {look.number} has other bytes than the entry names. Remove "
            f"{artifacts.path_of(clone, out(kept))}, and start again: it is fetched anew."
        )
    return set(content.decode().splitlines(keepends=True))


def assert_counted(clone: Clone, state: State, look: Look, at: Revision, run: str) -> None:
    """Raise UserError when the registration says less than the examples of this run say."""
    rows = at.read(shelves.examples_file("test"))
    again = f"Nobody can promote run {run}. Start it again: {commands.command('run')}"
    if rows is None or hashlib.sha256(rows).hexdigest() != look.act.test_sha256:
        raise UserError(f"entry {look.number} registered other test examples than those of run {run}. {again}")
    names = lines(state, rows)
    if hashlib.sha256(listed(names)).hexdigest() != look.act.examples.sha256:
        raise UserError(f"entry {look.number} lists other examples than those of run {run}. {again}")
    earlier = [each for each in state.looks.values() if each.number < look.number]
    right = count(clone, earlier, look.act, names)
    if look.act.look < right:
        raise UserError(f"entry {look.number} says look {look.act.look}, and it was look {right}. {again}")
