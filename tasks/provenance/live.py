"""OpenLineage events while a run goes on, to the file or server that `run.openlineage` names.

    check(clone, settings)          before the run: what can be seen to be wrong is an error
    begin(run, model, settings)     START, or RUNNING when the run was cut off and goes on
    with stage(run, name) as done   START; then COMPLETE with what dvc.lock names, FAIL, or ABORT
    end(run)                        COMPLETE, FAIL or ABORT; nothing for one that waits to go on

A run is not worse because a catalog is down, and does not wait for one. Three rules:

    kept       an event is a line of `.rft/openlineage/RUN.ndjson` before it is sent, and the file
               goes when all of it was taken. So a kill loses none; a receiver may get one twice,
               with the same run id and time
    in order   one thread sends, oldest first. What it cannot deliver it tries again after pauses.
               Lines that dead runs left come first
    bounded    at the run's end it has a few more tries within END_S. What is left then is named,
               and sent by the next run

An event that the server calls wrong (HTTP 400, 413, 422) would stop all others for ever: it is put
aside, in `RUN.refused`.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import yaml

from rft import config, secrets
from rft.config.notify import check_url
from rft.errors import ConfigError, Stopped
from rft.wire import headers
from rft.words import counted
from tasks.provenance import openlineage
from tasks.provenance.openlineage import Event, Job, Kind
from tasks.provenance.subject import Stage, stages
from tasks.runs import records
from tasks.runs.clone import Clone
from tasks.runs.run import Run

TRY_S = 5.0
"""For a connection, and for each piece of an answer."""
PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""After a failure, before the next try; the last one again and again."""
LAST_TRIES = 3
"""At the run's end, within END_S."""
END_S = 15.0
_SETTING = "run.openlineage"
_WRONG = (400, 413, 422)
Say = Callable[[str], None]


class _Refused(Exception):
    """The receiver calls this event wrong: it will not take it later either."""


class _Receiver(Protocol):
    name: str

    def send(self, event: Event) -> None: ...


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


def begin(run: Run, model: str, settings: config.OpenLineage | None, say: Say) -> Live | None:
    if settings is None:
        return None
    receiver = _Server(settings) if settings.url is not None else _File(run.clone.root / (settings.file or ""))
    made = Live(run.clone, Job(model, run.name), receiver, say)
    made.emit("RUNNING" if run.adopted else "START", made.job)
    return made


@contextmanager
def stage(run: Run, name: str) -> Iterator[Callable[[str], None]]:
    """Yields what is to be told how DVC brought the shelf up to date."""
    found: list[str] = []
    live: Live | None = run.lineage
    if live is None:
        yield found.append
        return
    job = live.job.of(name)
    live.emit("START", job)
    try:
        yield found.append
    except Stopped:
        if run.cancelled:  # else it waits for more hours, and goes on
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
@dataclass(frozen=True)
class _Kept:
    """An event, and the file in which it is kept until it is taken."""

    file: Path
    line: str


class Live:
    """Sends the events of one run. Its methods raise nothing, and wait for nobody but `close`."""

    def __init__(self, clone: Clone, job: Job, receiver: _Receiver, say: Say):
        self.job, self._receiver, self._say = job, receiver, say
        self._file = folder(clone) / f"{job.run}.ndjson"
        self._left = deque(_left_behind(clone, job.run))
        self._problem = self._told = ""
        self._refused = 0
        self._changed, self._closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="openlineage", daemon=True)
        self._thread.start()

    def emit(
        self, kind: Kind, job: Job, how: str = "", lock: Path | None = None, code: str = "", failure: str = ""
    ) -> None:
        try:
            done = self._done(lock, job.stage, how) if lock is not None else None
            made = openlineage.event(kind, job, _now(), openlineage.tool_version(), code, done, failure)
            kept = _Kept(self._file, openlineage.line(made))
        except Exception as error:  # of the catalog's events, not of the run
            self._say(f"[openlineage] no {kind} event of {job.name}: {_in_words(error)}")
            return
        with self._changed:
            try:
                _append(kept)
            except OSError as error:
                self._say(f"[openlineage] {kept.file}: {error.strerror}: an event is only in memory until it is taken")
            self._left.append(kept)
            self._changed.notify()
        self._tell()

    def _done(self, lock: Path, name: str | None, how: str) -> Stage | None:
        """What dvc.lock names for a stage. Without it the event still says that the stage is
        over."""
        try:
            found = stages(yaml.load(lock.read_text(encoding="utf-8"), Loader=_LOADER))
        except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
            self._say(f"[openlineage] {lock}: what stage {name} read and wrote is not told: {_in_words(error)}")
            return None
        return next((replace(one, how=how) for one in found if one.name == name), None)

    def close(self) -> None:
        """Wait END_S for what is on its way, and say what was not taken."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(END_S)
        with self._changed:
            left = [*self._left]
        with suppress(OSError):
            _keep(self._file, left)
        refused = self._file.with_suffix(".refused")
        if self._refused:
            events = counted(self._refused, "event")
            self._say(f"[openlineage] {self._receiver.name} calls {events} wrong; they are put aside in {refused}")
        if left:
            mine = counted(len(left), "event")
            why = self._problem or f"no answer within {END_S:g} s"
            kept = "the next run with this setting sends them first"
            self._say(f"[openlineage] {mine} not taken by {self._receiver.name} ({why}). Kept in {self._file}: {kept}")

    def _tell(self) -> None:
        """Say once what is wrong."""
        if self._problem and not self._told:
            self._told = self._problem
            again = f"The run goes on, and events are kept in {self._file.parent} and sent again"
            self._say(f"[openlineage] {self._receiver.name}: {self._told}. {again}")

    def _work(self) -> None:
        failures = late = 0
        while True:
            with self._changed:
                while not self._left and not self._closing:
                    self._changed.wait()
                if not self._left:
                    return
                kept = self._left[0]
            try:
                self._receiver.send(json.loads(kept.line))
            except _Refused as refused:
                self._refused += 1
                self._problem = str(refused)
                with suppress(OSError):
                    _append(_Kept(kept.file.with_suffix(".refused"), kept.line))
            except Exception as error:
                self._problem = _in_words(error)
                late += self._closing
                if late > LAST_TRIES:
                    return
                self._pause(PAUSES_S[0 if late else min(failures, len(PAUSES_S) - 1)])
                failures += 1
                continue
            failures = 0
            with self._changed:
                self._left.popleft()
                if all(other.file != kept.file for other in self._left):
                    with suppress(OSError):
                        kept.file.unlink(missing_ok=True)

    def _pause(self, pause_s: float) -> None:
        """New events do not shorten it; the run's end does, once."""
        closing, until = self._closing, time.monotonic() + pause_s
        with self._changed:
            while self._closing == closing and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)


class _File:
    def __init__(self, path: Path):
        self.name, self._path = str(path), path

    def send(self, event: Event) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _append(_Kept(self._path, openlineage.line(event)))


class _Server:
    """Made from settings alone; raises ConfigError for a variable that is not set, and for a header
    that cannot be one."""

    def __init__(self, settings: config.OpenLineage):
        assert settings.url is not None
        self._url = config.secret(settings.url)
        check_url(self._url)
        self._headers, _ = headers.resolve(settings.headers, f"{_SETTING}.headers")
        self.name = secrets.redact(self._url)
        self._transport: Any = None
        """Of openlineage-python, for which an event in JSON's values is one too."""

    def send(self, event: Event) -> None:
        from openlineage.client.transport.http import HttpConfig, HttpTransport

        if self._transport is None:
            settings = HttpConfig(
                self._url, endpoint="", timeout=TRY_S, custom_headers=self._headers, retry={"total": 0}
            )
            self._transport = HttpTransport(settings)
            # a redirected POST becomes a GET, and the event would be lost without a word
            self._transport.session.max_redirects = 0
        try:
            self._transport.emit(event)
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status is None:
                raise
            if 300 <= status < 400:
                words = f"HTTP {status}, it sends us elsewhere: name the address itself"
                raise ConnectionError(words) from None
            raise (_Refused if status in _WRONG else ConnectionError)(f"HTTP {status}") from None


# -- what is kept ----------------------------------------------------------------------------------
def folder(clone: Clone) -> Path:
    return clone.state / "openlineage"


def _left_behind(clone: Clone, run: str) -> Iterator[_Kept]:
    """What this run, before it was cut off, and runs that are over have not delivered."""
    for file in sorted(folder(clone).glob("*.ndjson")):
        if file.stem != run and records.alive(clone, file.stem):
            continue
        with suppress(OSError):
            for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
                with suppress(ValueError):  # the last line, cut off by a kill
                    json.loads(line)
                    yield _Kept(file, line)


def _append(kept: _Kept) -> None:
    """In one write, so that lines of two processes do not mix."""
    kept.file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(kept.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        content = kept.line.encode()
        if os.write(handle, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _keep(own: Path, left: list[_Kept]) -> None:
    """Leave in each file what was not taken of it."""
    for file in {own, *(kept.file for kept in left)}:
        lines = [kept.line for kept in left if kept.file == file]
        if lines:
            part = file.with_suffix(".part")
            part.write_text("".join(lines), encoding="utf-8")
            os.replace(part, file)
        else:
            file.unlink(missing_ok=True)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""A dvc.lock has some thousand lines, and LibYAML is ten times as fast."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _in_words(error: Exception) -> str:
    """In few words: those of a connection's error name objects in memory."""
    if type(error) is ConnectionError:
        return secrets.redact(str(error))
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "Timeout" in kinds:
        return f"no answer within {TRY_S:g} s"
    if "ConnectionError" in kinds:
        return "no connection"
    return secrets.redact(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
