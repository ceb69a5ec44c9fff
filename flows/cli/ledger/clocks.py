"""Go on although two clocks disagree: do not compare them for some days.

  rft ledger clocks --days 30 --reason TEXT

An owner signs it. docs/ledger.md says what the clocks protect.
"""

from __future__ import annotations

import argparse

from flows.cli.options import add_person, signer
from flows.screen import print_line
from rft.errors import UserError
from tasks.ledger import book, statement
from tasks.ledger.policy import SetClocks
from tasks.promotion import acts
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--days", type=float, default=30.0, metavar="N", help="counted from the last entry (default: 30)"
    )
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    if not 0 < options.days <= 3650:
        raise UserError(f"--days {options.days:g}: give more than 0, and 3650 at most.")
    until = statement.later(book.now(book.latest(here, print_line)), days=options.days)
    entry = acts.change(here, SetClocks(until=until), signer(here, options), options.reason, print_line)
    print_line(f"From entry {entry.number + 1} until {until}, no entry is refused because two clocks disagree.")
    return 0
