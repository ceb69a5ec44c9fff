"""What MLflow shows of a run: one MLflow run, its settings, each stage's numbers, training live,
the HTML page.

It is for display: nothing is computed from what is read back. Bytes stay in DVC. The address is
absolute, at the clone's root, unless MLFLOW_TRACKING_URI names a server. The MLflow run's id is
kept in the run's record, so an adopted run continues the same one, and no step of a metric is
logged twice.

Training writes metrics.jsonl under `.rft/` and prints where (`[train] metrics PATH`), and so does
a warm start (`[policy] metrics PATH`). `Live` follows the file from a thread, in batches, whole
lines only. When the stage is over, the shelf's metrics.jsonl fills what is missing. A stage that
DVC did not have to run logs its final numbers, with a tag that says so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rft import reports, secrets
from rft.errors import InfrastructureError
from tasks.display import datasets
from tasks.runs.clone import Clone
from tasks.runs.repro import How
from tasks.runs.run import Run

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run."""
BATCH = 1000
EVERY_S = 2.0
MAX_VALUE = 6000  # MLflow's limit for a parameter's text
Row = Mapping[str, Any]


def address(clone: Clone) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{clone.root / 'mlruns' / 'mlflow.db'}"


def load(clone: Clone) -> None:
    """Import what a client will need. The store itself is not opened yet."""
    quiet()
    importlib.import_module("mlflow")
    if not address(clone).startswith("http"):
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def client(clone: Clone) -> Any:
    """An MlflowClient for tracking and registry. Raises InfrastructureError without a store."""
    quiet()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    (clone.root / "mlruns").mkdir(exist_ok=True)
    try:
        return MlflowClient(tracking_uri=address(clone), registry_uri=address(clone))
    except MlflowException as error:
        store = without_password(address(clone))
        raise InfrastructureError(f"MLflow's store at {store} does not open: {error}") from None


def quiet() -> None:
    """Silence MLflow's own noise on import and first use, each piece by name."""
    from sqlalchemy.exc import SADeprecationWarning

    message = r"The ``noload`` loader strategy is deprecated"
    warnings.filterwarnings("ignore", message=message, category=SADeprecationWarning)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # it logs, with a traceback, what it then raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


class Tracker:
    """One of our runs in MLflow."""

    def __init__(self, run: Run, model: str):
        self._client = client(run.clone)
        self._known: dict[str, int] = {}
        """Metric -> the last step that MLflow holds."""
        if run.record.mlflow_run_id is None:
            created = self._client.create_run(
                experiment(self._client, run.clone, model), run_name=run.name, tags={"run": run.name}
            )
            run.update(mlflow_run_id=created.info.run_id)
        self.run_id: str = run.record.mlflow_run_id or ""
        if run.adopted:
            for key in self._client.get_run(self.run_id).data.metrics:
                self._known[key] = max(metric.step for metric in self._client.get_metric_history(self.run_id, key))
            self._client.set_terminated(self.run_id, "RUNNING")

    def settings(self, raw: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = [Param(key, secrets.redact(value)[:MAX_VALUE]) for key, value in flatten(raw)]
        for start in range(0, len(params), 100):
            self._client.log_batch(self.run_id, params=params[start : start + 100])
        self.tag(**tags)

    def datasets(self, found: list[datasets.Dataset]) -> None:
        """Name what the run read and made; an adopted run has them already."""
        if found:
            self._client.log_inputs(self.run_id, datasets=datasets.inputs(found))

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
        self._client.set_tag(self.run_id, f"stage.{stage}", "ran" if how == "ran" else f"cached ({how})")

    def steps(self, rows: Iterable[Row], prefix: str = "") -> None:
        """Log numbers by step; what MLflow has already is left out."""
        from mlflow.entities import Metric

        now, batch = int(time.time() * 1000), []
        for row in rows:
            step = int(row["step"])
            for name, value in row.items():
                key = metric_key(prefix + name)
                if name == "step" or not isinstance(value, int | float) or not math.isfinite(value):
                    continue
                if step > self._known.get(key, -1):
                    batch.append(Metric(key, float(value), now, step))
                    self._known[key] = step
        for start in range(0, len(batch), BATCH):
            self._client.log_batch(self.run_id, metrics=batch[start : start + BATCH])

    def page(self, path: Path) -> None:
        self._client.log_artifact(self.run_id, str(path))

    def tag(self, **tags: str | None) -> None:
        from mlflow.entities import RunTag

        told = [RunTag(key, secrets.redact(value)) for key, value in tags.items() if value is not None]
        self._client.log_batch(self.run_id, tags=told)

    def end(self, state: str) -> None:
        status = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}.get(state, "KILLED")
        self._client.set_terminated(self.run_id, status)

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        """Follow files while the block lasts. A failing MLflow does not stop training meanwhile."""
        follower = Live(self)
        try:
            yield follower
        finally:
            follower.stop()


class Live:
    def __init__(self, tracker: Tracker):
        self._tracker, self._over = tracker, threading.Event()
        self._paths: dict[Path, str] = {}
        self._thread: threading.Thread | None = None

    def follow(self, path: Path, prefix: str) -> None:
        """Follow one more file of numbers by step. `prefix`: of their names."""
        self._paths[path] = prefix
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        from mlflow.exceptions import MlflowException

        while not self._over.wait(EVERY_S):
            for path, prefix in [*self._paths.items()]:
                # the shelf's file fills the gap, and raises if the store is really gone
                with contextlib.suppress(MlflowException):
                    self._tracker.steps(whole_rows(path), prefix)


def whole_rows(path: Path) -> list[Row]:
    """The whole lines of a metrics.jsonl, which may be missing, or rewritten meanwhile."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def flatten(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`{"train": {"lr": 0.1}}` -> ("train.lr", "0.1"). Of headers, variables alone are shown
    (`env:NAME`), in lists too."""
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(_hidden(key, value), f"{name}.")
        else:
            value = _hidden(key, value)
            yield metric_key(name), value if isinstance(value, str) else json.dumps(value)


def _hidden(key: str, value: Any) -> Any:
    """A setting without the literal values of headers and environments."""
    if isinstance(value, list):
        return [_hidden(key, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if key in ("headers", "env"):
        return {name: text if str(text).startswith("env:") else "(not shown)" for name, text in value.items()}
    return {name: _hidden(name, inner) for name, inner in value.items()}


def metric_key(name: str) -> str:
    """MLflow allows letters, digits and _-. :/ in names."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)[:250]


def run_of(client: Any, model: str, run: str) -> str | None:
    """The id of the MLflow run that shows this run, where this store has it. A run that was made in
    another clone may be in another store."""
    found = client.get_experiment_by_name(model)
    if found is None or "'" in run:
        return None
    hits = client.search_runs([found.experiment_id], f"tags.run = '{run}'", max_results=1)
    return hits[0].info.run_id if hits else None


def experiment(client: Any, clone: Clone, name: str) -> str:
    if found := client.get_experiment_by_name(name):
        return found.experiment_id
    local = address(clone).startswith("sqlite:")
    artifacts = (clone.root / "mlruns" / "artifacts").as_uri() if local else None
    return client.create_experiment(name, artifact_location=artifacts)


def without_password(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    return f"{head.split('://')[0]}://...@{tail}" if at else uri
