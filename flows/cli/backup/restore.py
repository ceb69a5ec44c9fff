"""Verify a back-up, and lay it out as a clone in a new folder.

  rft backup restore /mnt/disk/agent /srv/agent

It runs in any folder. INTO must not exist, or be empty. A damaged back-up restores nothing, and
each damaged file is named. Where agents lie in another program's repository, the back-up does not
hold that program's history: it is fetched from its remote. docs/backup.md has the rest.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from flows.cli.backup.make import Teller, holds
from flows.screen import print_line
from rft import commands
from rft.errors import UserError
from tasks import backup
from tasks.backup import Manifest
from tasks.ledger import book
from tasks.runs.clone import TELEMETRY_OFF, Clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="the folder that `rft backup make` wrote")
    parser.add_argument("into", metavar="INTO", help="where the clone is to be")
    parser.add_argument(
        "--repository",
        metavar="PATH",
        help="a clone or address with the history of the program that the agents belong to (default: its remotes)",
    )


def run(options: argparse.Namespace) -> int:
    os.environ.update(TELEMETRY_OFF)
    folder = Path(options.backup).resolve()
    into = Path(options.into).resolve()
    made = backup.restore(folder, into, Teller(), options.repository)
    print_line(f"Restored to {into}, as it was at {made.made}: {holds(made)}")
    if made.entry is not None:
        _verify_ledger(made, into)
    print_line("Not here, because it was left out:")
    for line in made.left_out:
        print_line(f"  {line}.")
    set_up = "make setup" if not Clone(into).is_guest else commands.command("agents")
    print_line(f"To go on: cd {shlex.quote(str(into))} && {set_up}")
    return 0


def _verify_ledger(made: Manifest, into: Path) -> None:
    """As the clone's own commands will. This also makes the clone's machine key."""
    ledger = book.read(Clone(into), reverify=True, report_line=print_line)
    if ledger.state.head != made.entry:
        what = f"the ledger in {into} ends with entry {ledger.state.number}, and the manifest names another"
        raise UserError(f"{what}: one of the two was changed. Do not use this clone.")
    print_line(f"Verified: {ledger.state.number} entries of the ledger, every signature, role and hash.")
