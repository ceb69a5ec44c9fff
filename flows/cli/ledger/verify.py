"""Verify the ledger: every signature, role, hash and anchor, computed again.

  rft ledger verify

It lists the entries, and marks those that are doubtful. docs/verify-ledger.sh verifies the same
without this program.
"""

from __future__ import annotations

import argparse

from flows.cli.ledger.show import show_entry, waiting
from flows.screen import print_line
from tasks.ledger import book
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    """Add no option: everything is verified."""


def run(options: argparse.Namespace) -> int:
    ledger = book.latest(clone.enter(), print_line, reverify=True)
    if not ledger.stored:
        print_line("There is no ledger yet. It begins with the first request for a promotion.")
        return 0
    doubtful = ledger.state.doubtful()
    for each in ledger.stored:
        show_entry(each, doubtful)
    if doubtful:
        print_line(f"{len(doubtful)} entries are doubtful, and the lines above say why. What to do: docs/ledger.md")
    count, genesis = len(ledger.stored), ledger.state.genesis[:16]
    print_line(f"Verified: {count} entries, every signature, role and hash, from genesis {genesis} on.")
    for line in waiting(ledger):
        print_line(line)
    return 0
