"""Look at what the agent did, and what it earned.

Every stage with a policy keeps all its rollouts: whole dialogues, grades, tokens. Those of the test
set stay closed, because whoever reads them tunes on the test: the arms play validation examples,
too, to be read. --open-test shows the test set, by an entry in the ledger, and no later run can be
judged on it.

  rft rollouts                                   those of the newest run
  rft rollouts RUN --stage train --worst 5       what went wrong most
  rft rollouts --where "stop_reason = 'max_tokens' AND num_turns > 3"
  rft rollouts --show 3f2a --tokens              one dialogue, with grade and tokens
  rft rollouts --group n-0007 --stage train      one example's rollouts side by side
  rft rollouts --summary                         what was trained on, and why the rest was not
  rft rollouts --live                            while a stage works
  rft rollouts RUN --open-test --reason TEXT     with the test set, which is retired then
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from flows import rollouts
from flows.cli.options import add_open_test, add_selection, check_open_test
from flows.rollouts import Logs, bare, counter, read_bytes, short, whole
from flows.screen import print_line
from rft import reports, stage_files
from rft.errors import RftError, UserError
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from tasks.display import traces
from tasks.runs import clone
from tasks.runs.clone import Clone

LISTED = 20
HEADINGS = ("rollout", "stage/arm", "step", "example", "n", "stopped", "calls", "tokens", "reward", "")
CUTTABLE = ("stage/arm", "example", "stopped", "")
STYLES: dict[transcript.Kind, str] = {
    "head": "bold",
    "role": "bold cyan",
    "text": "",
    "call": "yellow",
    "result": "dim",
    "good": "green",
    "bad": "red",
    "dim": "dim",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="the rollouts of stages in progress")
    add_selection(parser)
    add_open_test(parser)
    what = parser.add_argument_group("instead of the list").add_mutually_exclusive_group()
    what.add_argument(
        "--show", metavar="ROLLOUT", help="one rollout as a transcript; the beginning of its id is enough"
    )
    what.add_argument("--group", metavar="EXAMPLE", help="the rollouts of one example side by side")
    what.add_argument(
        "--summary", action="store_true", help="sampled = trained + left out with a reason, by stage and step"
    )
    what.add_argument("--json", action="store_true", help="one JSON object per line")
    what.add_argument("--export", metavar="FILE", help="OpenAI chat JSONL: messages, reward, metadata")
    what.add_argument("--export-traces", action="store_true", help="MLflow traces, beside the run's metrics")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="with --show: every sampled token with its log-probability, unlikely ones marked",
    )


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    place = clone.enter()
    logs = rollouts.find(place, options)
    console = Console(highlight=False)
    if options.show:
        return _show(console, logs, options.show, options.tokens)
    if options.summary:
        return _summarized(console, logs, options)
    if logs.closed and (options.json or options.export or options.export_traces):
        rollouts.aside(logs.closed)
    rows = rollout_log.rows_of(rollouts.chosen(logs.table, options))
    if options.group:
        return _groups(console, logs, rows, options.group)
    if options.export:
        return _export_chat(rows, Path(options.export))
    if options.export_traces:
        return _export_traces(place, logs, rows)
    if options.json:
        for row in rows:
            print(json.dumps(_plain(row), ensure_ascii=False))
        return 0
    return _list(console, logs, rows, len(rows) if options.n or options.worst or options.best else LISTED)


# -- many ------------------------------------------------------------------------------------------
def _list(console: Console, logs: Logs, rows: Sequence[LogRow], most: int) -> int:
    """Print a table: of the first `most` on a terminal, of all into a file or pipe."""
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
    print_line(f"\n{many}. One of them: --show ROLLOUT; those of one example side by side: --group ID.")
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
    while sum(widths) + len(widths) + 1 > room:  # so rich counts: a space a column, and one before the first
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


def _summarized(console: Console, logs: Logs, options: argparse.Namespace) -> int:
    """Count the test set as well, unless single examples are chosen."""
    picks = (options.example, options.reward, options.where, options.worst, options.best, options.n)
    table = logs.table if logs.whole is None or any(pick is not None for pick in picks) else logs.whole
    chosen = rollouts.chosen(table, options)
    every = (logs.table if logs.whole is None else logs.whole).num_rows
    return _summary(console, logs, rollout_log.rows_of(chosen), whole=chosen.num_rows == every)


def _summary(console: Console, logs: Logs, rows: Sequence[LogRow], whole: bool) -> int:
    """Check that sampled = trained + left out, also against what the training itself counted."""
    tallies = rollout_log.tally(rows)
    if whole:
        _against_metrics(tallies, logs.read(str(stage_files.METRICS)))
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("stage/arm", "step", "sampled", "trained", "compared", "left out"):
        table.add_column(name, justify="left" if name in ("stage/arm", "left out") else "right", overflow="fold")
    for tally in tallies:
        out = "\n".join(f"{count} {reason}" for reason, count in sorted(tally.left_out.items()))
        counts = (str(tally.sampled), str(tally.trained or ""), str(tally.compared or ""))
        table.add_row(*map(Text, (f"{tally.stage}/{tally.arm}", str(tally.step or ""), *counts, out)))
    console.print(table)
    sampled, trained, compared, left = (
        sum(tally.sampled for tally in tallies),
        sum(tally.trained for tally in tallies),
        sum(tally.compared for tally in tallies),
        sum(tally.left_out.total() for tally in tallies),
    )
    parts = f"{trained} trained on + {compared} compared (stages that train nothing) + {left} left out"
    print_line(f"{sampled} sampled = {parts}. It adds up.")
    return 0


def _against_metrics(tallies: Sequence[rollout_log.Tally], metrics: bytes | None) -> None:
    """Raise RftError if the log and the training's own metrics differ."""
    for line in (metrics or b"").splitlines():
        step = json.loads(line)
        if "samples/sampled" not in step:
            continue
        own = [tally for tally in tallies if tally.stage == "train" and tally.step == step["step"]]
        # held-out examples are not samples of the step
        sampled = sum(tally.sampled - tally.left_out["validation"] for tally in own)
        for key, found in (("samples/sampled", sampled), ("samples/trained", sum(tally.trained for tally in own))):
            if found != step.get(key, 0):
                raise RftError(
                    f"the log does not add up: step {step['step']} of training says {key} = {step.get(key, 0)}, "
                    f"its log holds {counted(found, 'rollout')}."
                )


# -- one, and a group ------------------------------------------------------------------------------
def _show(console: Console, logs: Logs, prefix: str, tokens: bool) -> int:
    ids = logs.table["rollout_id"].to_pylist()
    hits = [n for n, name in enumerate(ids) if name.startswith(prefix) or bare(name).startswith(prefix)]
    known = list(dict.fromkeys(ids[n] for n in hits))
    if not known:
        raise UserError(
            f"--show {prefix}: no rollout of {logs.description} has an id that begins with it. {logs.listed}"
        )
    if len(known) > 1:
        some = ", ".join(map(bare, known[:4]))
        raise UserError(f"--show {prefix}: {len(known)} rollouts begin with it ({some} ...). Write more of the id.")
    for row in rollout_log.rows_of(logs.table.take(hits)):
        lines: Iterator[transcript.Line] = transcript.lines(row)
        if tokens:
            lines = itertools.chain(
                lines, [transcript.Line("tokens", "role")], transcript.token_lines(row, _decoder(logs))
            )
        for line in lines:
            console.print(Text(line.text, STYLES[line.kind]), soft_wrap=True)
    return 0


def _decoder(logs: Logs) -> Callable[[list[int]], str] | None:
    """The run's own tokenizer, by the light library; None when its folder is not at hand."""
    path = str(stage_files.path(reports.PolicyReport))
    found = logs.read(path)
    if found is None:
        return None
    model = Path(reports.parse(reports.PolicyReport, found, path).model)
    content = (
        logs.read(str(model / "tokenizer.json")) if not model.is_absolute() else read_bytes(model / "tokenizer.json")
    )
    if content is None:
        return None
    tokenizer = Tokenizer.from_str(content.decode())
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _groups(console: Console, logs: Logs, rows: Sequence[LogRow], example: str) -> int:
    """Print a table per stage, arm and step. What its rollouts have in common is dim."""
    if not rows:
        raise UserError(f"--group {example}: no rollout of that example matches. {logs.listed}")
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


# -- exports ---------------------------------------------------------------------------------------
def _export_chat(rows: Sequence[LogRow], path: Path) -> int:
    names = ("rollout_id", "stage", "arm", "step", "example_id", "sample", "attempt", "split", "slice", "stop_reason")
    more = ("score", "solved", "status", "trained", "left_out")
    with whole(path) as part, part.open("w", encoding="utf-8") as file:
        for row in rows:
            tools = json.loads(row.item).get("tools")
            chat = {"messages": json.loads(row.messages)} | ({"tools": tools} if tools else {}) | {"reward": row.reward}
            chat["metadata"] = {name: getattr(row, name) for name in (*names, *more)}
            file.write(json.dumps(chat, ensure_ascii=False) + "\n")
    print_line(f"{counted(len(rows), 'rollout')} in {path}")
    return 0


def _export_traces(place: Clone, logs: Logs, rows: Sequence[LogRow]) -> int:
    if logs.record is None:
        raise UserError("--export-traces: traces belong to a run in MLflow, and these rollouts to none. Name a RUN.")
    experiment = traces.export(place, logs.record, rows, counter("traces", len(rows)))
    many = f"{counted(len(rows), 'trace')} of run {logs.record.name} {'is' if len(rows) == 1 else 'are'}"
    print_line(f"{many} in MLflow's experiment {experiment!r}; another export adds none twice.")
    return 0
