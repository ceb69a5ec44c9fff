"""List rollouts in a table, or as JSON.

  rft rollouts list                                     those of the newest run
  rft rollouts list RUN --stage train --worst 5         what went wrong most
  rft rollouts list --where "stop_reason = 'max_tokens' AND num_turns > 3"
  rft rollouts list --live                              while a stage works
  rft rollouts list RUN --open-test --reason TEXT       with the test set, which is retired then

A table on a terminal shows the first 20, and says how many there are.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import rollouts
from flows.cli.options import add_open_test, add_place, add_selection, check_open_test
from flows.rollouts import STYLES, Logs, short
from flows.screen import print_line
from rft.commands import command
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from tasks.runs import clone

LISTED = 20
HEADINGS = ("rollout", "stage/arm", "step", "example", "n", "stopped", "calls", "tokens", "reward", "")
CUTTABLE = ("stage/arm", "example", "stopped", "")


def add(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    add_selection(parser)
    add_open_test(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    logs = rollouts.find(clone.enter(), options)
    rows = rollout_log.rows_of(rollouts.chosen(logs.table, options))
    if options.json:
        if logs.closed:
            rollouts.aside(logs.closed)
        for row in rows:
            print(json.dumps(_plain(row), ensure_ascii=False))
        return 0
    return _list(
        Console(highlight=False), logs, rows, len(rows) if options.n or options.worst or options.best else LISTED
    )


def _list(console: Console, logs: Logs, rows: Sequence[LogRow], most: int) -> int:
    """Print a table: the first `most` rollouts on a terminal, all of them into a file or pipe."""
    total = logs.table.num_rows
    if not rows:
        none = (
            f"No rollout of {logs.description} matches."
            if total
            else f"There is no rollout of {logs.description} to show."
        )
        print_line(f"{none} {logs.closed}".rstrip())
        return 0
    shown = rows[:most] if console.is_terminal else rows
    cells = [_cells(row) for row in shown]
    wanted = [max(map(len, column)) for column in zip(HEADINGS, *cells, strict=True)]
    if not console.is_terminal and "COLUMNS" not in os.environ:  # a file or pipe has no edge
        console = Console(highlight=False, width=sum(wanted) + len(wanted) + 1)
    widths = _widths(wanted, console.width)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name, width in zip(HEADINGS, widths, strict=True):
        right = name in ("step", "n", "calls", "tokens", "reward")
        table.add_column(_middle(name, width), justify="right" if right else "left", no_wrap=True)
    for row, texts in zip(shown, cells, strict=True):
        style = STYLES[transcript.worth(row)]
        cut = [_middle(text, width) for text, width in zip(texts, widths, strict=True)]
        table.add_row(
            *(Text(text, style if name == "reward" else "") for name, text in zip(HEADINGS, cut, strict=True))
        )
    console.print(table)
    least = "" if len(shown) == len(rows) else f", the first {len(shown)} shown"
    many = f"{len(rows)} of {counted(total, 'rollout')} of {logs.description}{least}"
    show, group = command("rollouts show", "ROLLOUT"), command("rollouts group", "EXAMPLE")
    print_line(f"\n{many}. To read one: {show}; to see those of one example side by side: {group}")
    if logs.closed:
        print_line(logs.closed)
    return 0


def _cells(row: LogRow) -> tuple[str, ...]:
    n = ("greedy" if row.temperature == 0 else f"{row.sample}") + (f"+{row.attempt}" if row.attempt else "")
    where = (short(row.rollout_id), f"{row.stage}/{row.arm}", str(row.step or ""), row.example_id, n)
    return (
        *where,
        row.stop_reason,
        str(row.num_tool_calls),
        str(row.num_tokens),
        transcript.number(row.reward),
        _note(row),
    )


def _widths(wanted: Sequence[int], room: int) -> list[int]:
    """Return the columns' widths. If the terminal is too narrow, the widest cuttable ones shrink
    first."""
    widths = list(wanted)
    cuttable = [HEADINGS.index(name) for name in CUTTABLE]
    while sum(widths) + len(widths) + 1 > room:  # as rich counts: a space per column, and one more
        widest = max(cuttable, key=lambda n: widths[n])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    return widths


def _middle(text: str, width: int) -> str:
    """Cut in the middle, because names of one kind begin alike and end with numbers."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _note(row: LogRow) -> str:
    told = row.left_out or "trained" * row.trained
    return ", ".join(filter(None, [row.status if row.status not in ("ok", *told.split()) else "", told]))


def _plain(row: LogRow) -> dict[str, Any]:
    """Return a row for scripts, with its JSON columns parsed."""
    cells = rollout_log.cells(row)
    return cells | {name: json.loads(cells[name]) for name in ("components", "item", "messages")}
