"""Verify every byte of a back-up. Nothing is restored.

  rft backup verify /mnt/disk/agent

It is run in any folder. Each damaged or missing file is named.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from flows.cli.backup.make import Teller, holds
from flows.screen import print_line
from rft import commands
from tasks import backup
from tasks.runs.clone import TELEMETRY_OFF


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="the folder that `rft backup make` wrote")


def run(options: argparse.Namespace) -> int:
    os.environ.update(TELEMETRY_OFF)
    made = backup.verify(Path(options.backup).resolve(), Teller())
    print_line(f"The back-up of {made.made} is whole: {holds(made)}")
    print_line(f"To restore it: {commands.command('backup restore', options.backup, 'INTO')}")
    return 0
