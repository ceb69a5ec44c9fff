"""Stop a run in order, and for good.

  rft runs cancel RUN
  rft runs cancel RUN --now        do not wait for its next checkpoint

The run stops at its next checkpoint and is recorded. A new run takes up its work.
"""

from __future__ import annotations

import argparse
import time

from flows.screen import print_line
from rft import commands
from tasks import cancel
from tasks.runs import clone, records

EVERY_S = 5.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--now", action="store_true", help="do not wait for the checkpoint: stop its stage at once")
    parser.add_argument(
        "--wait", type=_seconds, default=600.0, metavar="SECONDS", help="how long to wait until it stops (default: 600)"
    )


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    record = records.find(here, options.run)
    told = 0.0

    def tell(line: str) -> None:
        nonlocal told
        if not told:
            print_line(f"Run {record.name} is asked to stop {'now' if options.now else 'at its next checkpoint'}.")
        if time.monotonic() - told >= EVERY_S:
            told = time.monotonic()
            if line:
                print_line(f"  {line}")

    ended = cancel.cancel(here, record, options.now, options.wait, tell)
    if ended is None:
        print_line(
            f"Run {record.name} is stopped. Nothing was recorded: it had not begun, or its worktree and commit "
            "were gone."
        )
        return 0
    print_line(f"Run {ended.name} is cancelled, and recorded as revision {(ended.revision or '')[:10]}.")
    print_line(f"Its work is kept until it is past its retention. To go on from it with a new run: {ended.again}")
    print_line(f"To remove what is past its retention: {commands.command('runs gc')}")
    return 0
