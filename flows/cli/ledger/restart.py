"""Begin again with a new genesis that names the old one, when every owner's key is lost.

  rft ledger restart --reason TEXT
  rft ledger restart --accept         take over a restart that another clone made

Each clone shows a restart in red, and does not follow it until a person there accepts it.
"""

from __future__ import annotations

import argparse

from flows.screen import print_line
from rft.errors import UserError
from tasks.ledger import restart
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accept", action="store_true", help="take over a restart that another clone made")
    parser.add_argument("--reason", metavar="TEXT", help="why; the ledger keeps it")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    if options.accept:
        restart.accept(here, print_line)
    elif not options.reason:
        raise UserError("--reason TEXT is missing: the ledger keeps it for those who ask a year later.")
    else:
        restart.restart(here, options.reason, print_line)
    return 0
