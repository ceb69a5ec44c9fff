"""Back up all that this clone knows into a folder, or bring that folder up to date.

  rft backup make /mnt/disk/agent

It holds the ledger, revisions, DVC's cache, records, pages, MLflow and Prefect. What is there
already is not copied again. The folder is whole at every moment: a back-up that is killed leaves
the one before it, and the same command goes on. Nothing may run in the clone meanwhile. Keys and
passwords are left out; what that means is said. docs/backup.md has the rest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.screen import print_line, warn
from rft import commands
from rft.formatting import counted
from rft.progress import Reporter
from tasks import backup
from tasks.backup import Manifest
from tasks.runs import clone

_SHOWN = 5


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="outside of the clone, best on another disk")


def run(options: argparse.Namespace) -> int:
    here, folder = clone.enter(), Path(options.folder).resolve()
    print_line("[backup] looking for what belongs into it ...")
    saved = backup.save(here, folder, Teller())
    print_line(f"Backed up to {folder}: {holds(saved.made)}")
    print_line(f"  copied now: {counted(saved.num_copied, 'file')}, {size(saved.copied_bytes)}; the rest was there")
    if saved.num_removed:
        print_line(f"  removed: {counted(saved.num_removed, 'file')} that this back-up no longer names")
    if saved.kept:
        shown = ", ".join(saved.kept[:_SHOWN])
        warn(f"{counted(len(saved.kept), 'file')} of DVC's cache are gone here, and the back-up keeps them: {shown}")
    for path in saved.damaged:
        warn(f"{path}: its bytes do not fit its name. Delete it, and fetch it again: dvc fetch")
    print_line("Left out:")
    for line in saved.made.left_out:
        print_line(f"  {line}.")
    print_line(f"To verify it: {commands.command('backup verify', options.folder)}")
    return 0


class Teller:
    """Progress lines, of one phase after another."""

    def __init__(self) -> None:
        self._reporters: dict[str, Reporter] = {}

    def __call__(self, phase: str, done: int, total: int, num_bytes: int) -> None:
        reporter = self._reporters.setdefault(phase, Reporter(phase, total))
        reporter(done, f"files, {size(num_bytes)}")


def holds(made: Manifest) -> str:
    ledger = f"a ledger up to entry {made.num_entries}" if made.entry else "no ledger"
    parts = f"{ledger}, {counted(len(made.runs), 'run')}, {counted(len(made.files), 'file')} and Git's objects"
    return f"{parts}, {size(made.num_bytes)}."


def size(num_bytes: int) -> str:
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= each:
            return f"{num_bytes / each:.1f} {unit}"
    return f"{num_bytes} B"
