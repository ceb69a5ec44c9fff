"""The work of a stage while it is not safe on its shelf, kept outside the shelves, which DVC
empties before a stage runs.

    progress.once("baseline", params, measure)    measure(work, shelf) works in the folder `work`,
                                                  and builds in `shelf` what the stage leaves

`work` is `.rft/progress/STAGE-KEY`. The key is a hash of all that the stage depends on
(rft/needs.py: its sections and input files, the recipe's bytes among them; the pinned packages; the
engine's own source), so work is taken up again only under the conditions under which it was left.

A shelf is not safe when the stage has written it, but when DVC has: it hashes the outputs, moves
them into its cache and writes dvc.lock, after the stage has ended. A kill in between empties the
shelf and starts the stage again. So the stage builds its shelf in the work folder, marks the folder
complete, and only then copies it out; a start that finds a complete folder copies it out again, and
computes nothing:

    work.json       who works here: stage, process, run; and all runs that ever did
    shelf/          all that the stage leaves, whole
    complete.json   written last: when, how much, and the hash of `shelf/`. From here on the rest of
                    the folder (checkpoints, rollouts) is deleted

Whoever knows that DVC is done deletes the folder (`forget`): `tasks` does when DVC has returned 0.
By hand (`dvc repro`, `python -m rft STAGE`) nobody knows; then the next stage that is started by
hand clears complete folders older than a week in which no run worked. `works` lists all folders for
`rft gc`, which knows whether a run will go on with one.

A stage holds its folder by a lock (flock) that dies with its process: a second process in the same
folder is refused, a live folder is never deleted.

`say` prints the progress lines that the command line turns into bars: `[train] 12/80 reward 0.41`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rft import files, needs, secrets
from rft.errors import InfrastructureError, UserError

A_WEEK_S = 7 * 86400.0
_COMPLETE, _WORK, _SHELF, _GONE = "complete.json", "work.json", "shelf", ".gone"
_FOLDER = re.compile(r"([a-z_]+)-[0-9a-f]{16}")
_PATIENCE_S = 2.0


# -- the folder of a stage -------------------------------------------------------------------------
def once(stage: str, params: BaseModel, make: Callable[[Path, Path], None]) -> None:
    """Bring the stage's shelf, `data/STAGE`, about; what an earlier start has done of it is not
    done again.

    Raises InfrastructureError when another process works on the same, UserError when a finished
    shelf was damaged.
    """
    work = folder(stage, *needs.of(stage, params))
    with _alone(work, stage):
        if not os.environ.get("RFT_RUN"):  # by hand
            _clear_old(stage, work)
        if (work / _COMPLETE).exists():
            _verify(work)
            say(
                stage,
                f"had been finished: its files come from {work}, nothing is computed again. Delete that folder to "
                "compute it anew",
            )
        else:
            files.recover(work)
            part = work / f"{_SHELF}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(work, part)
            except BaseException:
                if not any(part.iterdir()) and {path.name for path in work.iterdir()} == {_WORK, part.name}:
                    shutil.rmtree(work)  # it had not begun
                raise
            _complete(work, stage, part)
        _keep_only_shelf(work)
        _copy_out(work / _SHELF, Path(needs.DATA, stage))


def folder(stage: str, sections: Iterable[BaseModel], inputs: Iterable[Path]) -> Path:
    """Named by a hash of what is given, the pinned packages and the engine's source. Made when it
    is not there."""
    path = files.state() / "progress" / _name(stage, sections, [*inputs, Path(needs.PACKAGES), Path(__file__).parent])
    path.mkdir(parents=True, exist_ok=True)
    return path


def forget(stage: str, params: BaseModel, tree: Path, place: Path) -> None:
    """DVC has the stage's shelf in `tree`: delete the work of just that, if there is any. Of other
    settings or inputs it stays."""
    if finished := [
        path for path in _folders(place) if path.name.startswith(f"{stage}-") and (path / _COMPLETE).exists()
    ]:
        sections, inputs = needs.of(stage, params)
        name = _name(stage, sections, [tree / path for path in [*inputs, Path(needs.PACKAGES), Path("rft")]])
        for path in finished:
            if path.name == name:
                remove(path)


def _name(stage: str, sections: Iterable[BaseModel], paths: Iterable[Path]) -> str:
    return f"{stage}-{key(sections, paths)}"


def key(sections: Iterable[BaseModel], paths: Iterable[Path]) -> str:
    """Hash settings and what lies at the paths, in 16 digits: the same again where nothing
    changed."""
    given = [section.model_dump(mode="json", by_alias=True) for section in sections]
    return files.digest([given, [files.tree_sha256(path) for path in paths]])[:16]


def _complete(work: Path, stage: str, part: Path) -> None:
    files.publish(part, work / _SHELF)
    shelf = work / _SHELF
    _write(
        {"stage": stage, "finished": _now(), "num_bytes": _measure(shelf)[0], "sha256": files.tree_sha256(shelf)},
        work / _COMPLETE,
    )


def _verify(work: Path) -> None:
    marker = _read(work / _COMPLETE)
    if files.tree_sha256(work / _SHELF) != marker.get("sha256"):
        when = f" on {marker['finished']}" if "finished" in marker else ""
        raise UserError(
            f"{work / _SHELF}: these are not the bytes that the stage left{when}. Delete {work} to compute it anew."
        )


def _keep_only_shelf(work: Path) -> None:
    """What the shelf was made of takes the most room, and is needed no more."""
    for path in work.iterdir():
        if path.name not in (_COMPLETE, _WORK, _SHELF):
            files.delete(path)


def _copy_out(shelf: Path, target: Path) -> None:
    """What lies on the shelf beside (DVC's .gitignore) stays."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(shelf.iterdir()):
        files.delete(target / path.name)
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target / path.name)


# -- who works there -------------------------------------------------------------------------------
@contextlib.contextmanager
def _alone(work: Path, stage: str) -> Iterator[None]:
    """Nobody else works in the folder, or deletes it, as long as the block lasts."""
    deadline = time.monotonic() + _PATIENCE_S  # somebody who only looks holds the lock for a moment
    while (handle := _lock(work, make=True)) is None:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{work}: another process{_in_words(_read(work / _WORK))} is doing this very work, stage {stage} with "
                "equal settings and inputs. "
                "Wait until it ends, or stop it; then start again: what it has finished is not done twice."
            )
        time.sleep(0.05)
    try:
        run = os.environ.get("RFT_RUN") or None
        # one of them may be waiting to go on from here
        others = [name for name in _runs(_read(work / _WORK)) if name != run]
        who = {
            "stage": stage,
            "pid": os.getpid(),
            "started": _now(),
            "run": run,
            "runs": [*others, run] if run else others,
        }
        _write(who, work / _WORK)
        yield
    finally:
        os.close(handle)


def _lock(work: Path, make: bool = False) -> int | None:
    """An open handle that holds the folder; None while another process does. Raises
    FileNotFoundError when it is gone, unless told to make it."""
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
        os.close(handle)  # it was deleted between the two, and made anew


def _runs(who: dict[str, Any]) -> list[str]:
    """Those that worked in a folder, the last one last. An earlier engine wrote down that one
    only."""
    found = who.get("runs", [who.get("run")])
    return [name for name in found if name and isinstance(name, str)] if isinstance(found, list) else []


def _in_words(who: dict[str, Any]) -> str:
    run = f" of run {who['run']}" if who.get("run") else ""
    return f" ({who['pid']}{run}, since {who['started']})" if "pid" in who else ""


# -- all folders -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Work:
    """A work folder, as it was when somebody looked."""

    path: Path
    stage: str
    complete: bool
    """The stage had come to its end; only DVC's word is missing."""
    age_s: float
    """Since anything in it changed."""
    num_bytes: int
    live: bool
    """A process works in it now."""
    runs: tuple[str, ...] = ()
    """All that ever worked in it, the last one last. Empty: by hand only."""


def works(place: Path | None = None) -> list[Work]:
    """All work folders of a clone, oldest change first. `place`: its state folder (default:
    `files.state()`)."""
    found: list[Work] = []
    now = time.time()
    for path in _folders(place):
        with contextlib.suppress(FileNotFoundError):  # deleted while we look
            num_bytes, changed = _measure(path)
            who = _read(path / _WORK)
            hit = _FOLDER.fullmatch(path.name)
            assert hit, "_folders found it by this"
            found.append(
                Work(
                    path=path,
                    stage=hit[1],
                    complete=(path / _COMPLETE).exists(),
                    age_s=max(0.0, now - changed),
                    num_bytes=num_bytes,
                    live=_is_live(path),
                    runs=tuple(_runs(who)),
                )
            )
    return sorted(found, key=lambda one: -one.age_s)


def remove(path: Path) -> bool:
    """Delete a work folder, unless a process works in it. A kill leaves it whole, or leaves rubbish
    that the next call clears away."""
    for rubbish in path.parent.glob(f"*{_GONE}"):
        shutil.rmtree(rubbish, ignore_errors=True)
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
    for one in works():
        if one.complete and not one.runs and one.age_s > A_WEEK_S and one.path != mine and remove(one.path):
            say(
                stage,
                f"cleared {one.path}: stage {one.stage} was finished {one.age_s / 86400:.0f} days ago "
                f"({one.num_bytes / 1e6:.1f} MB)",
            )


def _folders(place: Path | None) -> list[Path]:
    place = (place or files.state()) / "progress"
    return (
        [path for path in place.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()] if place.is_dir() else []
    )


def _is_live(path: Path) -> bool:
    """Looks through the lock of those who work; whoever starts at this moment tries again."""
    if (handle := _lock(path)) is None:
        return True
    os.close(handle)
    return False


def _measure(path: Path) -> tuple[int, float]:
    """Bytes, and the time of the last change, of a folder that somebody may be writing to."""
    size, changed = 0, path.stat().st_mtime
    for place, folders, names in os.walk(path):
        for name in [*folders, *names]:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(place, name))
                size += 0 if name in folders else found.st_size
                changed = max(changed, found.st_mtime)
    return size, changed


def _read(path: Path) -> dict[str, Any]:
    """Empty when it is missing or none of ours."""
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
class Reporter:
    """Progress lines, at most one a quarter of a second, the last one always."""

    def __init__(self, stage: str, total: int):
        self.stage, self.total, self._last = stage, total, 0.0

    def __call__(self, done: int, message: str) -> None:
        now = time.monotonic()
        if done >= self.total or now - self._last >= 0.25:
            self._last = now
            say(self.stage, f"{done}/{self.total} {message}")


def say(stage: str, message: str) -> None:
    print(secrets.redact(f"[{stage}] {message}"), flush=True)
