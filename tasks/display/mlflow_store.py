"""MLflow's store: how it is reached, and the only code that sends it a run's numbers.

Its address is absolute, at the clone's root, unless MLFLOW_TRACKING_URI names a server.

tracking.py writes a line of JSON for each thing to be shown. An outbox keeps the lines and sends
them from a thread of its own (tasks/runs/outbox.py). This module gives one line to the store. So a
store that is locked, full, read-only, gone or slow neither delays nor ends a run.

A line can be sent twice. Settings, tags, datasets, pages and the state stay the same, and only
numbers of later steps are added. After an error the run is looked up again: by the id in its
record, then by its name. If this store does not have it, it is created. A store can lose a run when
its database is removed or replaced. Then all lines of the run are sent again from its file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rft import secrets
from rft.errors import InfrastructureError
from tasks.display import datasets
from tasks.runs import outbox, records
from tasks.runs.clone import Clone
from tasks.runs.outbox import Piece, Refused

BATCH = 1000
"""Numbers in one request."""
_PARAMS = 100
_BUGS = (TypeError, LookupError, AttributeError)
"""Errors from a line that no store can take."""
_WORDS = {
    "database is locked": "its database is locked. End the program that holds it",
    "readonly database": "its database is read-only. Let this user write it",
    "unable to open database": "its database cannot be opened. Let this user read and write its folder",
    "disk is full": "its disk is full. Free some space",
    "disk I/O error": "its disk failed, or is read-only. Let this user write it",
    "No space left": "its disk is full. Free some space",
    "not a database": "its file is not a database. Move it away, or restore it",
    "malformed": "its database is damaged. Move it away, or restore it",
    "Read-only file system": "it is on a read-only file system",
    "File exists": "something else lies where its folder was. Move it away",
    "Not a directory": "something else lies where its folder was. Move it away",
    "not permitted": "its files may not be written. Let this user write them",
    "refused": "no connection. Start it",
    "Connection aborted": "no connection. Start it",
    "timed out": "no answer in time",
}


# -- the store -------------------------------------------------------------------------------------
def address(clone: Clone) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{clone.mlruns / 'mlflow.db'}"


def load(clone: Clone) -> None:
    """Import what a client will need, without opening the store."""
    quiet()
    importlib.import_module("mlflow")
    if not address(clone).startswith("http"):
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def client(clone: Clone) -> Any:
    """Return an MlflowClient for tracking and registry. Raises InfrastructureError without a
    store."""
    quiet()
    from mlflow import MlflowClient

    try:
        clone.mlruns.mkdir(parents=True, exist_ok=True)
        # two first runs at once would both lay out the database, and spoil each other's work
        with records.held(clone.state / "mlflow.lock", wait=True):
            return MlflowClient(tracking_uri=address(clone), registry_uri=address(clone))
    except Exception as error:  # from SQLAlchemy, if the database is locked or cannot be opened
        raise InfrastructureError(f"{name(clone)} does not open: {describe(error)}") from error


def name(clone: Clone) -> str:
    return f"MLflow's store at {without_password(address(clone))}"


def describe(error: BaseException) -> str:
    """Say what is wrong with a store, and what helps."""
    message = " ".join(str(error).split())
    known = next((meaning for part, meaning in _WORDS.items() if part in message), None)
    return known or secrets.redact(f"{type(error).__name__}: {message[:200]}")


def quiet() -> None:
    """Silence MLflow's own noise on import and first use, each piece by name."""
    from sqlalchemy.exc import SADeprecationWarning

    message = r"The ``noload`` loader strategy is deprecated"
    warnings.filterwarnings("ignore", message=message, category=SADeprecationWarning)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # it logs an error with a traceback, and then raises it
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def run_of(client: Any, model: str, run: str) -> str | None:
    """Return the id of the MLflow run that shows this run; None where this store does not have it.
    A run of another clone may be in another store."""
    found = client.get_experiment_by_name(model)
    if found is None or "'" in run:
        return None
    hits = client.search_runs([found.experiment_id], f"tags.run = '{run}'", max_results=1)
    return hits[0].info.run_id if hits else None


def experiment(client: Any, clone: Clone, name: str) -> str:
    if found := client.get_experiment_by_name(name):
        return found.experiment_id
    local = address(clone).startswith("sqlite:")
    artifacts = (clone.mlruns / "artifacts").as_uri() if local else None
    return client.create_experiment(name, artifact_location=artifacts)


def without_password(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    return f"{head.split('://')[0]}://...@{tail}" if at else uri


def _forget(clone: Clone) -> None:
    """Make MLflow open the database again: it keeps a file open that was replaced by another
    one."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking._tracking_service import utils

    engines, registry = SqlAlchemyStore._engine_map, utils._tracking_store_registry
    if (engine := engines.pop(address(clone), None)) is not None:
        engine.dispose()
    registry._get_store_with_resolved_uri.cache_clear()


# -- a run's lines ---------------------------------------------------------------------------------
class Store:
    """The MLflow of a clone, as a receiver of lines. `found` gets the id of each MLflow run."""

    def __init__(self, clone: Clone, found: Callable[[str, str], None]):
        self._clone, self._found = clone, found
        self._held: _Held | None = None
        self._database: tuple[int, int] | None = None
        self.is_over = False
        """Set when the run has ended without an answer. A call that hangs on a locked database
        until then writes nothing more, because another process sends these lines again."""
        self.name = name(clone)

    def send(self, piece: Piece) -> None:
        told = json.loads(piece.line)
        try:
            if self._held is None or self._held.run != told["run"] or self._file() != self._database:
                self._held = None
                self._held = self._opened(piece, told)
            self._stop_if_over()
            self._held.take(told)
        except Exception as error:
            self._held = None
            if isinstance(error, _BUGS) or getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE":
                raise Refused(describe(error)) from error
            raise

    def problem(self, error: Exception) -> str:
        return describe(error.__cause__ or error)

    def _opened(self, piece: Piece, told: Mapping[str, Any]) -> _Held:
        """Find the run, or create it and send what the store has lost."""
        if self._database is not None and self._file() != self._database:
            _forget(self._clone)
        opened = client(self._clone)
        place = experiment(opened, self._clone, told["model"])
        run_id = self._kept_id(opened, told["run"]) or run_of(opened, told["model"], told["run"])
        is_new = run_id is None
        self._stop_if_over()
        if run_id is None:
            run_id = opened.create_run(place, run_name=told["run"], tags={"run": told["run"]}).info.run_id
            self._stop_if_over()
        self._found(told["run"], run_id)
        self._database = self._file()
        held = _Held(opened, told["run"], run_id)
        earlier = [*outbox.pieces(piece.file)] if is_new else []
        if earlier and earlier[0] != piece:
            for each in earlier:
                held.take(json.loads(each.line))
        return held

    def _stop_if_over(self) -> None:
        if self.is_over:
            raise InfrastructureError("the run is over, and another process sends what is left")

    def _kept_id(self, opened: Any, run: str) -> str | None:
        """Return the id in the run's record; None where this store does not have it."""
        from mlflow.exceptions import MlflowException

        path = records.path(self._clone, run)
        kept = json.loads(path.read_bytes()).get("mlflow_run_id") if path.exists() else None
        if kept is None:
            return None
        try:
            return opened.get_run(kept).info.run_id
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _file(self) -> tuple[int, int] | None:
        """Say which file the database is; None where it is not a file. A removed file that is still
        open takes every line, and nobody ever sees them."""
        with contextlib.suppress(OSError):
            kind, _, path = address(self._clone).partition(":///")
            if kind == "sqlite":
                at = Path(path).stat()
                return at.st_dev, at.st_ino
        return None


class _Held:
    """The MLflow run that is open now."""

    def __init__(self, opened: Any, run: str, run_id: str):
        self.run, self._client, self._id = run, opened, run_id
        self._last = dict.fromkeys(opened.get_run(run_id).data.metrics)
        """Metric -> the last step that MLflow holds; None: not asked yet."""

    def take(self, told: Mapping[str, Any]) -> None:
        getattr(self, f"_{told['do']}")(told["given"])

    def _status(self, given: str) -> None:
        self._client.set_terminated(self._id, given)

    def _params(self, given: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = [Param(key, value) for key, value in given.items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self._id, params=params[start : start + _PARAMS])

    def _tags(self, given: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(key, value) for key, value in given.items()])

    def _datasets(self, given: list[dict[str, Any]]) -> None:
        found = [datasets.Dataset(**each) for each in given]
        self._client.log_inputs(self._id, datasets=datasets.inputs(found))

    def _metrics(self, given: list[tuple[str, float, int, int]]) -> None:
        """Send rows of name, value, step and milliseconds since 1970."""
        from mlflow.entities import Metric

        batch: list[Any] = []
        for key, value, step, at in given:
            if step > self._known(key):
                batch.append(Metric(key, value, at, step))
                self._last[key] = step
        for start in range(0, len(batch), BATCH):
            self._client.log_batch(self._id, metrics=batch[start : start + BATCH])

    def _known(self, key: str) -> int:
        last = self._last.get(key, -1)
        if last is None:
            last = max(metric.step for metric in self._client.get_metric_history(self._id, key))
        return last

    def _page(self, given: str) -> None:
        if Path(given).exists():  # otherwise it was removed with its run's bytes
            self._client.log_artifact(self._id, given)
