"""Upload the ledger, and the bytes of what waits and of what is served.

  rft ledger share

Runs and approvals do this by themselves, once rft.yaml names a remote.
"""

from __future__ import annotations

import argparse

from flows.screen import print_line
from rft.formatting import counted
from tasks.promotion import sharing
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    """Add no option: everything is shared."""


def run(options: argparse.Namespace) -> int:
    runs = sharing.share(clone.enter(), print_line)
    print_line(f"Shared: the ledger, and the bytes of {counted(len(runs), 'run')} that wait or were promoted.")
    return 0
