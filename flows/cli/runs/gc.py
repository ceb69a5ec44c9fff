"""Remove what is past its retention: worktrees, unfinished work, logs, pages, bytes of old runs.

  rft runs gc              show what would be removed, and ask
  rft runs gc --yes        remove it without asking

The section run.retention of params.yaml says how long things are kept. Revisions and the ledger
always stay, and so does all that a champion, a request or an unfinished run needs.
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line
from rft import commands
from tasks import retention
from tasks.retention import Item, Plan
from tasks.runs import clone

WORDS = {
    "worktrees": "worktrees of runs that are over",
    "work": "unfinished work",
    "logs": "logs",
    "pages": "pages",
    "bytes": "files in DVC's cache",
}
SHOWN = 5


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="remove it without asking")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    keep = settings.resolve(here, options.params, options.overrides).run.retention
    print_line("Looking for what is past its retention (section run.retention of params.yaml) ...")
    with retention.alone(here):
        seen = retention.plan(here, keep)
    _tell(seen)
    if not seen.items:
        return 0
    if not options.yes and not _agreed():
        print_line(f"Nothing was removed. To remove it: {commands.command('runs gc', '--yes')}")
        return 0
    named = {item.path for item in seen.items}
    with retention.alone(here):
        todo = retention.plan(here, keep)  # a run may have come and gone since
        todo.items = [item for item in todo.items if item.path in named]
        removed = retention.carry_out(here, todo, _bar)
    print_line(f"Removed {_size(removed)}.")
    return 0


def _tell(seen: Plan) -> None:
    for reason in seen.kept:
        print_line(f"  kept: {reason}")
    if not seen.items:
        print_line("Nothing is past its retention.")
        return
    for kind, group in groupby(seen.items, key=lambda item: item.kind):
        items = list(group)
        print_line(f"  {_size(_sum(items)):>9}  {len(items)} {WORDS[kind]}")
        for line in _lines(items):
            print_line(f"             {line}")
    print_line(
        f"  {_size(_sum(seen.items)):>9}  in all would be removed. Revisions, records of runs and the ledger stay."
    )


def _lines(items: list[Item]) -> list[str]:
    """List the first few; bytes are grouped by what they belong to."""
    if items[0].kind == "bytes":
        groups: dict[str, list[Item]] = {}
        for item in items:
            groups.setdefault(item.why, []).append(item)
        found = [f"{_size(_sum(some))} {why}" for why, some in groups.items()]
    else:
        found = [f"{item.path.name}: {_size(item.num_bytes)}, {item.why}" for item in items]
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]


def _agreed() -> bool:
    if not sys.stdin.isatty():
        return False
    try:
        return input("Remove it? [y/N] ").strip().casefold() in ("y", "yes")
    except EOFError:
        return False


def _bar(done: int, total: int) -> None:
    if done % 1000 == 0:
        print_line(f"  {done} of {total}")


def _sum(items: list[Item]) -> int:
    return sum(item.num_bytes for item in items)


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
