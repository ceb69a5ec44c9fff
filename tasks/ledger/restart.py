"""Restart the ledger when the last owner's key is lost: the same chain goes on, with no people.

A restart is a second genesis on top of the old chain. It names the entry before it, so its push is
a fast-forward, nothing is rewritten, and an auditor sees it for ever. Numbers go on, so champions
keep theirs, and rejections still hold. People and machines start anew: the first person who
approves becomes owner, and approvals from before no longer count. The rules stay, and so do the
marks of compromised keys.

Nobody can prove that a key is lost, so anybody who can push could make a restart. It counts only
for readers who accept it: each clone and infra/ledger.yaml know their genesis, and refuse another
one until a person there accepts it by name.
"""

from __future__ import annotations

from collections.abc import Callable

from rft.errors import UserError
from tasks.ledger import book, chain, remote, statement
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Entry
from tasks.runs import records
from tasks.runs.clone import Clone


def restart(clone: Clone, reason: str, report_line: Callable[[str], None] = print) -> Entry:
    """Append a new genesis, and make it this clone's. The chain before it must be whole."""
    with book.opened(clone, report_line=report_line) as ledger:
        if not ledger.stored:
            raise UserError("there is no ledger to restart: nothing was decided yet.")
        ledger.begin(restarts=ledger.stored[-1], reason=statement.reason(reason))
        return ledger.stored[-1].entry


def accept(clone: Clone, report_line: Callable[[str], None] = print) -> Entry:
    """Accept a restart that another clone made. It must continue what this clone saw last."""
    with records.held(book.lock(clone), wait=True):
        ledger = book.read(clone, fetch=True, reverify=True, report_line=report_line, restarted=True, locked=True)
        if not ledger.stored or ledger.state.restarts is None:
            raise UserError("the ledger was never restarted, so there is nothing to accept.")
        ledger.remember()
        if ledger.shared.genesis != ledger.state.genesis:
            remote.pin(clone, ledger.shared, ledger.state.genesis)
        newest = chain.genesis(ledger.stored).entry
        report_line(
            f"[ledger] restart accepted: entry {newest.number} of machine {newest.machine}. Commit {remote.file(clone)}"
        )
        return newest


def earlier(clone: Clone) -> list[Stored]:
    """Return the entries before the last restart. Their people and machines have no rights any
    more."""
    ledger = book.read(clone)
    return [each for each in ledger.stored if each.entry.number < ledger.state.since]
