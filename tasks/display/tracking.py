"""What MLflow shows of a run: its settings, each stage's numbers, training live, the HTML page.

Each of our runs has one MLflow run. It is for display only: nothing is computed from what is read
back, and bytes stay in DVC. What is to be shown waits in `.rft/mlflow/RUN.ndjson` until the store
has taken it (mlflow_store.py). So a run does not wait for the store, and does not fail with it.
What could not be shown is sent later: during the run, at its end, by the next run, or by an
approval. The run's record keeps the MLflow run's id, so an adopted run continues the same one, and
no step of a metric is logged twice.

Training writes metrics.jsonl under `.rft/` and prints the path (`[train] metrics PATH`), and so
does a warm start (`[policy] metrics PATH`). `Live` follows the file in a thread, in batches of
whole lines. When the stage is over, the stage's metrics.jsonl fills the gaps. A stage that DVC did
not have to run logs its final numbers, with a tag that says so.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rft import reports, secrets
from tasks.display import datasets
from tasks.display.mlflow_store import Store, address, client, experiment, load, quiet, run_of, without_password
from tasks.runs import outbox, records
from tasks.runs.clone import Clone
from tasks.runs.outbox import Outbox
from tasks.runs.records import RunRecord
from tasks.runs.repro import How
from tasks.runs.run import Run

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run."""
FOLDER = "mlflow"
"""The folder in `.rft/` with what MLflow was not told yet."""
EVERY_S = 2.0
MAX_VALUE = 6000  # MLflow's limit for a parameter's text
SETTLE_S = 5.0
"""How long the end of a run waits for a store that answers: then its record names the MLflow
run."""
Row = Mapping[str, Any]
ReportLine = Callable[[str], None]


class Tracker:
    """One of our runs in MLflow. Nothing here raises, and only `settle` and `close` wait for the
    store, for a while."""

    def __init__(self, run: Run, model: str, report_line: ReportLine):
        self._run, self._model = run, model
        self._store = Store(run.clone, self._found)
        self._outbox = Outbox(run.clone, FOLDER, run.name, self._store, report_line, "line", whole=True)
        self._put("status", "RUNNING")

    def _found(self, run: str, run_id: str) -> None:
        """Keep an MLflow run's id in the record of its run."""
        if run == self._run.name:
            if self._run.record.mlflow_run_id != run_id:
                self._run.update(mlflow_run_id=run_id)
        else:
            keep_id(self._run.clone, run, run_id)

    def _put(self, do: str, given: Any, kept: bool = True) -> None:
        told = {"run": self._run.name, "model": self._model, "do": do, "given": given}
        self._outbox.put(json.dumps(told) + "\n", kept)

    def settings(self, raw: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        self._put("params", {key: secrets.redact(value)[:MAX_VALUE] for key, value in flatten(raw)})
        self.tag(**tags)

    def datasets(self, found: list[datasets.Dataset]) -> None:
        """Name what the run read and made. An adopted run may have shown it already."""
        if found:
            self._put("datasets", [asdict(each) for each in found])

    def stage(self, stage: str, how: How, numbers: Mapping[str, reports.Metric | float | None]) -> None:
        """Log a stage's final numbers, their intervals, and whether they are from this run."""
        flat: dict[str, float] = {}
        for key, number in numbers.items():
            if isinstance(number, reports.Metric):
                ends = {"": number.value, "/low": number.low, "/high": number.high}
                flat |= {f"{stage}/{key}{end}": value for end, value in ends.items() if value is not None}
            elif number is not None:
                flat[f"{stage}/{key}"] = float(number)
        self.steps([{"step": 0} | flat])
        self.tag(**{f"stage.{stage}": "ran" if how == "ran" else f"cached ({how})"})

    def steps(self, rows: Iterable[Row], prefix: str = "", kept: bool = True) -> None:
        """Log numbers by step, without those that MLflow has already. `kept` is False for numbers
        that come once more when their stage is over."""
        now = int(time.time() * 1000)
        batch = [
            (metric_key(prefix + name), float(value), int(row["step"]), now)
            for row in rows
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        ]
        if batch:
            self._put("metrics", batch, kept)

    def page(self, path: Path) -> None:
        self._put("page", str(path))

    def tag(self, **tags: str | None) -> None:
        self._put("tags", {key: secrets.redact(value) for key, value in tags.items() if value is not None})

    def end(self, state: str) -> None:
        self._put("status", _status(state))

    def settle(self, patience_s: float = SETTLE_S) -> bool:
        """Wait until MLflow shows all of it. Does not wait for a store that is in trouble."""
        return self._outbox.settle(patience_s)

    def close(self) -> None:
        """Wait for what is being sent, and say what MLflow does not show yet."""
        self._outbox.close()
        self._store.is_over = True

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        """Follow files while the block lasts."""
        follower = Live(self)
        try:
            yield follower
        finally:
            follower.stop()


class Live:
    def __init__(self, tracker: Tracker):
        self._tracker, self._over = tracker, threading.Event()
        self._paths: dict[Path, str] = {}
        self._told: dict[Path, int] = {}
        """File -> the number of its rows that were sent."""
        self._thread: threading.Thread | None = None

    def follow(self, path: Path, prefix: str) -> None:
        """Follow one more file of numbers by step. Their names get the `prefix`."""
        self._paths[path] = prefix
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(EVERY_S):
            for path, prefix in [*self._paths.items()]:
                rows = whole_rows(path)
                told = self._told.get(path, 0)
                # a rewritten file is sent from its start: MLflow takes no step twice
                self._tracker.steps(rows[told if told <= len(rows) else 0 :], prefix, kept=False)
                self._told[path] = len(rows)


def _status(state: str) -> str:
    return {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}.get(state, "KILLED")


def says_its_end(clone: Clone, record: RunRecord) -> bool:
    """Say whether the lines kept of a run name the revision that recorded it."""
    kept = (json.loads(piece.line) for piece in outbox.pieces(_file(clone, record.name)))
    return any(told["do"] == "tags" and told["given"].get("revision") == record.revision for told in kept)


def tell_end(clone: Clone, record: RunRecord, tags: Mapping[str, str | None], page: Path | None) -> None:
    """Add how a run ended that could not add it itself: its process was killed, or its disk was
    full."""
    file = _file(clone, record.name)
    begun = json.loads(next(outbox.pieces(file)).line)
    told: list[tuple[str, Any]] = [
        ("tags", {key: value for key, value in tags.items() if value is not None}),
        ("status", _status(record.state)),
        *([("page", str(page))] if page else []),
    ]
    for do, given in told:
        outbox.append(outbox.Piece(file, json.dumps(begun | {"do": do, "given": given}) + "\n"))


def _file(clone: Clone, run: str) -> Path:
    return clone.state / FOLDER / f"{run}.ndjson"


def keep_id(clone: Clone, run: str, run_id: str) -> None:
    """Keep an MLflow run's id in the record of a run that is over."""
    for record in records.load_all(clone):
        if record.name == run and record.mlflow_run_id != run_id:
            records.save(clone, record.model_copy(update={"mlflow_run_id": run_id}))


def make_up(clone: Clone, report_line: ReportLine) -> None:
    """Send MLflow what it could not take before, about runs that are over. Does not wait if nothing
    is left."""
    if outbox.owed(clone, FOLDER):
        store = Store(clone, lambda run, run_id: keep_id(clone, run, run_id))
        Outbox(clone, FOLDER, None, store, report_line, "line", whole=True).close()


def whole_rows(path: Path) -> list[Row]:
    """Return the whole lines of a metrics.jsonl. It may be missing, or being rewritten."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def flatten(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by dotted name: `{"train": {"lr": 0.1}}` gives ("train.lr", "0.1"). Headers
    show only names of variables (`env:NAME`), in lists too."""
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(_hidden(key, value), f"{name}.")
        else:
            value = _hidden(key, value)
            yield metric_key(name), value if isinstance(value, str) else json.dumps(value)


def _hidden(key: str, value: Any) -> Any:
    """Return a setting without the literal values of headers and environments."""
    if isinstance(value, list):
        return [_hidden(key, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if key in ("headers", "env"):
        return {name: text if str(text).startswith("env:") else "(not shown)" for name, text in value.items()}
    return {name: _hidden(name, inner) for name, inner in value.items()}


def metric_key(name: str) -> str:
    """Make a name that MLflow allows: letters, digits and _-. :/"""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)[:250]


__all__ = [
    "NOTE",
    "Live",
    "Tracker",
    "address",
    "client",
    "experiment",
    "flatten",
    "load",
    "make_up",
    "metric_key",
    "quiet",
    "run_of",
    "says_its_end",
    "tell_end",
    "whole_rows",
    "without_password",
]
