"""Look at what the agent did, and what it earned.

Every stage with a policy keeps all its rollouts: whole dialogues, grades, tokens.

  rft rollouts                                   the newest run's
  rft rollouts RUN --stage train --worst 5       what went wrong most
  rft rollouts --where "stop_reason = 'max_tokens' AND num_turns > 3"
  rft rollouts --show 3f2a --tokens              one dialogue, with grade and tokens
  rft rollouts --group n-0007 --stage train      one example's rollouts side by side
  rft rollouts --summary                         what was trained on, and why the rest was not
  rft rollouts --live                            while a stage works
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.cli.options import add_selection
from flows.screen import say
from rft.errors import RftError, UserError
from rft.words import counted
from tasks.runs import clone
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from flows.rollouts import Logs
    from rft.rollouts import log as rollout_log
    from rft.rollouts import transcript
    from rft.rollouts.log import LogRow

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
    parser.add_argument("--live", action="store_true", help="of stages that are still working")
    add_selection(parser)
    what = parser.add_argument_group("instead of the list").add_mutually_exclusive_group()
    what.add_argument(
        "--show", metavar="ROLLOUT", help="one rollout as a transcript; the beginning of its id is enough"
    )
    what.add_argument("--group", metavar="EXAMPLE", help="the rollouts of one example side by side")
    what.add_argument(
        "--summary", action="store_true", help="sampled = trained + left out with a reason, by stage and step"
    )
    what.add_argument("--json", action="store_true", help="a JSON object a line")
    what.add_argument("--export", metavar="FILE", help="OpenAI chat JSONL: messages, reward, metadata")
    what.add_argument("--export-traces", action="store_true", help="MLflow traces, beside the run's metrics")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="with --show: every sampled token, its log-probability, the unlikely ones marked",
    )


def run(options: argparse.Namespace) -> int:
    from flows import rollouts
    from rft.rollouts import log as rollout_log

    place = clone.enter()
    logs = rollouts.find(place, options)
    console = Console(highlight=False)
    if options.show:
        return _show(console, logs, options.show, options.tokens)
    chosen = rollouts.chosen(logs.table, options)
    rows = rollout_log.rows_of(chosen)
    if options.summary:
        return _summary(console, logs, rows, whole=len(rows) == logs.table.num_rows)
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
    """On a terminal the first `most`; a file or pipe gets all."""
    from rft.rollouts import transcript

    total = logs.table.num_rows
    if not rows:
        say(f"No rollout of {logs.words} fits." if total else f"There is no rollout of {logs.words}.")
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
    many = f"{len(rows)} of {counted(total, 'rollout')} of {logs.words}{least}"
    say(f"\n{many}. One of them: --show ROLLOUT; those of one example side by side: --group ID.")
    return 0


def _cells(row: LogRow) -> tuple[str, ...]:
    from flows.rollouts import short
    from rft.rollouts import transcript

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
    """Of the columns; where the terminal is too narrow for all, the widest of those that may be cut
    give way first."""
    widths = list(wanted)
    cuttable = [HEADINGS.index(name) for name in CUTTABLE]
    while sum(widths) + len(widths) + 1 > room:  # so rich counts: a space a column, and one before the first
        widest = max(cuttable, key=lambda n: widths[n])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    return widths


def _middle(text: str, width: int) -> str:
    """Cut in the middle: names of one kind begin alike, and numbers end them."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _note(row: LogRow) -> str:
    told = row.left_out or "trained" * row.trained
    return ", ".join(filter(None, [row.status if row.status not in ("ok", *told.split()) else "", told]))


def _plain(row: LogRow) -> dict[str, Any]:
    """For scripts: JSON columns as what they hold."""
    from rft.rollouts import log as rollout_log

    cells = rollout_log.cells(row)
    return cells | {name: json.loads(cells[name]) for name in ("components", "item", "messages")}


def _summary(console: Console, logs: Logs, rows: Sequence[LogRow], whole: bool) -> int:
    """Sampled = trained + left out; also against what the training counted while it ran."""
    from rft import shelves
    from rft.rollouts import log as rollout_log

    tallies = rollout_log.tally(rows)
    if whole:
        _against_metrics(tallies, logs.read(str(shelves.METRICS)))
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("stage/arm", "step", "sampled", "trained", "compared", "left out"):
        table.add_column(name, justify="left" if name in ("stage/arm", "left out") else "right", overflow="fold")
    for one in tallies:
        out = "\n".join(f"{count} {reason}" for reason, count in sorted(one.left_out.items()))
        counts = (str(one.sampled), str(one.trained or ""), str(one.compared or ""))
        table.add_row(*map(Text, (f"{one.stage}/{one.arm}", str(one.step or ""), *counts, out)))
    console.print(table)
    sums = [sum(getattr(one, name) for one in tallies) for name in ("sampled", "trained", "compared")]
    left = sum(one.left_out.total() for one in tallies)
    say(
        f"{sums[0]} sampled = {sums[1]} trained on + {sums[2]} compared (stages that train nothing) + {left} left "
        "out. It adds up."
    )
    return 0


def _against_metrics(tallies: Sequence[rollout_log.Tally], metrics: bytes | None) -> None:
    """Raises RftError when the log and the training's own metrics do not tell the same."""
    for line in (metrics or b"").splitlines():
        told = json.loads(line)
        if "samples/sampled" not in told:
            continue
        mine = [one for one in tallies if one.stage == "train" and one.step == told["step"]]
        # held-out examples are no samples of the step
        sampled = sum(one.sampled - one.left_out["validation"] for one in mine)
        for key, found in (("samples/sampled", sampled), ("samples/trained", sum(one.trained for one in mine))):
            if found != told.get(key, 0):
                raise RftError(
                    f"the log does not add up: step {told['step']} of training says {key} = {told.get(key, 0)}, "
                    f"its log holds {counted(found, 'rollout')}."
                )


# -- one, and a group ------------------------------------------------------------------------------
def _show(console: Console, logs: Logs, prefix: str, tokens: bool) -> int:
    from flows.rollouts import bare
    from rft.rollouts import log as rollout_log
    from rft.rollouts import transcript

    ids = logs.table["rollout_id"].to_pylist()
    hits = [n for n, one in enumerate(ids) if one.startswith(prefix) or bare(one).startswith(prefix)]
    known = list(dict.fromkeys(ids[n] for n in hits))
    if not known:
        raise UserError(f"--show {prefix}: no rollout of {logs.words} has an id that begins so. {logs.listed}")
    if len(known) > 1:
        raise UserError(
            f"--show {prefix}: {len(known)} rollouts begin so ({', '.join(map(bare, known[:4]))} ...). Write "
            "more of it."
        )
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
    from tokenizers import Tokenizer

    from flows.rollouts import read_bytes
    from rft import reports, shelves

    path = str(shelves.path(reports.PolicyReport))
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
    """A table a stage, arm and step. What all rollouts have in common is dim; what differs stands
    out."""
    from rft.rollouts import transcript

    if not rows:
        raise UserError(f"--group {example}: no rollout of that example fits. {logs.listed}")
    every = max(1, (console.width - 14) // 30)
    for title, group in itertools.groupby(rows, transcript.title):
        mine = list(group)
        facts = [transcript.facts(row) for row in mine]
        names = list(dict.fromkeys(name for one in facts for name in one))
        names.sort(
            key=lambda name: (0, 0) if name == "sample" else (1, int(name[5:])) if name.startswith("turn ") else (2, 0)
        )
        say(f"{title}, example {example}: {counted(len(mine), 'rollout')}")
        for start in range(0, len(mine), every):
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
            table.add_column(no_wrap=True, style="bold")
            for _ in facts[start : start + every]:
                table.add_column(width=28, overflow="fold")
            for name in names:
                same = len({one.get(name) for one in facts}) == 1
                values = [one.get(name, "–") for one in facts[start : start + every]]
                if any(value not in ("", "–") for value in values):
                    table.add_row(name, *(Text(value, "dim" if same and name != "sample" else "") for value in values))
            console.print(table)
    return 0


# -- exports ---------------------------------------------------------------------------------------
def _export_chat(rows: Sequence[LogRow], path: Path) -> int:
    from flows.rollouts import whole

    names = ("rollout_id", "stage", "arm", "step", "example_id", "sample", "attempt", "split", "slice", "stop_reason")
    more = ("score", "solved", "status", "trained", "left_out")
    with whole(path) as part, part.open("w", encoding="utf-8") as file:
        for row in rows:
            tools = json.loads(row.item).get("tools")
            chat = {"messages": json.loads(row.messages)} | ({"tools": tools} if tools else {}) | {"reward": row.reward}
            file.write(
                json.dumps(
                    chat | {"metadata": {name: getattr(row, name) for name in (*names, *more)}}, ensure_ascii=False
                )
                + "\n"
            )
    say(f"{counted(len(rows), 'rollout')} in {path}")
    return 0


def _export_traces(place: Clone, logs: Logs, rows: Sequence[LogRow]) -> int:
    from flows.rollouts import counter
    from tasks.display import traces

    if logs.record is None:
        raise UserError(
            "--export-traces: traces hang on a run in MLflow, and these rollouts belong to none. Name a RUN."
        )
    experiment = traces.export(place, logs.record, rows, counter("traces", len(rows)))
    many = f"{counted(len(rows), 'trace')} of run {logs.record.name}"
    say(
        f"{many} {'is' if len(rows) == 1 else 'are'} in MLflow's experiment {experiment!r}; exported again, they are "
        "the same traces."
    )
    return 0
