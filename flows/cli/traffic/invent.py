"""Invent a window of traffic with the recipe's simulator.

  rft --agent wordle traffic invent                the window that its traffic.file names
  rft -C recipes/wordle traffic invent data/inbox/0001-drifted.jsonl --drifted

It is for trying a ladder before there are logs of your own. Equal arguments give equal bytes. A
file that exists is not overwritten: that is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
from pathlib import Path

from flows import settings
from flows.cli.options import add_settings, count
from flows.screen import print_line
from rft import commands, recipe
from rft.errors import UserError
from tasks.runs import clone

START = datetime.date(2026, 3, 2)
DAYS, CONVERSATIONS = 7, 600


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="where to write it (default: traffic.file)")
    parser.add_argument("--drifted", action="store_true", help="traffic that has moved away from the examples")
    parser.add_argument("--start", type=_day, default=START, metavar="DAY", help=f"its first day (default: {START})")
    parser.add_argument("--days", type=count, default=DAYS, metavar="N", help=f"default: {DAYS}")
    parser.add_argument(
        "--conversations", type=count, default=CONVERSATIONS, metavar="N", help=f"default: {CONVERSATIONS}"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    params = settings.resolve(here, options.params, options.overrides)
    path = Path(options.file).absolute() if options.file else _named(here.home, params.traffic.file)
    if path.exists():
        raise UserError(f"{path} exists already. Name a FILE that does not, or delete it.")
    with contextlib.chdir(here.home):  # recipe.path is relative to it
        loaded = recipe.load(params.recipe)
        if not loaded.can_simulate:
            raise UserError(f"{loaded.folder}: no simulator.py, so no traffic can be invented. Name a log of your own.")
        loaded.simulate(
            path,
            start=options.start,
            days=options.days,
            conversations=options.conversations,
            drifted=options.drifted,
            seed=options.seed,
        )
    print_line(f"{path}: {options.conversations} invented conversations from {options.start}, {options.days} days")
    if not options.file:
        print_line(f"Run the ladder on it with: {commands.command('run')}")
    return 0


def _named(root: Path, file: str) -> Path:
    """Return traffic.file. Raises UserError if it is not a single file of this clone."""
    if "://" in file or any(letter in file for letter in "*?[") or (root / file).is_dir():
        raise UserError(f"traffic.file = {file!r} names no single file. Give the FILE to write.")
    return root / file


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day: write it as 2026-03-02") from None
