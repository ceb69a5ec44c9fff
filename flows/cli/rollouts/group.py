"""Show the rollouts of one example side by side.

  rft rollouts group n-0007 --stage train

There is a table for each stage, arm and step. What its rollouts have in common is dim.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import rollouts
from flows.cli.options import add_open_test, add_place, add_selection, check_open_test
from flows.rollouts import Logs
from flows.screen import print_line
from rft.errors import UserError
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("example", metavar="EXAMPLE", help="the id of an example")
    add_place(parser)
    add_selection(parser, example=False)
    add_open_test(parser)


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    logs = rollouts.find(clone.enter(), options)
    rows = rollout_log.rows_of(rollouts.chosen(logs.table, options))
    return _groups(Console(highlight=False), logs, rows, options.example)


def _groups(console: Console, logs: Logs, rows: Sequence[LogRow], example: str) -> int:
    """Print a table per stage, arm and step. What its rollouts have in common is dim."""
    if not rows:
        raise UserError(f"EXAMPLE {example}: no rollout of that example matches. {logs.listed}")
    every = max(1, (console.width - 14) // 30)
    for title, group in itertools.groupby(rows, transcript.title):
        facts = list(map(transcript.facts, group))  # a column each
        names = sorted(dict.fromkeys(itertools.chain(*facts)), key=_place)
        print_line(f"{title}, example {example}: {counted(len(facts), 'rollout')}")
        for start in range(0, len(facts), every):
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
            table.add_column(no_wrap=True, style="bold")
            columns = facts[start : start + every]
            for _ in columns:
                table.add_column(width=28, overflow="fold")
            for name in names:
                same = len({column.get(name) for column in facts}) == 1
                values = [column.get(name, "–") for column in columns]
                if any(value not in ("", "–") for value in values):
                    table.add_row(name, *(Text(value, "dim" if same and name != "sample" else "") for value in values))
            console.print(table)
    return 0


def _place(name: str) -> tuple[int, int]:
    """Order the rows of a group's table: the sample, its turns by number, then the rest."""
    if name == "sample":
        return 0, 0
    return (1, int(name[5:])) if name.startswith("turn ") else (2, 0)
