"""Keep a stage's work until its files are safe, so that nothing is computed twice.

    progress.once("baseline", params, measure)    measure(work, stage_folder) works in the folder
                                                  `work`, and builds in `stage_folder` what the
                                                  stage leaves

`work` is `.rft/progress/STAGE-KEY`, outside `data/STAGE`, because DVC empties that before the stage
runs. The key is a hash of all that the stage depends on: its sections and its input files
(rft/needs.py), including those of the engine and its packages. So work continues only under the
conditions under which it was left.

The stage's files are safe once DVC has hashed them, moved them into its cache and written dvc.lock,
after the stage has ended. After a kill before that, the next start empties the stage's folder and
runs the stage again. So the stage builds its files in the work folder, marks the folder complete,
and only then copies the files out. If the stage starts again and finds a complete folder, it copies
them out again and computes nothing:

    work.json       who works here: stage, process, run; and all runs that ever did
    shelf/          all that the stage leaves, whole
    complete.json   written last: when, how much, and the hash of `shelf/`. After that the rest of
                    the folder (checkpoints, rollouts) is deleted

`tasks` deletes the folder (`forget`) when DVC has returned 0. Nobody does so when a stage is
started by hand (`dvc repro`, `python -m rft STAGE`). So such a stage itself clears complete folders
in which no run worked and that are older than a week. `works` lists all folders for `rft runs gc`,
which knows whether a run will continue with one.

A stage holds its folder by a lock (flock) that ends with its process. So a second process is
refused there, and a live folder is never deleted.

`print_line` prints a stage's lines, and `Reporter` those that become bars (rft/lines.py); `within`
says how far a long step is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rft import files, lines, needs, secrets, threads
from rft.errors import InfrastructureError, UserError

A_WEEK_S = 7 * 86400.0
_COMPLETE, _WORK, _STAGE_FOLDER, _GONE = "complete.json", "work.json", "shelf", ".gone"
_FOLDER = re.compile(r"[a-z_]+-[0-9a-f]{16}")
_PATIENCE_S = 2.0


# -- the folder of a stage -------------------------------------------------------------------------
def once(stage: str, params: BaseModel, make: Callable[[Path, Path], None]) -> None:
    """Fill the stage's folder, `data/STAGE`, from finished work if there is any.

    Raises InfrastructureError when another process does the same work, and UserError when
    finished files were damaged.
    """
    work = folder(stage, *needs.from_params(stage, params))
    with _alone(work, stage):
        if not os.environ.get("RFT_RUN"):  # by hand
            _clear_old(stage, work)
        if (work / _COMPLETE).exists():
            _verify(work)
            print_line(
                stage, f"already finished: its files are copied from {work}. To compute it again, delete that folder"
            )
        else:
            files.recover(work)
            part = work / f"{_STAGE_FOLDER}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(work, part)
            except BaseException:
                if not any(part.iterdir()) and {path.name for path in work.iterdir()} == {_WORK, part.name}:
                    shutil.rmtree(work)  # nothing was begun
                raise
            _complete(work, stage, part)
        _keep_only_stage_folder(work)
        _copy_out(work / _STAGE_FOLDER, Path(needs.DATA, stage))


def folder(stage: str, sections: Iterable[Any], inputs: Iterable[Path]) -> Path:
    """Make the work folder for these sections and inputs."""
    path = files.state() / "progress" / _name(stage, sections, inputs)
    path.mkdir(parents=True, exist_ok=True)
    return path


def forget(stage: str, params: BaseModel, tree: Path, place: Path) -> None:
    """Delete the finished work behind the stage's files in `tree`, which DVC now has. Work for
    other settings or inputs stays."""
    if any(path.name.startswith(f"{stage}-") and (path / _COMPLETE).exists() for path in _folders(place)):
        sections, inputs = needs.from_params(stage, params)
        name = _name(stage, sections, [tree / path for path in inputs])
        for path in _folders(place):
            if path.name == name and (path / _COMPLETE).exists():
                remove(path)


def _name(stage: str, sections: Iterable[Any], paths: Iterable[Path]) -> str:
    return f"{stage}-{key(sections, paths)}"


def key(sections: Iterable[Any], paths: Iterable[Path]) -> str:
    """Hash settings and the files at the paths, in 16 digits."""
    dumped = (one.model_dump(mode="json", by_alias=True) if isinstance(one, BaseModel) else one for one in sections)
    given = [*dumped]
    return files.digest([given, [files.tree_sha256(path) for path in paths]])[:16]


def _complete(work: Path, stage: str, part: Path) -> None:
    stage_folder = work / _STAGE_FOLDER
    files.publish(part, stage_folder)
    size, sha256 = _measure(stage_folder)[0], files.tree_sha256(stage_folder)
    _write({"stage": stage, "finished": _now(), "num_bytes": size, "sha256": sha256}, work / _COMPLETE)


def _verify(work: Path) -> None:
    marker = _read(work / _COMPLETE)
    if files.tree_sha256(work / _STAGE_FOLDER) != marker.get("sha256"):
        when = f" on {marker['finished']}" if "finished" in marker else ""
        remedy = f"To compute it again, delete {work}."
        raise UserError(f"{work / _STAGE_FOLDER}: has changed since the stage finished{when}. {remedy}")


def _keep_only_stage_folder(work: Path) -> None:
    """Delete what the stage's files were made from, which takes the most space."""
    for path in work.iterdir():
        if path.name not in (_COMPLETE, _WORK, _STAGE_FOLDER):
            files.delete(path)


def _copy_out(stage_folder: Path, target: Path) -> None:
    """Copy each file of the stage. Others in the target (DVC's .gitignore) stay."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(stage_folder.iterdir()):
        files.delete(target / path.name)
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target / path.name)


# -- who works there -------------------------------------------------------------------------------
@contextlib.contextmanager
def _alone(work: Path, stage: str) -> Iterator[None]:
    """Hold the folder: during the block no other process works in it or deletes it."""
    deadline = time.monotonic() + _PATIENCE_S  # a process that only looks holds the lock for a moment
    while (handle := _lock(work, make=True)) is None:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{work}: another process{_describe(_read(work / _WORK))} is already doing this work: stage {stage} "
                "with the same settings and inputs. Wait until it ends, or stop it. Then start again: finished work "
                "is not repeated."
            )
        time.sleep(0.05)
    try:
        run = os.environ.get("RFT_RUN") or None
        runs = [name for name in _runs(_read(work / _WORK)) if name != run]  # one may wait to continue from here
        runs += [run] if run else []
        _write({"stage": stage, "pid": os.getpid(), "started": _now(), "run": run, "runs": runs}, work / _WORK)
        yield
    finally:
        os.close(handle)


def _lock(work: Path, make: bool = False) -> int | None:
    """Open a handle that holds the folder, or return None while another process does. Raises
    FileNotFoundError when the folder is gone, unless told to make it."""
    while True:
        if make:
            work.mkdir(parents=True, exist_ok=True)
        handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), work.stat()):
                return handle
        os.close(handle)  # the folder was deleted between the two calls


def _runs(who: dict[str, Any]) -> list[str]:
    """List the runs that worked in a folder, the latest last. An earlier engine recorded only the
    latest."""
    found = who.get("runs", [who.get("run")])
    return [name for name in found if name and isinstance(name, str)] if isinstance(found, list) else []


def _describe(who: dict[str, Any]) -> str:
    run = f" of run {who['run']}" if who.get("run") else ""
    return f" (pid {who['pid']}{run}, since {who['started']})" if "pid" in who else ""


# -- all folders -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Work:
    """A work folder, as it was a moment ago."""

    path: Path
    stage: str
    complete: bool
    """The stage has ended, but DVC may not have its files yet."""
    age_s: float
    """Seconds since anything in it changed."""
    num_bytes: int
    live: bool
    """A process works in it now."""
    runs: tuple[str, ...] = ()
    """All runs that ever worked in it, the latest last. Empty: it was started by hand only."""


def works(place: Path | None = None) -> list[Work]:
    """List all work folders of a clone, the oldest change first. `place`: its state folder, if not
    `files.state()`."""
    found: list[Work] = []
    now = time.time()
    for path in _folders(place):
        with contextlib.suppress(FileNotFoundError):  # deleted while we look
            num_bytes, changed = _measure(path)
            work = Work(
                path=path,
                stage=path.name.rpartition("-")[0],
                complete=(path / _COMPLETE).exists(),
                age_s=max(0.0, now - changed),
                num_bytes=num_bytes,
                live=_is_live(path),
                runs=tuple(_runs(_read(path / _WORK))),
            )
            found.append(work)
    return sorted(found, key=lambda work: -work.age_s)


def remove(path: Path) -> bool:
    """Delete a work folder, unless a process works in it. A kill leaves it whole, or leaves remains
    that the next call clears away."""
    for remains in path.parent.glob(f"*{_GONE}"):
        shutil.rmtree(remains, ignore_errors=True)
    try:
        handle = _lock(path)
    except FileNotFoundError:
        return False
    if handle is None:
        return False
    try:
        gone = path.with_name(path.name + _GONE)
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)
    finally:
        os.close(handle)
    return True


def _clear_old(stage: str, mine: Path) -> None:
    for work in works():
        if work.complete and not work.runs and work.age_s > A_WEEK_S and work.path != mine and remove(work.path):
            what = f"stage {work.stage} finished {work.age_s / 86400:.0f} days ago ({work.num_bytes / 1e6:.1f} MB)"
            print_line(stage, f"cleared {work.path}: {what}")


def _folders(place: Path | None) -> list[Path]:
    place = (place or files.state()) / "progress"
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()]


def _is_live(path: Path) -> bool:
    """Try the lock of the process that may work there. One that starts at this moment tries
    again."""
    if (handle := _lock(path)) is None:
        return True
    os.close(handle)
    return False


def _measure(path: Path) -> tuple[int, float]:
    """Return the bytes and the last change of a folder that may be written to meanwhile."""
    size, changed = 0, path.stat().st_mtime
    for place, folders, names in os.walk(path):
        for name in [*folders, *names]:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(place, name))
                size += 0 if name in folders else found.st_size
                changed = max(changed, found.st_mtime)
    return size, changed


def _read(path: Path) -> dict[str, Any]:
    """Read one of our JSON objects; empty when it is missing or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(value: dict[str, Any], path: Path) -> None:
    files.write_text(json.dumps(value) + "\n", path, durable=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# -- progress lines --------------------------------------------------------------------------------
A_STEP_S = 2.0
"""Seconds between two lines about the same step."""
PACE_S, FEWEST_STEPS = 60.0, 3
"""The pace is measured over so many seconds, and over two steps at least."""
EVIDENCE_S = 10.0
"""Seconds of finished steps before the time left is shown."""
_reporters: dict[str, Reporter] = {}


class Reporter:
    """Prints progress lines, at most four per second, and always the last one. After some seconds,
    a line ends with the time left, at the pace of the last minute, or of the last two steps if
    these took longer. It also says when other work slows them.
    """

    def __init__(self, stage: str, total: int):
        self.stage, self.total, self._last = stage, total, 0.0
        self._done, self._message = 0, ""
        self._pace: deque[tuple[float, int]] = deque()  # the time, and how much was done by then
        _reporters[stage] = self

    def __call__(self, done: int, message: str) -> None:
        now = time.monotonic()
        self._pace.append((now, done))
        while len(self._pace) > FEWEST_STEPS and now - self._pace[1][0] > PACE_S:
            self._pace.popleft()
        self._done, self._message = done, message
        if done >= self.total or now - self._last >= 0.25:
            self._print_line(now, f"{message}{self._left()}")

    def within(self, message: str) -> None:
        """Say how far the current step is, after what was said of the last finished one."""
        now = time.monotonic()
        if self._done < self.total and now - self._last >= A_STEP_S:
            self._print_line(now, "; ".join(part for part in (self._message + self._left(), message) if part))

    def _print_line(self, now: float, message: str) -> None:
        self._last = now
        print_line(self.stage, lines.counted(self._done, self.total, message))

    def _left(self) -> str:
        if not self._pace or self._done >= self.total:
            return ""
        (began, first), (ended, last) = self._pace[0], self._pace[-1]
        if last <= first or ended - began < EVIDENCE_S:
            return ""
        slowed = ", slowed by other work" if threads.are_held_up() else ""
        return f", about {duration((self.total - last) * (ended - began) / (last - first))} left{slowed}"


def within(stage: str, message: str) -> None:
    """Say how far the stage's current step is, if the stage counts steps."""
    if (reporter := _reporters.get(stage)) is not None:
        reporter.within(message)


def duration(seconds: float) -> str:
    """Round a time for people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_line(stage: str, message: str) -> None:
    print(secrets.redact(f"[{stage}] {message}"), flush=True)
