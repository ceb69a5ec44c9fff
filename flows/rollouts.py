"""Find and filter stored rollouts, for the verbs of `rft rollouts`.

The rollouts of a run are read from its revision by hash (tasks/runs/artifacts.py), those of stages
in progress from the stores under `.rft/progress`. All become one table with the columns of
rft/rollouts/log.py. Those of the test set stay closed: the table holds them only once an entry in
the ledger has opened the set (tasks/promotion/retiring.py). `--where` is an expression over these
columns, evaluated by DuckDB without access to anything else. Nothing here changes a log.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import operator
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flows import settings
from flows.screen import warn
from rft import stage_files
from rft.__main__ import STAGES
from rft.commands import WHY, command
from rft.errors import UserError, did_you_mean
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts import store as rollout_store
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from rft.types import EARLIER_STATUSES, EARLIER_STOP_REASONS, StopReason
from tasks.promotion import champions, elsewhere, retiring
from tasks.runs import artifacts, records
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

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
"""How each kind of line looks on a terminal."""
_COMPARISONS: dict[str | None, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "==": operator.eq,
    None: operator.eq,
}
_EARLIER = {"status": EARLIER_STATUSES, "stop_reason": EARLIER_STOP_REASONS}
_QUOTED = re.compile(r"'(\w+)'")
_REWARD = re.compile(r"\s*(<=|>=|==|=|!=|<|>)?\s*(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*")


@dataclass(frozen=True)
class Logs:
    """Rollouts as a table, a description of where they are from, and a way to read files there."""

    description: str
    table: pa.Table
    read: Callable[[str], bytes | None]
    """A file of a stage, such as data/train/metrics.jsonl."""
    record: RunRecord | None = None
    whole: pa.Table | None = None
    """The table with the test set's rollouts, which are only counted. None: `table` is whole."""

    @property
    def closed(self) -> str:
        """Say what is left out."""
        num = 0 if self.whole is None else self.whole.num_rows - self.table.num_rows
        if not num:
            return ""
        named = [self.record.name] if self.record else ["--here"] if self.description != LIVE else ["RUN"]
        opens = command("rollouts list", *named, "--open-test", *WHY)
        return f"{counted(num, 'rollout')} of the test set stay closed. To open it, and retire it: {opens}"

    @property
    def listed(self) -> str:
        where = self.record.name if self.record else "--live" if self.description == LIVE else "--here"
        return f"To list them: {command('rollouts list', where)}. {self.closed}".rstrip(". ")


# -- where they are --------------------------------------------------------------------------------
def find(place: Clone, options: argparse.Namespace) -> Logs:
    """Return the rollouts that may be shown. `--open-test` opens the test set first."""
    logs = _found(place, options)
    if options.open_test:
        _open(place, logs, options)
        return logs
    return replace(logs, table=logs.table.filter(pc.field("split") != "test"), whole=logs.table)


def _open(place: Clone, logs: Logs, options: argparse.Namespace) -> None:
    """Write the entry that opens the test set of these rollouts."""
    if logs.description == LIVE:
        raise UserError("--open-test: stages in progress keep their test set closed. Name a RUN, or --here.")
    if "test" not in logs.table["split"].to_pylist():
        raise UserError(f"--open-test: {logs.description} has no rollouts of a test set, so there is nothing to open.")
    if logs.record is None:
        model = champions.model_name(settings.resolve(place, None))
        source = retiring.of_folder(place.home, retiring.HERE, model)
    elif logs.record.revision is None:
        tree = place.worktrees / logs.record.name / logs.record.folder
        model = champions.model_name(settings.of_file(tree / "params.yaml", []))
        source = retiring.of_folder(tree, logs.record.name, model)
    else:
        source = retiring.of_run(place, logs.record.name, logs.record.revision)
    number = retiring.open_test(place, source, options.reason, aside)
    aside(f"The test set of {logs.description} is open by entry {number} of the ledger.")


def _found(place: Clone, options: argparse.Namespace) -> Logs:
    if sum((bool(options.run), options.here, options.live)) > 1:
        raise UserError(
            "name one place: a RUN, --here (the stages' files in this folder) or --live (stages in progress)."
        )
    if options.live:
        return _live(place)
    if options.here:
        return _stage_files("this folder", lambda path: read_bytes(place.home / path))
    record = elsewhere.find(place, options.run, aside) if options.run else _newest(place)
    if record.revision:
        return _stage_files(f"run {record.name}", artifacts.Revision(place, record.revision).read, record)
    tree = place.worktrees / record.name / record.folder
    if not tree.exists():
        live_ones = command("rollouts list", "--live")
        raise UserError(f"run {record.name} is {record.state} and has no rollouts. Those in progress: {live_ones}")
    return _stage_files(f"run {record.name}, not over", lambda path: read_bytes(tree / path), record)


def _newest(place: Clone) -> RunRecord:
    found = [record for record in records.of_agent(place) if record.revision]
    if not found:
        live, here = command("rollouts list", "--live"), command("rollouts list", "--here")
        raise UserError(
            f"no run has ended yet. Rollouts of stages in progress: {live}; of the stages' files in this folder: {here}"
        )
    return sorted(found, key=lambda record: record.started)[-1]  # of runs of one moment, the last by name


def _stage_files(description: str, read: Callable[[str], bytes | None], record: RunRecord | None = None) -> Logs:
    tables: list[pa.Table] = []
    for stage in STAGES:
        for name in (
            str(stage_files.rollouts(stage)),
            *([str(stage_files.SHOWN_ROLLOUTS)] if stage == "challenger" else []),
        ):
            if (content := read(name)) is not None:
                tables.append(rollout_log.table(content, f"{name} of {description}"))
    return Logs(description, _together(tables), read, record)


def _live(place: Clone) -> Logs:
    stores = ("*/rollouts", f"*/{stage_files.SHOWN_ROLLOUTS.stem}")
    found = (path for store in stores for path in (place.state / "progress").glob(store))
    folders = sorted(path for path in found if path.is_dir())
    rows: list[LogRow] = []
    for folder in folders:
        try:
            rows += rollout_store.read(folder)
        except rollout_store.OtherVersion as error:
            warn(str(error))
    return Logs(LIVE, rollout_log.table_of(rows), lambda path: None)


def read_bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else rollout_log.schema().empty_table()


# -- which of them ---------------------------------------------------------------------------------
def chosen(table: pa.Table, options: argparse.Namespace) -> pa.Table:
    stop = EARLIER_STOP_REASONS.get(options.stop, options.stop)
    if stop and stop not in list(StopReason):
        raise UserError(f"--stop {options.stop}: no such stop reason. {did_you_mean(options.stop, StopReason)}")
    if options.stage and options.stage not in STAGES:
        raise UserError(f"--stage {options.stage}: no such stage. {did_you_mean(options.stage, STAGES)}")
    wanted = {
        "stage": options.stage,
        "arm": options.arm,
        "step": options.step,
        "example_id": options.example,
        "stop_reason": stop,
    }
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


def _reward(text: str) -> Any:
    """Parse `<0.2`, `>=0.5`, `0.3` (equal) or `none`."""
    reward = pc.field("reward")
    if text.strip() == "none":
        return reward.is_null()
    found = _REWARD.fullmatch(text)
    if found is None:
        raise UserError(
            f"--reward {text!r}: write a bound such as '<0.2', '>=0.5' or '=1', in quotes, or none for the unscored."
        )
    return _COMPARISONS[found[1]](reward, float(found[2]))


def _where(table: pa.Table, text: str) -> pa.Array:
    """Return the rows for which a DuckDB expression is true. It sees the columns and nothing else:
    no file, no network, no statement. Raises UserError for a value that was renamed."""
    columns = [column for column in _EARLIER if column in text.lower()]
    for column, value in itertools.product(columns, _QUOTED.findall(text)):
        # 'timeout' and 'parse_error' are still stop reasons: beside that column they may be meant.
        is_todays = value in list(StopReason) and "stop_reason" in columns
        if not is_todays and (today := _EARLIER[column].get(value)):
            now = f"The {column} {value} is called {today} now, for rollouts of older runs too"
            raise UserError(f"--where {text!r}: {now}. Write '{today}'.")
    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    closed: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": False,
        "python_enable_replacements": False,
        "lock_configuration": True,
    }
    with duckdb.connect(config=closed) as database:
        try:
            found = database.from_arrow(numbered).filter(text).project("_row").fetchall()
        except duckdb.Error as error:
            reason = str(error).split("\n\n")[0].splitlines()[0]
            raise UserError(f"--where {text!r}: {reason}\nThe columns are listed in docs/rollouts.md.") from None
    return pa.array(sorted(row for (row,) in found), pa.int64())


# -- for several verbs -----------------------------------------------------------------------------
def bare(rollout_id: str) -> str:
    return rollout_id.removeprefix("rollout_")


def short(rollout_id: str) -> str:
    return bare(rollout_id)[:8]


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file that takes the name `path` when the block has ended well."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}). Name a file in a folder that exists.") from None
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def aside(message: str) -> None:
    """Print to stderr: stdout may hold rows for programs."""
    print(message, file=sys.stderr, flush=True)


def counter(description: str, total: int) -> Callable[[int], None]:
    """Return a function that prints progress to stderr, as the stages do."""
    every = max(1, total // 20)

    def told(done: int) -> None:
        if done % every == 0 or done == total:
            print(f"[{description}] {done}/{total}", file=sys.stderr, flush=True)

    return told
