"""Erase the list of test examples of a registration, and retire the set.

  rft ledger erase ENTRY --reason TEXT

The entry stays, with the hash of what was erased.
"""

from __future__ import annotations

import argparse

from flows.cli.options import add_person, signer
from flows.screen import print_line
from tasks.ledger.policy import Policy
from tasks.promotion import retiring
from tasks.promotion.acts import Signer
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("entry", metavar="ENTRY", type=int, help="the number of the registration")
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()

    def owner(policy: Policy) -> Signer | None:
        return signer(here, options) if policy.holders("owner") else None

    entry, elsewhere = retiring.erase(here, options.entry, options.reason, owner, print_line)
    print_line(
        f"Entry {entry}: the list of examples of entry {options.entry} is erased here, and its test set is retired."
    )
    print_line("How many looks other sets share with it cannot be counted any more.")
    for place in elsewhere:
        print_line(f"DVC's remote may hold it still. Delete it there: {place}")
    return 0
