"""`rft runs gc`: what may be removed after the days in `run.retention`, and what must stay.

    worktrees    Those of runs that are over.
    work         Unfinished work of stages (.rft/progress), snapshots of logs (.rft/snapshots), and
                 scratch folders of killed commands.
    logs         What stages and servers printed.
    pages        HTML pages, and what `rft traffic drift` found.
    bytes        In DVC's cache, when only runs past their retention refer to them.

Revisions, the ledger and records of runs are never removed. Some things stay at any age:
- the bytes and pages of a run that was promoted or registered (a rollback may return to it), of one
  that waits for approval, and of one with which new windows are compared;
- the beginning's base policy, until something replaces it;
- all that an unfinished run needs to go on.

`dvc gc` keeps the bytes of revisions that one names, and deletes all others. It does not know their
age, and would delete what a user has under an older commit. So the rule here is the opposite. Only
what a run left can go: the outputs in its revision's dvc.lock, or in a stage's entry of DVC's run
cache. And it goes only if no kept revision, no commit of any branch or tag, and no working tree
names it. One of these names what a user put under DVC. Experiments and runs of pipelines that are
not ours are left alone.

A second call removes what a killed one left, because the order is fixed. A folder of unfinished
work goes whole (rft/progress.py). A run's record says that its bytes are removed before the first
one is. The files of an output folder go before their list, and the run cache's entry, which names
both, goes last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rft import commands, progress, reports, stage_files
from rft.config import Retention
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book
from tasks.promotion import agents
from tasks.runs import by_hand, records, transfer, windows
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision, read_yaml
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git, git_bytes
from tasks.runs.records import RunRecord

Kind = Literal["worktrees", "work", "logs", "pages", "bytes"]
DAY_S = 86400.0
_MD5 = re.compile(rb"\b[0-9a-f]{32}(?:\.dir)?\b")
_NONE = "0" * 40
_GONE = "gone-"
_STAGE = re.compile(r"exec (?:rft-stage|python -m rft) [a-z]+")
_OURS = re.compile(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/.+")


@dataclass(frozen=True)
class Item:
    kind: Kind
    path: Path
    num_bytes: int
    why: str


@dataclass
class Plan:
    """What would be removed, in order; and what stays in spite of its age, with the reason."""

    items: list[Item] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    revisions: set[str] = field(default_factory=set)
    """The revisions whose bytes would be removed."""


@contextlib.contextmanager
def alone(clone: Clone, done: str = "removed") -> Iterator[None]:
    """While the block lasts, let no run and no `rft stage run` start, and let the champion not
    move. Raises UserError when a run or a stage is going on, and says that nothing was `done`."""
    wait = f"Nothing was {done}. Wait until it ends"
    with contextlib.ExitStack() as stack:
        stack.enter_context(records.held(runs.start_lock(clone), wait=True))
        stack.enter_context(records.held(book.lock(clone), wait=True))
        for record in records.load_all(clone):
            if not record.over and records.alive(clone, record.name):
                end = commands.command("runs cancel", record.name)
                raise UserError(f"run {record.name} is going on. {wait}, or end it: {end}")
        if not stack.enter_context(records.held(by_hand.lock(clone))):
            raise UserError(f"a stage is being run by hand in this clone (`rft stage run`). {wait}.")
        for work in progress.works(clone.state):  # by `dvc repro`, or by `python -m rft`
            if work.live:
                raise UserError(f"stage {work.stage} is being run by hand, in {work.path}. {wait}.")
        yield


def plan(clone: Clone, keep: Retention) -> Plan:
    """Find what may be removed. Call inside `alone`."""
    found, now = Plan(), time.time()
    every = records.load_all(clone)
    unfinished = {record.name: record.folder for record in every if not record.over}
    for record in every:
        if not record.over:
            end = commands.command("runs cancel", record.name)
            go_on = f"run {record.name} is unfinished. To go on with it: {record.again}"
            found.kept.append(f"{go_on}\n    To end it: {end}")
    needed = _needed(clone, every)
    by_revision = {record.revision: record.name for record in every}
    lasting = {*unfinished, *(by_revision.get(revision, "") for revision in needed)}
    found.items += _worktrees(clone, unfinished.keys())
    found.items += _work(clone, keep.work_days, unfinished, now)
    found.items += _aged("logs", _logs(clone), keep.logs_days, set(unfinished), now)
    found.items += _aged("pages", _pages(clone), keep.pages_days, lasting, now)
    begun = [runs.Run(clone, record) for record in every if not record.over and record.stages]
    if homeless := [run.name for run in begun if not (run.tree / "dvc.lock").exists()]:
        found.kept.append(f"all bytes: the worktree of run {homeless[0]} is gone, and with it the list of its bytes")
    else:
        _bytes(clone, keep.cache_days, needed, by_revision, now, found)
    return found


def carry_out(clone: Clone, todo: Plan, tell: Callable[[int, int], None]) -> int:
    """Remove what the plan names; return the number of bytes. `tell(done, total)` is called after
    each item. Call inside `alone`, with a plan that was made there."""
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
        elif item.path == by_hand.folder(clone):
            by_hand.clear(clone)
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
    """Remove an entry of the run cache, `runs/KE/KEY/VALUE`. The key's folder goes with its last
    entry, because DVC fails on an empty folder (3.67)."""
    if any(other != path for other in path.parent.iterdir()):
        path.unlink()
        return
    gone = path.parents[3] / f"{_GONE}{path.parent.name}"
    os.rename(path.parent, gone)
    shutil.rmtree(gone)


# -- what is old -----------------------------------------------------------------------------------
def _worktrees(clone: Clone, unfinished: Container[str]) -> Iterator[Item]:
    for folder in sorted(clone.worktrees.iterdir()) if clone.worktrees.is_dir() else ():
        if folder.name not in unfinished:
            yield Item("worktrees", folder, _measure(folder)[0], "its run is over")


def _work(clone: Clone, days: float | None, unfinished: Mapping[str, str], now: float) -> Iterator[Item]:
    if days is None:
        return
    for work in progress.works(clone.state):
        if work.age_s >= days * DAY_S and unfinished.keys().isdisjoint(work.runs):
            whose = f" of run {work.runs[-1]}" if work.runs else ""
            why = f"stage {work.stage}{whose}, untouched for {_days(work.age_s)}"
            yield Item("work", work.path, work.num_bytes, why)
    yield from _aged("work", windows.unused(clone, unfinished), days, set(), now)
    for item in _aged("work", _scratch(clone), days, set(), now):
        if _is_free(agents.scratch_lock(item.path)):  # a command that works in the folder holds its lock
            yield item


def _scratch(clone: Clone) -> Iterator[Path]:
    """Yield the scratch folders: those that killed commands left, and those in use."""
    for begins in (agents.LAID_OUT, transfer.LAID_OUT):
        yield from sorted(clone.state.glob(f"{begins}*"))
    if by_hand.folder(clone).is_dir():  # nobody is in it: `alone` holds its lock
        yield by_hand.folder(clone)
    yield from sorted(clone.state.glob("tmp*"))


def _is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with records.held(lock) as free:
        return free


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
    """Yield the paths that did not change for so many days. The files of the runs named in `needed`
    stay."""
    for path in paths if days is not None else ():
        try:
            num_bytes, changed = _measure(path)
        except FileNotFoundError:  # the scratch folder of a command that ended meanwhile
            continue
        if now - changed >= (days or 0.0) * DAY_S and path.name.removesuffix(".html") not in needed:
            yield Item(kind, path, num_bytes, f"{_days(now - changed)} old")


def _measure(path: Path) -> tuple[int, float]:
    """Return the bytes in a file or folder, and the time of the last change in it."""
    found = [path.lstat()]
    for inner in path.rglob("*") if path.is_dir() and not path.is_symlink() else ():
        with contextlib.suppress(FileNotFoundError):  # another command may remove it meanwhile
            found.append(inner.lstat())
    return sum(state.st_size for state in found), max(state.st_mtime for state in found)


def _days(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days"


# -- bytes of old runs -----------------------------------------------------------------------------
def _needed(clone: Clone, every: list[RunRecord]) -> dict[str, str]:
    """Return the revisions whose bytes stay at any age: revision -> why."""
    state = book.read(clone, locked=True).state  # by `alone`
    needed = {
        revision: f"holds the base policy of {model}'s beginning"
        for model, revision in agents.beginnings(clone, state).items()
    }
    needed |= dict.fromkeys(_latest_traffic(clone, every), "new windows are compared with it")
    decided = {request.act.run for request in state.requests.values() if request.promoted}
    decided |= {request.act.run for request in state.requests.values() if state.rejection_of(request.act)}
    for line in _refs(clone, "%(objectname) %(refname:lstrip=-1) %(subject)"):
        revision, name, subject = line.split(" ", 2)
        if subject == f"run {name}: promote" and name not in decided:  # the run's record may be lost
            no = commands.command("reject", name, *commands.WHY)
            needed[revision] = f"waits for approval. To let its bytes go: {no}"
    return needed | {made.revision: "is or was champion" for made in state.promotions.values()}


def ours(clone: Clone) -> dict[str, str]:
    """Return the refs of recorded runs, ref -> commit, without a user's own experiments."""
    listed = (line.split(" ") for line in _refs(clone, "%(refname) %(objectname)"))
    return {
        ref: commit for ref, commit in listed if _OURS.fullmatch(ref) and Revision(clone, commit).recorded.get("key")
    }


def _refs(clone: Clone, form: str) -> list[str]:
    """Return a line per experiment, in this form of `git for-each-ref`."""
    return clone.git("for-each-ref", f"--format={form}", "refs/exps").splitlines()


def _latest_traffic(clone: Clone, every: list[RunRecord]) -> list[str]:
    """Return the revision with the newest kept window of each agent."""
    report, found = str(stage_files.path(reports.TrafficReport)), dict[str, str]()
    for record in sorted(every, key=lambda record: record.started, reverse=True):
        if record.revision is None or record.bytes_removed or record.agent in found:
            continue
        if report in _outs(_text(clone, f"{record.revision}:{record.inside('dvc.lock')}")):
            found[record.agent] = record.revision
    return [*found.values()]


def _bytes(
    clone: Clone, days: float | None, needed: dict[str, str], names: dict[str | None, str], now: float, found: Plan
) -> None:
    if days is None:
        return
    cache = clone.dvc_cache
    if not cache.is_relative_to(clone.root):
        found.kept.append(f"all bytes: DVC's cache is outside of this clone ({cache}), so others may share it")
        return
    limit = now - days * DAY_S
    old: dict[str, str] = {}  # revision -> the run's name
    for line in _refs(clone, "%(objectname) %(committerdate:unix) %(refname)"):
        revision, when, ref = line.split(" ", 2)
        if _OURS.fullmatch(ref) and float(when) <= limit and Revision(clone, revision).recorded.get("key"):
            if revision in needed:
                found.kept.append(f"run {names.get(revision, ref.rsplit('/', 1)[1])} {needed[revision]}")
            else:
                old[revision] = ref.rsplit("/", 1)[1]
    for path in sorted(cache.glob(f"{_GONE}*")):
        found.items.append(Item("bytes", path, _measure(path)[0], "left by a killed `rft runs gc`"))
    entries = sorted((cache / "runs").glob("*/*/*")) if (cache / "runs").is_dir() else []
    aged = [path for path in entries if path.stat().st_mtime <= limit and _is_stage(path.read_bytes())]
    old_entries = {path: set(_outs(path.read_bytes()).values()) for path in aged}
    store = _Store(cache / "files" / "md5")
    young = {md5 for path in entries if path not in old_entries for md5 in _md5s(path.read_bytes())}
    kept = store.closure(named(clone, set(old), set(needed)) | young)
    left: dict[str, str] = {}  # md5 -> whose
    for revision, name in old.items():
        lock = Revision(clone, revision).from_the_top("dvc.lock")
        mine = store.closure(set(_outs(_text(clone, f"{revision}:{lock}")).values())) - kept
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
        """Add the files of the folders among these hashes, where the folder's list is here."""
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
            what = f"{self.path(md5)}: not a folder's list as DVC writes it"
            raise InfrastructureError(f"{what}. Nothing was removed. Delete that file.") from None


def named(clone: Clone, old: set[str], needed: set[str], folders: Container[str] | None = None) -> set[str]:
    """Return all hashes named in a working tree, or in a commit that a branch, a tag or a kept
    revision reaches. With `folders`, look only at the files in these folders."""

    def counts(path: str) -> bool:
        return folders is None or any(str(place) in folders for place in Path(path).parents)

    listed = [line.partition(" ") for line in clone.git("worktree", "list", "--porcelain").splitlines()]
    commits = {
        *clone.git("for-each-ref", "--format=%(objectname)").split(),
        *(value for key, _, value in listed if key == "HEAD"),
    }
    here = git(clone.root, "cat-file", "--batch-check", given="\n".join(needed).encode()).splitlines()
    # a champion's revision that no ref names, or that came from another clone
    commits |= {line.split(" ", 1)[0] for line in here if " commit " in line}
    wanted = "\n".join(commits - old - {_NONE}).encode()
    objects = git(clone.root, "rev-list", "--objects", "--stdin", given=wanted).splitlines()
    listings = [line.split(" ", 1) for line in objects if line.endswith((" dvc.lock", "/dvc.lock", ".dvc"))]
    blobs = [blob for blob, path in listings if counts(path)]
    found = _md5s(git_bytes(clone.root, "cat-file", "--batch", given="\n".join(blobs).encode())) if blobs else set()
    for tree in [Path(value) for key, _, value in listed if key == "worktree" and Path(value).is_dir()]:
        listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.dvc", "*dvc.lock")
        for name in {*git(tree, *listing).split("\0"), "dvc.lock"} - {""}:
            with contextlib.suppress(FileNotFoundError):
                found |= _md5s((tree / name).read_bytes()) if counts(name) else set()
    # after the clone was moved, Git looks for the worktrees at their old place
    for tree in clone.worktrees.iterdir() if clone.worktrees.is_dir() else ():
        for file in (*tree.rglob("dvc.lock"), *tree.rglob("*.dvc")):
            found |= _md5s(file.read_bytes()) if file.is_file() else set()
    return found


def _md5s(text: bytes) -> set[str]:
    return {md5.decode() for md5 in _MD5.findall(text)}


def _outs(text: bytes) -> dict[str, str]:
    """Output -> md5, in a dvc.lock or in an entry of the run cache."""
    found = read_yaml(text)
    stages = found["stages"].values() if "stages" in found else [found]
    return {row["path"]: row["md5"] for stage in stages for row in stage.get("outs", []) if "md5" in row}


def _is_stage(text: bytes) -> bool:
    """Say whether an entry of the run cache is of a stage of ours. The user's own pipelines have
    entries in the same cache, and these stay."""
    return _STAGE.fullmatch(str(read_yaml(text).get("cmd", ""))) is not None


def _text(clone: Clone, name: str) -> bytes:
    try:
        return git_bytes(clone.root, "show", name)
    except GitError:  # a run that ended before its first stage
        return b""
