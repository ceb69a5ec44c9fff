"""OpenLineage events while a run goes on, to the file or server that `run.openlineage` names.

    check(clone, settings)          Raises an error before the run for settings that cannot work.
    begin(run, model, settings)     START, or RUNNING when the run was cut off and goes on.
    with stage(run, name) as done   START; then COMPLETE with what dvc.lock names, FAIL, or ABORT.
    end(run)                        COMPLETE, FAIL or ABORT; nothing for a run that waits to go on.

A catalog that is down does not fail a run, and a run does not wait for a catalog. Events are kept
in order, and the wait at the run's end is bounded (tasks/runs/outbox.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from rft import config, secrets
from rft.config.notify import check_url
from rft.errors import ConfigError, Stopped
from rft.wire import headers
from tasks.provenance import openlineage
from tasks.provenance.openlineage import Job, Kind
from tasks.provenance.subject import Stage, stages
from tasks.runs import outbox
from tasks.runs.clone import Clone
from tasks.runs.outbox import Piece, Refused
from tasks.runs.run import Run

TRY_S = 5.0
"""The limit for a connection, and for each piece of an answer."""
_SETTING = "run.openlineage"
_WRONG = (400, 413, 422)
ReportLine = Callable[[str], None]


# -- the hooks -------------------------------------------------------------------------------------
def check(clone: Clone, settings: config.OpenLineage | None) -> None:
    """Raise ConfigError or UserError for settings that cannot work."""
    if settings is None:
        return
    if settings.url is not None:
        _Server(settings)
        return
    path = clone.root / (settings.file or "")
    if path.is_dir() or path.resolve() == clone.state:
        raise ConfigError(f"{_SETTING}.file = {settings.file!r} is a folder. Name a file.")
    inside = path.resolve().is_relative_to(clone.root)
    if not inside or path.resolve().relative_to(clone.root).parts[0] != clone.state.name:
        clone.refuse_taken_along(path.resolve())


def begin(run: Run, model: str, settings: config.OpenLineage | None, report_line: ReportLine) -> Live | None:
    if settings is None:
        return None
    receiver = _Server(settings) if settings.url is not None else _File(run.clone.root / (settings.file or ""))
    made = Live(run.clone, Job(model, run.name), receiver, report_line)
    made.emit("RUNNING" if run.adopted else "START", made.job)
    return made


@contextmanager
def stage(run: Run, name: str) -> Iterator[Callable[[str], None]]:
    """Send the events of a stage. Yields a function that takes how DVC brought the stage up to
    date."""
    found: list[str] = []
    live: Live | None = run.lineage
    if live is None:
        yield found.append
        return
    job = live.job.for_stage(name)
    live.emit("START", job)
    try:
        yield found.append
    except Stopped:
        if run.cancelled:  # otherwise it waits for more hours, and goes on
            live.emit("ABORT", job)
        raise
    except Exception:
        log = run.clone.log(run.name, name).relative_to(run.clone.root)
        if run.cancelled:
            live.emit("ABORT", job)
        else:
            live.emit("FAIL", job, failure=f"stage {name} failed; its log is {log}")
        raise
    except BaseException:
        live.emit("ABORT", job)
        raise
    live.emit("COMPLETE", job, how="".join(found[-1:]), lock=run.tree / "dvc.lock", code=run.record.commit)


def end(run: Run | None) -> None:
    if run is None or run.lineage is None:
        return
    live: Live = run.lineage
    run.lineage = None
    state = run.record.state
    kinds: dict[str, Kind] = {"finished": "COMPLETE", "stopped": "COMPLETE", "failed": "FAIL"}
    if state != "paused":
        kind = kinds.get(state, "ABORT")
        live.emit(kind, live.job, failure=f"run {run.name} failed" if kind == "FAIL" else "")
    live.close()


# -- sending ---------------------------------------------------------------------------------------
class Live:
    """Makes the events of one run. Its methods raise nothing, and only `close` waits."""

    def __init__(self, clone: Clone, job: Job, receiver: outbox.Receiver, report_line: ReportLine):
        self.job, self._report_line = job, report_line
        self._outbox = outbox.Outbox(clone, "openlineage", job.run, receiver, report_line, "event")

    def emit(
        self, kind: Kind, job: Job, how: str = "", lock: Path | None = None, code: str = "", failure: str = ""
    ) -> None:
        try:
            done = self._done(lock, job.stage, how) if lock is not None else None
            made = openlineage.event(kind, job, _now(), openlineage.tool_version(), code, done, failure)
            line = openlineage.line(made)
        except Exception as error:  # an error in the events must not fail the run
            self._report_line(f"[openlineage] no {kind} event of {job.name}: {_describe(error)}")
            return
        self._outbox.put(line)

    def _done(self, lock: Path, name: str | None, how: str) -> Stage | None:
        """Return what dvc.lock names for a stage. If it cannot be read, the event still says that
        the stage is over."""
        try:
            found = stages(yaml.load(lock.read_text(encoding="utf-8"), Loader=_LOADER))
        except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
            self._report_line(f"[openlineage] {lock}: what stage {name} read and wrote is not sent: {_describe(error)}")
            return None
        return next((replace(one, how=how) for one in found if one.name == name), None)

    def close(self) -> None:
        self._outbox.close()


class _File:
    def __init__(self, path: Path):
        self.name, self._path = str(path), path

    def send(self, piece: Piece) -> None:
        outbox.append(Piece(self._path, piece.line))

    def problem(self, error: Exception) -> str:
        return _describe(error)


class _Server:
    """A server that receives events. Raises ConfigError for a variable that is not set, and for a
    header that is not valid."""

    def __init__(self, settings: config.OpenLineage):
        assert settings.url is not None
        self._url = config.secret(settings.url)
        check_url(self._url)
        self._headers, _ = headers.resolve(settings.headers, f"{_SETTING}.headers")
        self.name = secrets.redact(self._url)
        self._transport: Any = None
        """The transport of openlineage-python, which also takes an event as JSON values."""

    def problem(self, error: Exception) -> str:
        return _describe(error)

    def send(self, piece: Piece) -> None:
        from openlineage.client.transport.http import HttpConfig, HttpTransport

        if self._transport is None:
            settings = HttpConfig(
                self._url, endpoint="", timeout=TRY_S, custom_headers=self._headers, retry={"total": 0}
            )
            self._transport = HttpTransport(settings)
            # a redirected POST becomes a GET, and the event would be lost without a word
            self._transport.session.max_redirects = 0
        try:
            self._transport.emit(json.loads(piece.line))
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status is None:
                raise
            if 300 <= status < 400:
                message = f"HTTP {status}, it sends us elsewhere: name the final address"
                raise ConnectionError(message) from None
            raise (Refused if status in _WRONG else ConnectionError)(f"HTTP {status}") from None


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""A dvc.lock has some thousand lines, and LibYAML is ten times as fast."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _describe(error: Exception) -> str:
    """Describe an error in few words: a connection's own error names objects in memory."""
    if type(error) is ConnectionError:
        return secrets.redact(str(error))
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "Timeout" in kinds:
        return f"no answer within {TRY_S:g} s"
    if "ConnectionError" in kinds:
        return "no connection"
    return secrets.redact(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
