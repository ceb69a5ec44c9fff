"""What may be removed, and what never: `rft gc`, by the days that section `run.retention` names.

    worktrees    of runs that are over
    work         unfinished work of stages (.rft/progress), and scratch folders of commands that
                 were killed
    logs         what stages and servers printed
    pages        HTML pages, and what `rft drift` found
    bytes        in DVC's cache: what only runs refer to that are past their retention

Never removed: a revision, the ledger, a record of a run. And, whatever their age, the bytes and
pages of every run that was promoted or registered (a rollback may return to it), that waits for
approval, or with which new windows are compared; the base policy that the beginning is, while
nothing replaced it; and all that an unfinished run will go on with.

`dvc gc` keeps the bytes of revisions by name, and deletes all others. It knows nothing of age, and
would take what a user has under an older commit. So the rule here is the other way round: only what
a run left can go (the outputs in its revision's dvc.lock, or in an entry of DVC's run cache), and
only if no kept revision, no commit of any branch or tag, and no working tree names it. What a user
put under DVC is named there.

A kill in the middle leaves what a second call removes. Folders of unfinished work go whole
(rft/progress.py); a run's record says that its bytes are removed before the first one is; of an
output folder the files go before their list, and the run cache's entry, which names both, goes
last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from rft import commands, progress, reports, shelves
from rft.config import Retention
from rft.errors import InfrastructureError, UserError
from tasks.promotion import agents, ledger, registry
from tasks.runs import by_hand as byhand
from tasks.runs import records
from tasks.runs import run as runs
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git, git_bytes
from tasks.runs.records import RunRecord

Kind = Literal["worktrees", "work", "logs", "pages", "bytes"]
DAY_S = 86400.0
_MD5 = re.compile(rb"\b[0-9a-f]{32}(?:\.dir)?\b")
_NONE = "0" * 40
_GONE = "gone-"
_OURS = re.compile(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/.+")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML was built with it


@dataclass(frozen=True)
class Item:
    kind: Kind
    path: Path
    num_bytes: int
    why: str


@dataclass
class Plan:
    """What would go, in the order in which it goes; and what stays although it is old, with the
    reason."""

    items: list[Item] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    revisions: set[str] = field(default_factory=set)
    """Whose bytes would go."""


@contextlib.contextmanager
def alone(clone: Clone) -> Iterator[None]:
    """No run and no `rft stage` starts, and no champion moves, while the block lasts. Raises
    UserError when a run or a stage is going on."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(records.held(runs.start_lock(clone), wait=True))
        stack.enter_context(records.held(registry.lock(clone), wait=True))
        for record in records.load_all(clone):
            if not record.over and records.alive(clone, record.name):
                raise UserError(
                    f"run {record.name} is going on, and works with what would be looked through. Nothing was removed. "
                    f"Wait until it ends, or end it: {commands.command('cancel', record.name)}"
                )
        by_hand = stack.enter_context(records.held(byhand.lock(clone)))
        if not by_hand:
            raise UserError(
                "a stage is being run by hand in this clone (`rft stage`). Nothing was removed. Wait until it ends."
            )
        for work in progress.works(clone.state):  # by `dvc repro`, or by `python -m rft`
            if work.live:
                raise UserError(
                    f"stage {work.stage} is being run by hand, in {work.path}. Nothing was removed. Wait until it ends."
                )
        yield


def plan(clone: Clone, keep: Retention) -> Plan:
    """Call inside `alone`."""
    found, now = Plan(), time.time()
    every = records.load_all(clone)
    unfinished = {record.name for record in every if not record.over}
    for record in every:
        if not record.over:
            end = commands.command("cancel", record.name)
            found.kept.append(
                f"run {record.name} is unfinished. To go on with it: {record.again}\n    To end it: {end}"
            )
    needed = _needed(clone, every)
    by_revision = {record.revision: record.name for record in every}
    lasting = unfinished | {by_revision.get(revision, "") for revision in needed}
    found.items += _worktrees(clone, unfinished)
    found.items += _work(clone, keep.work_days, unfinished, now)
    found.items += _aged("logs", _logs(clone), keep.logs_days, unfinished, now)
    found.items += _aged("pages", _pages(clone), keep.pages_days, lasting, now)
    unfinished_stages = (record.name for record in every if not record.over and record.stages)
    if homeless := [name for name in unfinished_stages if not (clone.worktrees / name / "dvc.lock").exists()]:
        found.kept.append(
            f"all bytes: with the worktree of run {homeless[0]} the names of those are gone that it will go on with"
        )
    else:
        _bytes(clone, keep.cache_days, needed, by_revision, now, found)
    return found


def carry_out(clone: Clone, todo: Plan, tell: Callable[[int, int], None]) -> int:
    """Bytes that were removed. `tell(done, total)` as it goes on. Call inside `alone`, with a plan
    that was made there."""
    for record in records.load_all(clone):
        if record.revision in todo.revisions and record.bytes_removed is None:
            records.save(clone, record.model_copy(update={"bytes_removed": records.now()}))
    removed = 0
    for number, item in enumerate(todo.items, 1):
        if item.kind == "worktrees":
            runs.remove_tree(clone, item.path)
        elif item.kind == "work" and item.path.parent.name == "progress":
            if not progress.remove(item.path):
                continue
        elif item.path == byhand.folder(clone):
            byhand.clear(clone)
        elif item.path.is_dir():
            shutil.rmtree(item.path)
        elif item.path.parents[2].name == "runs":
            _forget_entry(item.path)
        else:
            item.path.unlink(missing_ok=True)
        removed += item.num_bytes
        tell(number, len(todo.items))
    return removed


def _forget_entry(path: Path) -> None:
    """An entry of the run cache, `runs/KE/KEY/VALUE`. The folder of a key goes with its last entry,
    at once: DVC fails on an empty one (3.67)."""
    if any(one != path for one in path.parent.iterdir()):
        path.unlink()
        return
    gone = path.parents[3] / f"{_GONE}{path.parent.name}"
    os.rename(path.parent, gone)
    shutil.rmtree(gone)


# -- what is old -----------------------------------------------------------------------------------
def _worktrees(clone: Clone, unfinished: set[str]) -> Iterator[Item]:
    for folder in sorted(clone.worktrees.iterdir()) if clone.worktrees.is_dir() else ():
        if folder.name not in unfinished:
            yield Item("worktrees", folder, _measure(folder)[0], "its run is over")


def _work(clone: Clone, days: float | None, unfinished: set[str], now: float) -> Iterator[Item]:
    if days is None:
        return
    for work in progress.works(clone.state):
        if work.age_s >= days * DAY_S and unfinished.isdisjoint(work.runs):
            yield Item(
                "work",
                work.path,
                work.num_bytes,
                f"stage {work.stage}{_of(work.runs)}, untouched for {_days(work.age_s)}",
            )
    for item in _aged("work", _scratch(clone), days, set(), now):
        if _is_free(agents.scratch_lock(item.path)):  # one that somebody works in has its lock held
            yield item


def _scratch(clone: Clone) -> Iterator[Path]:
    """What commands left that were killed, and what others work in."""
    yield from sorted(clone.state.glob(f"{agents.LAID_OUT}*"))
    if byhand.folder(clone).is_dir():  # nobody is in it: `alone` holds its lock
        yield byhand.folder(clone)
    yield from sorted(clone.state.glob("tmp*"))


def _is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with records.held(lock) as free:
        return free


def _of(names: Sequence[str]) -> str:
    return f" of run {names[-1]}" if names else ""


def _logs(clone: Clone) -> Iterator[Path]:
    for path in sorted((clone.state / "logs").glob("*")):
        if path.name == "by-hand":
            yield from sorted(path.iterdir())
        else:
            yield path


def _pages(clone: Clone) -> Iterator[Path]:
    for pattern in ("reports/*.html", "reports/data_docs/*", "cache/*"):
        yield from sorted(clone.state.glob(pattern))


def _aged(kind: Kind, paths: Iterable[Path], days: float | None, needed: set[str], now: float) -> Iterator[Item]:
    """Those that nobody has changed for so many days. `needed`: names of runs whose files stay."""
    for path in paths if days is not None else ():
        try:
            num_bytes, changed = _measure(path)
        except FileNotFoundError:  # the scratch folder of a command that ended meanwhile
            continue
        if now - changed >= (days or 0.0) * DAY_S and path.name.removesuffix(".html") not in needed:
            yield Item(kind, path, num_bytes, f"{_days(now - changed)} old")


def _measure(path: Path) -> tuple[int, float]:
    """Bytes in a file or folder, and when anything in it changed last."""
    found = [path.lstat()]
    for one in path.rglob("*") if path.is_dir() and not path.is_symlink() else ():
        with contextlib.suppress(FileNotFoundError):  # another command's, which goes on meanwhile
            found.append(one.lstat())
    return sum(one.st_size for one in found), max(one.st_mtime for one in found)


def _days(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days"


# -- bytes of old runs -----------------------------------------------------------------------------
def _needed(clone: Clone, every: list[RunRecord]) -> dict[str, str]:
    """Revision -> why its bytes stay, whatever its age."""
    first = agents.beginnings(clone)
    needed = {
        revision: f"holds the base policy of {model}'s champion, which is the beginning"
        for model, revision in first.items()
    }
    if (latest := _latest_traffic(clone, every)) is not None:
        needed[latest] = "new windows are compared with it"
    acts = ledger.acts(clone)
    decided = {act.run for act in acts}
    for line in clone.git(
        "for-each-ref", "--format=%(objectname) %(refname:lstrip=-1) %(subject)", "refs/exps"
    ).splitlines():
        revision, name, subject = line.split(" ", 2)
        if subject == f"run {name}: promote" and name not in decided:  # as the revision says, whose record may be lost
            needed[revision] = (
                f"waits for approval. To let its bytes go: {commands.command('reject', name, *commands.WHO_AND_WHY)}"
            )
    pending = ledger.announced(clone)
    champions = {
        act.revision for act in [*acts, *([pending] if pending else [])] if act.action != "reject" and act.revision
    }
    return needed | dict.fromkeys(champions | registry.revisions(clone), "is or was champion")


def _latest_traffic(clone: Clone, every: list[RunRecord]) -> str | None:
    report = str(shelves.path(reports.TrafficReport))
    for record in sorted(every, key=lambda one: one.started, reverse=True):
        if (
            record.revision
            and not record.bytes_removed
            and report in _outs(_text(clone, f"{record.revision}:dvc.lock"))
        ):
            return record.revision
    return None


def _bytes(
    clone: Clone, days: float | None, needed: dict[str, str], names: dict[str | None, str], now: float, found: Plan
) -> None:
    if days is None:
        return
    cache = clone.dvc_cache
    if not cache.is_relative_to(clone.root):
        found.kept.append(
            f"DVC's cache lies outside of this clone ({cache}): others may share it, so no bytes are removed from it"
        )
        return
    limit = now - days * DAY_S
    old: dict[str, str] = {}  # revision -> the run's name
    for line in clone.git(
        "for-each-ref", "--format=%(objectname) %(committerdate:unix) %(refname)", "refs/exps"
    ).splitlines():
        revision, when, ref = line.split(" ", 2)
        if _OURS.fullmatch(ref) and float(when) <= limit:
            if revision in needed:
                found.kept.append(f"run {names.get(revision, ref.rsplit('/', 1)[1])} {needed[revision]}")
            else:
                old[revision] = ref.rsplit("/", 1)[1]
    found.items += [
        Item("bytes", path, _measure(path)[0], "left by a killed `rft gc`") for path in sorted(cache.glob(f"{_GONE}*"))
    ]
    entries = sorted((cache / "runs").glob("*/*/*")) if (cache / "runs").is_dir() else []
    old_entries = {path: set(_outs(path.read_bytes()).values()) for path in entries if path.stat().st_mtime <= limit}
    store = _Store(cache / "files" / "md5")
    kept = store.closure(
        _named(clone, set(old), set(needed))
        | {md5 for path in entries if path not in old_entries for md5 in _md5s(path.read_bytes())}
    )
    left: dict[str, str] = {}  # md5 -> whose
    for revision, name in old.items():
        mine = store.closure(set(_outs(_text(clone, f"{revision}:dvc.lock")).values())) - kept
        left |= dict.fromkeys(mine, f"of run {name}")
        if any(store.path(md5).exists() for md5 in mine):
            found.revisions.add(revision)
    for outs in old_entries.values():
        left = dict.fromkeys(store.closure(outs) - kept, "of a stage that no kept run refers to") | left
    for md5 in sorted(left, key=lambda md5: (md5.endswith(".dir"), md5)):
        with contextlib.suppress(FileNotFoundError):
            state = store.path(md5).stat()
            if state.st_mtime <= limit:
                found.items.append(Item("bytes", store.path(md5), state.st_size, left[md5]))
    for path, outs in old_entries.items():
        if not outs <= kept:
            found.items.append(Item("bytes", path, path.stat().st_size, "of a stage that no kept run refers to"))


@dataclass(frozen=True)
class _Store:
    """Files of DVC's cache by their hash."""

    folder: Path

    def path(self, md5: str) -> Path:
        return self.folder / md5[:2] / md5[2:]

    def closure(self, some: set[str]) -> set[str]:
        """With the files of the folders among them, as far as their lists are here."""
        found = set(some)
        for md5 in some:
            if md5.endswith(".dir"):
                with contextlib.suppress(FileNotFoundError):
                    found |= {row["md5"] for row in self._listing(md5)}
        return found

    def _listing(self, md5: str) -> list[dict[str, str]]:
        try:
            return json.loads(self.path(md5).read_bytes())
        except ValueError:
            raise InfrastructureError(
                f"{self.path(md5)}: not a folder's list as DVC writes it. Nothing was removed. Delete that file."
            ) from None


def _named(clone: Clone, old: set[str], needed: set[str]) -> set[str]:
    """All hashes that any commit names which is reachable from a branch, a tag or a kept revision,
    or that lie in a working tree."""
    listed = [line.partition(" ") for line in clone.git("worktree", "list", "--porcelain").splitlines()]
    commits = {
        *clone.git("for-each-ref", "--format=%(objectname)").split(),
        *(value for key, _, value in listed if key == "HEAD"),
    }
    here = git(clone.root, "cat-file", "--batch-check", given="\n".join(needed).encode()).splitlines()
    # a champion's that no ref names, or of another clone
    commits |= {line.split(" ", 1)[0] for line in here if " commit " in line}
    wanted = "\n".join(commits - old - {_NONE}).encode()
    objects = git(clone.root, "rev-list", "--objects", "--stdin", given=wanted).splitlines()
    blobs = [line.split(" ", 1)[0] for line in objects if line.endswith((" dvc.lock", "/dvc.lock", ".dvc"))]
    found = _md5s(git_bytes(clone.root, "cat-file", "--batch", given="\n".join(blobs).encode())) if blobs else set()
    for tree in [Path(value) for key, _, value in listed if key == "worktree" and Path(value).is_dir()]:
        names = git(
            tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.dvc", "*dvc.lock"
        ).split("\0")
        for name in {*names, "dvc.lock"} - {""}:
            with contextlib.suppress(FileNotFoundError):
                found |= _md5s((tree / name).read_bytes())
    # Git looks for them elsewhere, once the clone was moved
    for tree in clone.worktrees.iterdir() if clone.worktrees.is_dir() else ():
        for file in (tree / "dvc.lock", *tree.rglob("*.dvc")):
            found |= _md5s(file.read_bytes()) if file.is_file() else set()
    return found


def _md5s(text: bytes) -> set[str]:
    return {one.decode() for one in _MD5.findall(text)}


def _outs(text: bytes) -> dict[str, str]:
    """Output -> md5, in a dvc.lock or in an entry of the run cache."""
    found = yaml.load(text, _LOADER) or {}
    stages = found["stages"].values() if "stages" in found else [found]
    return {row["path"]: row["md5"] for stage in stages for row in stage.get("outs", []) if "md5" in row}


def _text(clone: Clone, name: str) -> bytes:
    try:
        return git_bytes(clone.root, "show", name)
    except GitError:  # a run that ended before its first stage
        return b""
