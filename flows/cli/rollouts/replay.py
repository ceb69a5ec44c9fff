"""Grade stored rollouts with another grader, without sampling.

  rft rollouts replay --grader agents/mine/recipe/grader.json
  rft rollouts replay RUN --stage challenger --grader stricter.json --out both.parquet

It shows the new scores beside the old ones, and nothing in the run changes. The rollouts of the
test set are left out: a grader sees whole dialogues, and that set stays closed. What ended in an
outage stays unscored. The settings are the run's own, changed by --set, or those of --params.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import rollouts, settings
from flows.cli.options import add_place, add_selection, add_settings
from flows.rollouts import Logs, short, whole
from flows.screen import print_line
from rft.errors import UserError
from rft.formatting import counted
from rft.grading.judge import TokenUsage
from rft.rollouts import log as rollout_log
from rft.rollouts import replay as engine
from rft.rollouts import transcript
from rft.rollouts.replay import Regraded
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grader",
        required=True,
        metavar="FILE",
        help="a grader's JSON; if its url has {tool_server}, the recipe's own server is started",
    )
    parser.add_argument("--out", metavar="FILE", help="both grades of every rollout, as .parquet or .jsonl")
    add_place(parser, live=False)
    add_selection(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    place = clone.enter()
    out = Path(options.out).resolve() if options.out else None
    if out and out.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"--out {options.out}: end the name with .parquet or .jsonl, which chooses the format.")
    grader = engine.load_grader(Path(options.grader))
    logs = rollouts.find(place, options)
    if logs.record and not options.params:
        params = settings.of_run(place, logs.record, options.overrides)
    else:
        params = settings.resolve(place, options.params, options.overrides)
    if logs.closed:
        rollouts.aside(logs.closed)
    rows = rollout_log.rows_of(rollouts.chosen(logs.table, options))
    if not rows:
        raise UserError(f"no rollout of {logs.description} matches: there is nothing to grade. {logs.listed}")
    with contextlib.chdir(place.home):  # recipe.path in params.yaml is relative to it
        usage: dict[str, TokenUsage] = {}
        regraded = engine.regrade(rows, grader, params, rollouts.counter("replay", len(rows)), usage.update)
    if out:
        _write_out(list(map(engine.record, regraded)), out)
    _compared(logs, grader.name, regraded)
    for text in grader.remarks:
        print_line(f"{options.grader}: {text}")
    for model, tokens in usage.items():
        cost = engine.cost(grader, model, tokens)
        text = f"{tokens.calls:,} replies, {tokens.prompt:,} tokens read, {tokens.completion:,} written"
        print_line(f"judge {model}: {text}{'' if cost is None else f', cost {cost:.4f}'}")
    return 0


def _write_out(lines: Sequence[dict[str, Any]], path: Path) -> None:
    with whole(path) as part:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(lines), part)
        else:
            part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def _compared(logs: Logs, name: str, regraded: Sequence[Regraded]) -> None:
    console = Console(highlight=False)
    found = engine.compare(regraded)
    graded = f"{counted(len(regraded), 'rollout')} of {logs.description}, graded again by {name!r}"
    print_line(f"{graded}; {found.both} have a score from both graders.")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "then", "now", "difference"):
        table.add_column(column, justify="right" if column else "left")
    for label, old, new in (
        ("mean score", found.old_mean, found.new_mean),
        ("solved", found.old_solved, found.new_solved),
    ):
        if old is not None and new is not None:
            table.add_row(label, f"{old:z.3f}", f"{new:z.3f}", f"{new - old:+z.3f}")
    if found.both:
        console.print(table)
    print_line(f"changed: {found.changed} of {found.both} ({found.up} up, {found.down} down)")
    print_line(
        f"unscored now, and in no mean: {found.unscored} ({found.only_old} had a score then); scored now and not "
        f"then: {found.only_new}"
    )
    for again in engine.disagreements(regraded)[:10]:
        which = f"{short(again.row.rollout_id)}  {transcript.title(again.row)}, {again.row.example_id}"
        change = f"{transcript.number(again.row.score)} → {transcript.number(again.grade.score)}"
        console.print(Text(f"  {which}: {change}  {again.grade.explanation}"), no_wrap=True, overflow="ellipsis")
    for reason in sorted({again.grade.explanation for again in regraded if again.grade.score is None})[:3]:
        console.print(Text(f"  unscored: {reason}"), no_wrap=True, overflow="ellipsis")
