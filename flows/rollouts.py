"""`rft rollouts` and `rft replay`: look at what the agent really did, run by run, and grade it anew.

A run's rollouts are read from its revision by hash (tasks/artifacts.py), those of stages that still work from the stores under `.rft/progress`. All
questions are asked of one table with the columns of rft/rollout_log.py; `--where` is an expression over them, evaluated by DuckDB without access
to anything else. Nothing here changes a log.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import settings
from flows.screen import say
from rft import reports, rollout_log, rollout_store, transcript
from rft.__main__ import STAGES
from rft.commands import command
from rft.errors import RftError, UserError, did_you_mean
from rft.rollout_log import LogRow
from rft.types import StopReason
from rft.words import counted
from tasks import artifacts, clone, records
from tasks.clone import Clone
from tasks.records import RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from rft.replay import Regraded

LISTED = 20
HEADINGS = ("rollout", "stage/arm", "step", "example", "n", "stopped", "calls", "tokens", "reward", "")
CUTTABLE = ("stage/arm", "example", "stopped", "")
LIVE = "stages in progress"
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
_REWARD = re.compile(r"\s*(<=|>=|==|=|!=|<|>)?\s*(-?[0-9.]+)\s*")


@dataclass(frozen=True)
class Logs:
    """Where the rollouts are from, in words, and how to read what lies beside them."""

    words: str
    table: pa.Table
    read: Callable[[str], bytes | None]
    """A file of a shelf, such as data/train/metrics.jsonl."""
    record: RunRecord | None = None


def show(options: argparse.Namespace) -> int:
    place = clone.enter()
    logs = _logs(place, options)
    console = Console(highlight=False)
    if options.show:
        return _show(console, logs, options.show, options.tokens)
    chosen = _chosen(logs.table, options)
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


# -- where they are --------------------------------------------------------------------------------------------------------
def _logs(place: Clone, options: argparse.Namespace) -> Logs:
    if sum((bool(options.run), options.here, getattr(options, "live", False))) > 1:
        raise UserError("name one place: a RUN, --here (the shelves of this folder) or --live (stages in progress).")
    if getattr(options, "live", False):
        return _live(place)
    if options.here:
        return _shelves("this folder", lambda path: _bytes(place.root / path))
    record = records.find(place, options.run) if options.run else _newest(place)
    if record.revision:
        return _shelves(f"run {record.name}", artifacts.Revision(place, record.revision).read, record)
    tree = place.worktrees / record.name
    if not tree.exists():
        raise UserError(f"run {record.name} is {record.state} and has left nothing yet. Stages in progress: {command('rollouts', '--live')}")
    return _shelves(f"run {record.name}, not over", lambda path: _bytes(tree / path), record)


def _newest(place: Clone) -> RunRecord:
    found = sorted((one for one in records.load_all(place) if one.revision), key=lambda one: one.started)
    if not found:
        live, shelves = command("rollouts", "--live"), command("rollouts", "--here")
        raise UserError(f"no run has ended yet. Rollouts of stages in progress: {live}; of this folder's shelves: {shelves}")
    return found[-1]


def _shelves(words: str, read: Callable[[str], bytes | None], record: RunRecord | None = None) -> Logs:
    tables: list[pa.Table] = []
    for stage in STAGES:
        name = f"data/{stage}/rollouts.parquet"
        if (content := read(name)) is not None:
            tables.append(rollout_log.table(content, f"{name} of {words}"))
    return Logs(words, _together(tables), read, record)


def _live(place: Clone) -> Logs:
    folders = sorted(path for path in (place.state / "progress").glob("*/rollouts") if path.is_dir())
    rows = [row for folder in folders for row in rollout_store.look(folder)]
    return Logs(LIVE, _table(rows), lambda path: None)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables) if tables else rollout_log.schema().empty_table()


def _table(rows: Sequence[LogRow]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([rollout_log.cells(row) for row in rows], schema=rollout_log.schema())


# -- which of them ---------------------------------------------------------------------------------------------------------
def _chosen(table: pa.Table, options: argparse.Namespace) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if options.stop and options.stop not in list(StopReason):
        raise UserError(f"--stop {options.stop}: no such stop reason. {did_you_mean(options.stop, StopReason)}")
    if options.stage and options.stage not in STAGES:
        raise UserError(f"--stage {options.stage}: no such stage. {did_you_mean(options.stage, STAGES)}")
    wanted = {"stage": options.stage, "arm": options.arm, "step": options.step, "example_id": options.example, "stop_reason": options.stop}
    wanted["example_id"] = getattr(options, "group", None) or options.example
    for column, value in wanted.items():
        if value is not None:
            table = table.filter(pc.field(column) == value)
    if options.reward:
        table = table.filter(_reward(options.reward))
    if options.where:
        table = table.take(_where(table, options.where))
    number = options.worst or options.best
    if number:
        table = table.filter(pc.field("reward").is_valid())
        rewards = table["reward"].to_pylist()
        order = sorted(range(len(rewards)), key=rewards.__getitem__, reverse=bool(options.best))
        table = table.take(pa.array(order[:number], pa.int64()))
    return table.slice(0, options.n) if options.n else table


def _reward(words: str) -> Any:
    """`<0.2`, `>=0.5`, `0.3` (equal), `none`."""
    import pyarrow.compute as pc

    reward = pc.field("reward")
    if words.strip() == "none":
        return reward.is_null()
    found = _REWARD.fullmatch(words)
    try:
        value = float(found[2]) if found else None
    except ValueError:
        value = None
    if found is None or value is None:
        raise UserError(f"--reward {words!r}: write a bound such as '<0.2', '>=0.5' or '=1', in quotes, or none for the unscored.")
    ways = {"<": reward < value, "<=": reward <= value, ">": reward > value, ">=": reward >= value, "!=": reward != value}
    return ways.get(found[1] or "=", reward == value)


def _where(table: pa.Table, words: str) -> pa.Array:
    """Rows for which a DuckDB expression is true. It sees the columns and nothing else: no file, no network, no statement."""
    import duckdb
    import pyarrow as pa

    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    closed: dict[str, str | bool | int | float | list[str]] = {"enable_external_access": False, "python_enable_replacements": False}
    with duckdb.connect(config=closed | {"lock_configuration": True}) as database:
        try:
            found = database.from_arrow(numbered).filter(words).project("_row").fetchall()
        except duckdb.Error as error:
            reason = str(error).split("\n\n")[0].splitlines()[0]
            raise UserError(f"--where {words!r}: {reason}\nThe columns: {', '.join(rollout_log.COLUMNS)}.") from None
    return pa.array(sorted(row for (row,) in found), pa.int64())


# -- many ------------------------------------------------------------------------------------------------------------------
def _list(console: Console, logs: Logs, rows: Sequence[LogRow], most: int) -> int:
    """On a terminal the first `most`; a file or pipe gets all."""
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
        table.add_row(*(Text(text, style if name == "reward" else "") for name, text in zip(HEADINGS, cut, strict=True)))
    console.print(table)
    least = "" if len(shown) == len(rows) else f", the first {len(shown)} shown"
    many = f"{len(rows)} of {counted(total, 'rollout')} of {logs.words}{least}"
    say(f"\n{many}. One of them: --show ROLLOUT; those of one example side by side: --group ID.")
    return 0


def _bare(rollout_id: str) -> str:
    return rollout_id.removeprefix("rollout_")


def _short(rollout_id: str) -> str:
    return _bare(rollout_id)[:8]


def _cells(row: LogRow) -> tuple[str, ...]:
    n = ("greedy" if row.temperature == 0 else f"{row.sample}") + (f"+{row.attempt}" if row.attempt else "")
    where = (_short(row.rollout_id), f"{row.stage}/{row.arm}", str(row.step or ""), row.example_id, n)
    return (*where, row.stop_reason, str(row.num_tool_calls), str(row.num_tokens), transcript.number(row.reward), _note(row))


def _widths(wanted: Sequence[int], room: int) -> list[int]:
    """Of the columns; where the terminal is too narrow for all, the widest of those that may be cut give way first."""
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
    cells = rollout_log.cells(row)
    return cells | {name: json.loads(cells[name]) for name in ("components", "item", "messages")}


def _summary(console: Console, logs: Logs, rows: Sequence[LogRow], whole: bool) -> int:
    """Sampled = trained + left out; also against what the training counted while it ran."""
    tallies = rollout_log.tally(rows)
    if whole:
        _against_metrics(tallies, logs.read("data/train/metrics.jsonl"))
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
    say(f"{sums[0]} sampled = {sums[1]} trained on + {sums[2]} compared (stages that train nothing) + {left} left out. It adds up.")
    return 0


def _against_metrics(tallies: Sequence[rollout_log.Tally], metrics: bytes | None) -> None:
    """Raises RftError when the log and the training's own metrics do not tell the same."""
    for line in (metrics or b"").splitlines():
        told = json.loads(line)
        if "samples/sampled" not in told:
            continue
        mine = [one for one in tallies if one.stage == "train" and one.step == told["step"]]
        sampled = sum(one.sampled - one.left_out["validation"] for one in mine)  # held-out examples are no samples of the step
        for key, found in (("samples/sampled", sampled), ("samples/trained", sum(one.trained for one in mine))):
            if found != told.get(key, 0):
                raise RftError(
                    f"the log does not add up: step {told['step']} of training says {key} = {told.get(key, 0)}, "
                    f"its log holds {counted(found, 'rollout')}."
                )


# -- one, and a group ------------------------------------------------------------------------------------------------------
def _show(console: Console, logs: Logs, prefix: str, tokens: bool) -> int:
    ids = logs.table["rollout_id"].to_pylist()
    hits = [n for n, one in enumerate(ids) if one.startswith(prefix) or _bare(one).startswith(prefix)]
    known = list(dict.fromkeys(ids[n] for n in hits))
    if not known:
        raise UserError(f"--show {prefix}: no rollout of {logs.words} has an id that begins so. {_listed(logs)}")
    if len(known) > 1:
        raise UserError(f"--show {prefix}: {len(known)} rollouts begin so ({', '.join(map(_bare, known[:4]))} ...). Write more of it.")
    for row in rollout_log.rows_of(logs.table.take(hits)):
        lines: Iterator[transcript.Line] = transcript.lines(row)
        if tokens:
            lines = itertools.chain(lines, [transcript.Line("tokens", "role")], transcript.token_lines(row, _decoder(logs)))
        for line in lines:
            console.print(Text(line.text, STYLES[line.kind]), soft_wrap=True)
    return 0


def _decoder(logs: Logs) -> Callable[[list[int]], str] | None:
    """The run's own tokenizer, by the light library; None when its folder is not at hand."""
    from tokenizers import Tokenizer

    path = "data/policy/report.json"
    found = logs.read(path)
    if found is None:
        return None
    model = Path(reports.parse(reports.PolicyReport, found, path).model)
    content = logs.read(str(model / "tokenizer.json")) if not model.is_absolute() else _bytes(model / "tokenizer.json")
    if content is None:
        return None
    tokenizer = Tokenizer.from_str(content.decode())
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _listed(logs: Logs) -> str:
    where = [logs.record.name] if logs.record else ["--live" if logs.words == LIVE else "--here"]
    return f"They are listed by: {command('rollouts', *where)}"


def _groups(console: Console, logs: Logs, rows: Sequence[LogRow], example: str) -> int:
    """A table a stage, arm and step. What all rollouts have in common is dim; what differs stands out."""
    if not rows:
        raise UserError(f"--group {example}: no rollout of that example fits. {_listed(logs)}")
    every = max(1, (console.width - 14) // 30)
    for title, group in itertools.groupby(rows, transcript.title):
        mine = list(group)
        facts = [transcript.facts(row) for row in mine]
        names = list(dict.fromkeys(name for one in facts for name in one))
        names.sort(key=lambda name: (0, 0) if name == "sample" else (1, int(name[5:])) if name.startswith("turn ") else (2, 0))
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


# -- exports ---------------------------------------------------------------------------------------------------------------
def _export_chat(rows: Sequence[LogRow], path: Path) -> int:
    names = ("rollout_id", "stage", "arm", "step", "example_id", "sample", "attempt", "split", "slice", "stop_reason")
    more = ("score", "solved", "status", "trained", "left_out")
    with _whole(path) as part, part.open("w", encoding="utf-8") as file:
        for row in rows:
            tools = json.loads(row.item).get("tools")
            chat = {"messages": json.loads(row.messages)} | ({"tools": tools} if tools else {}) | {"reward": row.reward}
            file.write(json.dumps(chat | {"metadata": {name: getattr(row, name) for name in (*names, *more)}}, ensure_ascii=False) + "\n")
    say(f"{counted(len(rows), 'rollout')} in {path}")
    return 0


def _export_traces(place: Clone, logs: Logs, rows: Sequence[LogRow]) -> int:
    from tasks import traces

    if logs.record is None:
        raise UserError("--export-traces: traces hang on a run in MLflow, and these rollouts belong to none. Name a RUN.")
    experiment = traces.export(place, logs.record, rows, _counter("traces", len(rows)))
    many = f"{counted(len(rows), 'trace')} of run {logs.record.name}"
    say(f"{many} {'is' if len(rows) == 1 else 'are'} in MLflow's experiment {experiment!r}; exported again, they are the same traces.")
    return 0


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside it that takes its name when the block has ended well."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"{path}: cannot be written there ({error.strerror}). Name a file in a folder that exists.") from None
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _counter(words: str, total: int) -> Callable[[int], None]:
    """Progress on stderr, as the stages print it."""
    every = max(1, total // 20)

    def told(done: int) -> None:
        if done % every == 0 or done == total:
            print(f"[{words}] {done}/{total}", file=sys.stderr, flush=True)

    return told


# -- grading anew ----------------------------------------------------------------------------------------------------------
def replay(options: argparse.Namespace) -> int:
    from rft import replay as engine

    place = clone.enter()
    out = Path(options.out).resolve() if options.out else None
    if out and out.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"--out {options.out}: end the name with .parquet or .jsonl, so that the form is known.")
    grader = engine.load_grader(Path(options.grader))
    logs = _logs(place, options)
    if logs.record and not options.params:
        params = settings.of_run(place, logs.record, options.overrides)
    else:
        params = settings.resolve(place, options.params, options.overrides)
    rows = rollout_log.rows_of(_chosen(logs.table, options))
    if not rows:
        raise UserError(f"no rollout of {logs.words} fits: there is nothing to grade.")
    with contextlib.chdir(place.root):  # recipe.path in params.yaml is relative to it
        regraded = engine.regrade(rows, grader, params, _counter("replay", len(rows)))
    if out:
        _write_out([engine.record(one) for one in regraded], out)
    _compared(Console(highlight=False), logs, grader.name, regraded)
    return 0


def _write_out(lines: Sequence[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _whole(path) as part:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(lines), part)
        else:
            part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def _compared(console: Console, logs: Logs, name: str, regraded: Sequence[Regraded]) -> None:
    from rft import replay as engine

    found = engine.compare(regraded)
    say(f"{counted(len(regraded), 'rollout')} of {logs.words}, graded anew by {name!r}; {found.both} have a score from both graders.")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "then", "now", "difference"):
        table.add_column(column, justify="right" if column else "left")
    for words, old, new in (("mean score", found.old_mean, found.new_mean), ("solved", found.old_solved, found.new_solved)):
        if old is not None and new is not None:
            table.add_row(words, f"{old:z.3f}", f"{new:z.3f}", f"{new - old:+z.3f}")
    if found.both:
        console.print(table)
    say(f"changed: {found.changed} of {found.both} ({found.up} up, {found.down} down)")
    say(f"unscored now, and in no mean: {found.unscored} ({found.only_old} had a score then); scored now and not then: {found.only_new}")
    worst = engine.disagreements(regraded)[:10]
    for one in worst:
        change = f"{transcript.number(one.row.score)} → {transcript.number(one.grade.score)}"
        line = f"  {_short(one.row.rollout_id)}  {transcript.title(one.row)}, {one.row.example_id}: {change}  {one.grade.explanation}"
        console.print(Text(line), no_wrap=True, overflow="ellipsis")
    for reason in sorted({one.grade.explanation for one in regraded if one.grade.score is None})[:3]:
        console.print(Text(f"  unscored: {reason}"), no_wrap=True, overflow="ellipsis")
