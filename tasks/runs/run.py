"""A run: one worktree, its own params.yaml, the shared DVC cache, and one immutable revision.

    with runs.start(clone, plan) as run:       # a new worktree, or an unfinished one, adopted
        ...                                    # stages write below run.tree
    # here the run is recorded, however it ended, and the worktree is gone

`start` adopts an unfinished run of the same commit, edits, settings and champion. Such a run's
driver was killed, or it stopped at run.max_hours. Other killed runs are recorded as killed and
cleared away. That loses nothing: finished stages are in DVC's run cache, and unfinished work is in
`.rft/progress`. A run that stopped at its limit keeps its worktree and waits for a higher limit.
`rft runs cancel` ends any run for good.

The record is a new commit whose parent is the commit at which the run began. Plumbing commands make
it, and a create-only `git update-ref refs/exps/...` publishes it, so `dvc exp` and `git log` can
read it. No branch, index or file of the user is touched.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import yaml

from rft import commands, config, files, needs, reports, secrets, sources, stage_files, stopping
from rft.errors import RftError, Stopped, UserError
from rft.grading import margins
from rft.models import source
from rft.models.source import Resolved
from rft.reports import Model, Registration
from rft.tools import interpreter
from tasks.runs import edits as user_edits
from tasks.runs import engine, environment, records, upgrade, windows
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.dvc_process import Loaded
from tasks.runs.edits import Edits
from tasks.runs.git import GitError, git, unfiltered
from tasks.runs.records import RunRecord, State

_NEW_REF = "0" * 40
_DVC_LOCAL = Path(".dvc", "config.local")
_POINTERS = ("profile.json.dvc", "window.json.dvc", "weights.dvc")
_FORCED = (
    "params.yaml",
    "dvc.lock",
    *(f"{stage_files.folder('champion')}/{name}" for name in ("champion.json", *_POINTERS)),
    str(stage_files.path(Registration)),
    str(stage_files.path(Model)),
    f"{stage_files.folder('model')}/{source.TEMPLATE}",
    str(stage_files.ENVIRONMENT),
    *sorted({path for stage in needs.NEEDS for path in needs.engine(stage)}),
)


@dataclass
class Run:
    """A running run. `record` is never changed in place; each replacement is on disk at once."""

    clone: Clone
    record: RunRecord
    adopted: bool = False
    tracker: Any = None
    """tasks.display.tracking.Tracker, once it is open."""
    found: list[reports.Report] = field(default_factory=list[reports.Report])
    """What its stages reported since this start."""
    lineage: Any = None
    """tasks.provenance.live.Live, where run.openlineage asks for it."""
    dvc: Loaded = field(default_factory=Loaded)
    """The DVC for its stages, loaded once."""
    max_hours: float | None = None
    since: float = 0.0
    """When this start of the run began, in seconds since 1970."""
    _updating: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Guards `update`: a thread brings MLflow's id."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def worktree(self) -> Path:
        return self.clone.worktrees / self.record.name

    @property
    def tree(self) -> Path:
        """The agent's folder in the worktree."""
        return self.worktree / self.record.folder

    def stage_folder(self, stage: str) -> Path:
        return self.tree / "data" / stage

    @property
    def deadline(self) -> float | None:
        """When run.max_hours will be spent, earlier starts included."""
        return None if self.max_hours is None else self.since + 3600 * self.max_hours - self.record.spent_s

    @property
    def cancelled(self) -> bool:
        """Whether `rft runs cancel` asked this run to end."""
        return stopping.request(self.clone.state, self.name).exists()

    def check(self, where: str) -> None:
        """Raise Stopped when the run must not go on. `where` names the place for the message."""
        if self.cancelled:
            raise Stopped(f"{where}: {stopping.BY_CANCEL}")
        if self.deadline is not None and time.time() >= self.deadline:
            raise Stopped(f"{where}: {stopping.BY_LIMIT}")

    def update(self, **changes: Any) -> None:
        with self._updating:
            self.record = self.record.model_copy(update=changes)
            records.save(self.clone, self.record)

    def set_param(self, section: str, key: str, value: Any) -> None:
        """Change one setting of this run, in its own params.yaml."""
        path = self.tree / "params.yaml"
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        if raw[section].get(key) != value:
            raw[section][key] = value
            write_params(path, raw)


@dataclass(frozen=True)
class Plan:
    """What a run will be, before it exists."""

    commit: str
    edits: Edits
    params: config.Params
    inputs: dict[str, Path]
    """Path in the worktree -> its source."""
    served: Served
    base: Resolved = field(default_factory=lambda: Resolved(Model(), None))
    """The given base model."""

    @property
    def key(self) -> str:
        parts = [self.commit, self.edits.sha256, self.params.identity(), self.served.champion.model_dump(mode="json")]
        given = [self.base.model.model_dump(mode="json")] if self.base.source is not None else []
        return files.digest([*parts, *given])


def plan(
    clone: Clone,
    params: config.Params,
    served: Served,
    window: str | Path | None = None,
    clean_only: bool = False,
    code: RunRecord | None = None,
    report_line: windows.ReportLine = lambda _: None,
) -> Plan:
    """Plan a run, with the code of an earlier run (`code`) or of the working tree. Ingests its
    window. Raises UserError for a window that cannot be read, and for edits that cannot or must not
    be copied. Raises ConfigError for a margin that the test set cannot meet, and for secrets that
    are not set."""
    margins.check(params, clone.home)
    refuse_missing_recipe(clone, params)
    upgrade.refuse_stale(clone)
    config.refuse_unset(params, clone.home / params.recipe.path)
    served.refuse_other_base(params)
    base = source.resolve(params.policy, clone.home, clone.state, report_line)
    params, inputs = with_inputs(clone, params, window, report_line)
    if code is not None and code.revision is not None:
        carried = user_edits.between(clone, code.commit, code.revision, code.folder)
        return Plan(code.commit, carried, params, inputs, served, base)
    user_edits.refuse_filtered(clone, params.recipe.sources)
    outside = map(clone.from_the_top, [*inputs, *windows.inside(clone, params.traffic.file)])
    edits = user_edits.find(clone, outside, params.recipe.sources)
    if clean_only and edits.dirty:
        raise UserError(
            f"the tree has uncommitted work ({', '.join((*edits.changed, *edits.untracked)[:5])}), and a scheduled "
            "run takes none along. Commit it."
        )
    return Plan(clone.git("rev-parse", "HEAD"), edits, params, inputs, served, base)


def refuse_missing_recipe(clone: Clone, params: config.Params) -> None:
    folder = clone.home / params.recipe.path
    if not folder.resolve().is_relative_to(clone.home):
        what = f"recipe.path = {params.recipe.path!r} leads out of {clone.home}, so no run could record it"
        raise UserError(f"{what}. Move the recipe there, or name what it shares in recipe.sources.")
    if not (folder / "examples.py").exists():
        remedy = f"Name a recipe's folder, or make one: {commands.command('new', params.recipe.path)}"
        raise UserError(f"recipe.path = {params.recipe.path!r}: no examples.py in {folder}. {remedy}")
    sources.listed(params.recipe.sources, clone.root)
    if params.recipe.python is not None:
        interpreter.facts(params.recipe.python)


def with_inputs(
    clone: Clone,
    params: config.Params,
    window: str | Path | None = None,
    report_line: windows.ReportLine = lambda _: None,
) -> tuple[config.Params, dict[str, Path]]:
    """Ingest the window and pin it by its hash. Return the settings, and what a worktree needs:
    path there -> its source."""
    params, inputs = windows.take_in(clone, params, window, report_line)
    return params, inputs | given_model(clone, params)


def given_model(clone: Clone, params: config.Params) -> dict[str, Path]:
    """Return the folder or file of the given base model, where it is in the clone: path there ->
    its source."""
    model = clone.home / (params.policy.model or "")
    inside = _inside(model, clone) if params.policy.model and model.exists() else None
    return {inside: model.resolve()} if inside else {}


@contextlib.contextmanager
def start(clone: Clone, what: Plan) -> Iterator[Run]:
    """Adopt or create a run, and record it at the end. A run that stops at run.max_hours stays, to
    be adopted later. Raises UserError while the same run is going on in another process."""
    with contextlib.ExitStack() as stack:
        with records.held(start_lock(clone), wait=True):
            clear(clone, what.key)
            run = _adopt(clone, what) or _create(clone, what)
            # wait: `alive` may hold the lock for a moment
            stack.enter_context(records.held(records.lock(clone, run.name), wait=True))
            run.max_hours, run.since = what.params.run.max_hours, time.time()
            environment.record(run.tree, records.now())
            # for an adopted run too: if the engine was upgraded meanwhile, the stages that can load
            # what changed run again
            engine.write(run.tree, what.params.recipe, clone.state)
            run.update(state="running", resumed=records.now(), max_hours=run.max_hours)
        try:
            yield run
        except Stopped as stop:
            run.update(**_stopping(run, str(stop)))
            raise Stopped(run.record.message) from None
        except BaseException as error:
            run.update(**_ending(error))
            raise
        else:
            if run.record.state == "running":
                run.update(state="finished")
        finally:
            with _undisturbed():
                run.dvc.stop()
                run.update(ended=records.now(), resumed=None, spent_s=run.record.spent_s + time.time() - run.since)
                if run.record.state == "paused":
                    _group_file(clone, run.name).unlink(missing_ok=True)
                else:
                    _close(run)


def clear(clone: Clone, key: str | None = None) -> list[str]:
    """Record runs whose driver is dead: as cancelled if they were asked to end, otherwise as
    killed. Return their names. Runs that can be adopted are left: one of this key, which `start`
    adopts, and those that wait for a higher run.max_hours.
    """
    cleared: list[str] = []
    for record in records.of_agent(clone):
        if not record.over and not records.alive(clone, record.name):
            asked = Run(clone, record).cancelled
            if asked or not (record.state == "paused" or (record.state == "running" and record.key == key)):
                end(clone, record, "cancelled" if asked else "killed", CANCELLED if asked else "its process was killed")
                cleared.append(record.name)
    known = {record.name for record in records.load_all(clone)}
    for folder in clone.worktrees.iterdir() if clone.worktrees.is_dir() else ():
        if folder.name not in known:
            remove_tree(clone, folder)
    return cleared


def end(clone: Clone, record: RunRecord, state: State, message: str) -> RunRecord | None:
    """Record an unfinished run whose driver is dead. Returns None when there is nothing to record:
    no stage ever ran, or its worktree and its commit are gone. The caller holds `start_lock`."""
    kill_stage(clone, record.name)
    run = Run(clone, record)
    lost = not (run.worktree.is_dir() or _recorded(clone, record))
    if record.state == "preparing" or (lost and not (record.begun and _has(clone, record.commit))):
        _forget(run)
        return None
    if lost:
        message = f"{message}. Its worktree was gone: the revision holds its commit, and none of its results"
    if record.state in ("running", "paused"):
        run.update(state=state, ended=records.now(), message=message, resumed=None, spent_s=_spent_s(clone, record))
    _close(run)
    return run.record


def start_lock(clone: Clone) -> Path:
    """Return the lock that is held while a run is adopted or created."""
    return clone.runs / ".start.lock"


# -- beginning -------------------------------------------------------------------------------------
def _adopt(clone: Clone, what: Plan) -> Run | None:
    for record in reversed(records.load_all(clone)):
        if record.key != what.key or record.state not in ("running", "paused") or record.over:
            continue
        if records.alive(clone, record.name):
            same = f"run {record.name}, with this very commit, settings and window"
            raise UserError(f"{same}, is going on in another process. Wait for it.")
        kill_stage(clone, record.name)
        run = Run(clone, record, adopted=True)
        if not (run.worktree.is_dir() or record.begun):
            _forget(run)
            continue
        if not _belongs(clone, run):
            _lay_out_anew(run, what)
        run.update(ended=None, message="", spent_s=_spent_s(clone, record), resumed=None)
        return run
    return None


def _belongs(clone: Clone, run: Run) -> bool:
    """Say whether the run's folder is a worktree of this clone, at this place. In a clone that was
    moved or copied, its link to Git and its DVC cache name the old place, which may be another
    clone's now.
    """
    try:
        top, common = git(run.worktree, "rev-parse", "--show-toplevel", "--git-common-dir").split("\n")
        local = (run.tree / _DVC_LOCAL).read_text(encoding="utf-8")
    except (RftError, OSError):
        return False
    ours = clone.root / clone.git("rev-parse", "--git-common-dir")
    here = run.worktree.resolve()
    return (Path(top), (run.worktree / common).resolve(), local) == (here, ours.resolve(), _dvc_local(clone))


def _lay_out_anew(run: Run, what: Plan) -> None:
    """Make the worktree again. Its results come from DVC's run cache, and unfinished work from
    `.rft/progress`. It gets its name only when it is whole, so a kill leaves nothing to adopt."""
    part = run.worktree.with_name(f"{run.name}.anew")
    remove_tree(run.clone, part)
    _prepare(run.clone, part, what)
    remove_tree(run.clone, run.worktree)
    run.clone.git("worktree", "move", str(part), str(run.worktree))


def _spent_s(clone: Clone, record: RunRecord) -> float:
    """Return the seconds of work so far. A start that was killed counts up to its last sign of
    life: a change of its record, or a line that a stage printed."""
    if record.resumed is None:
        return record.spent_s
    files = [records.path(clone, record.name), *clone.log(record.name, "").parent.glob("*.log")]
    last = max(file.stat().st_mtime for file in files)
    return record.spent_s + max(0.0, last - datetime.fromisoformat(record.resumed).timestamp())


def _create(clone: Clone, what: Plan) -> Run:
    """Create a run. Its state is `preparing` until its worktree is whole and it may be adopted."""
    name = _name(clone, what.key)
    record = RunRecord(
        name=name,
        agent=what.params.agent_name,
        folder=clone.folder,
        key=what.key,
        commit=what.commit,
        edits_sha256=what.edits.sha256,
        edited=[*what.edits.changed, *what.edits.untracked],
        champion_version=what.served.champion.version,
        window=what.params.traffic.file,
        inputs=list(what.inputs),
        started=records.now(),
        started_by=user(clone),
    )
    records.save(clone, record)
    run = Run(clone, record)
    try:
        _prepare(clone, run.worktree, what)
    except BaseException:
        _forget(run)
        raise
    return run


def _forget(run: Run) -> None:
    """Remove a run without any stage that ran: there is nothing to record."""
    remove_tree(run.clone, run.worktree)
    records.path(run.clone, run.name).unlink()
    _clear_marks(run)


def _prepare(clone: Clone, worktree: Path, what: Plan) -> None:
    tree = lay_out(clone, worktree, what.commit, what.edits, what.inputs)
    raw = what.params.identity()
    write_params(tree / "params.yaml", raw)
    secret = user_edits.declared_secrets(what.params.model_dump())  # those of section `run` too
    user_edits.refuse_secrets(worktree, user_edits.recorded_files(clone, worktree, what.params.recipe.sources), secret)
    what.served.place(tree)
    source.write(what.base, tree)


def lay_out(clone: Clone, worktree: Path, commit: str, edits: Edits, inputs: dict[str, Path]) -> Path:
    """Make a worktree of this commit with the user's edits and inputs, on the clone's DVC cache.
    Return the agent's folder in it."""
    tree = lay_out_commit(clone, worktree, commit, clone.folder)
    user_edits.carry(edits, clone, worktree)
    for inside, place in inputs.items():
        _bring(place, tree / inside)
    return tree


def lay_out_commit(clone: Clone, worktree: Path, commit: str, folder: str) -> Path:
    """Make a worktree, and return the agent's folder in it: a DVC repository of its own, with the
    clone's cache."""
    clone.git(*unfiltered(clone.root), "worktree", "add", "--quiet", "--force", "--detach", str(worktree), commit)
    local = worktree / folder / _DVC_LOCAL
    local.parent.mkdir(parents=True, exist_ok=True)
    local.write_text(_dvc_local(clone), encoding="utf-8")
    return worktree / folder


def _dvc_local(clone: Clone) -> str:
    return f'[cache]\n    dir = {_quoted(str(clone.dvc_cache))}\n    type = "reflink,hardlink,symlink,copy"\n'


def _quoted(value: str) -> str:
    """Quote a value for DVC's settings, where a bare `#` begins a comment and a comma makes a
    list."""
    return next((f"{quote}{value}{quote}" for quote in ('"', "'") if quote not in value), f'"""{value}"""')


def _bring(source: Path, target: Path) -> None:
    """Link to a folder or file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():  # otherwise Git has it, and it came with the commit
        target.symlink_to(source)


def write_params(path: Path, raw: dict[str, Any]) -> None:
    files.write_text(
        "# Of one run, every value written out.\n" + yaml.safe_dump(raw, sort_keys=False, allow_unicode=True), path
    )


def _name(clone: Clone, key: str) -> str:
    stamp = records.now().replace("-", "").replace(":", "").replace("T", "-")[:13]
    names = (f"{stamp}-{key[:4]}{suffix}" for suffix in ("", *"abcdefghijklmnopqrstuvwxyz"))
    return next(name for name in names if not records.path(clone, name).exists())


def _inside(path: Path, clone: Clone) -> str | None:
    try:
        return Path(os.path.abspath(path)).relative_to(clone.home).as_posix()
    except ValueError:
        return None


def user(clone: Clone) -> str:
    """Return Git's user name, or else the login. It shows when people approve their own runs."""
    try:
        return clone.git("config", "user.name")
    except GitError:
        return getpass.getuser()


# -- end -------------------------------------------------------------------------------------------
CANCELLED = "cancelled by `rft runs cancel`"
_OWN_WORDS: tuple[State, ...] = ("interrupted", "killed", "cancelled")
"""States whose message is written here. Other messages, such as a stage's error or a verdict on
drift, may quote a conversation, and Git keeps everything for ever. So they stay in this clone's
record."""


def _stopping(run: Run, where: str) -> dict[str, Any]:
    """Return the changes of the record for a run that stopped. `where` says which stage stopped, at
    which point, and why."""
    if run.cancelled:
        message = f"run {run.name} was {CANCELLED} ({where}). Its finished stages and unfinished work are kept."
        return {"state": "cancelled", "message": message}
    hours = (run.record.spent_s + time.time() - run.since) / 3600
    limit = "" if run.max_hours is None else f" of run.max_hours = {run.max_hours:g}"
    message = (
        f"run {run.name} has worked for {hours:.3g} hours{limit} and stopped in order ({where}). Its work is kept."
    )
    return {"state": "paused", "message": f"{message} The same command with a higher run.max_hours goes on with it."}


def _ending(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in ("TerminationSignal", "CancelledError"):
        return {"state": "interrupted", "message": "interrupted"}
    message = str(error) if isinstance(error, RftError) else f"{type(error).__name__}: {error}"
    return {"state": "failed", "message": secrets.redact(message)[:2000]}


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals: an impatient second Ctrl-C must not cut the recording in half."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(run: Run) -> None:
    """Record the run, then clear it away. The worktree stays if recording fails."""
    revision = _recorded(run.clone, run.record) or _snapshot(run)
    run.update(revision=revision)
    remove_tree(run.clone, run.worktree)
    _clear_marks(run)


def _clear_marks(run: Run) -> None:
    for file in (
        records.lock(run.clone, run.name),
        _group_file(run.clone, run.name),
        stopping.request(run.clone.state, run.name),
    ):
        file.unlink(missing_ok=True)


def _ref(record: RunRecord) -> str:
    return f"refs/exps/{record.commit[:2]}/{record.commit[2:]}/{record.name}"


def _recorded(clone: Clone, record: RunRecord) -> str | None:
    """Return the revision of a run whose process created the ref, and died before it noted that."""
    return clone.git("for-each-ref", "--format=%(objectname)", _ref(record)) or None


def _has(clone: Clone, commit: str) -> bool:
    """Say whether Git has a commit. In time Git drops an amended commit that no worktree holds."""
    try:
        clone.git("cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return False
    return True


def _snapshot(run: Run) -> str:
    """Commit the run's folder; if it is gone, the tree of the commit at which the run began."""
    record = run.record
    tree = _written(run) if run.worktree.is_dir() else run.clone.git("rev-parse", f"{record.commit}^{{tree}}")
    told = record.model_copy(update={"environment_sha256": environment.sha256(run.tree)})
    told = told if record.state in _OWN_WORDS else told.model_copy(update={"message": ""})
    message = f"run {record.name}: {record.decision or record.state}\n\n{told.model_dump_json(indent=1)}\n"
    if record.ledger is not None:  # an anchor: a ledger without this entry was cut or rewritten
        message += f"\nLedger: {record.ledger}\n"
    commit = git(run.clone.root, "commit-tree", tree, "-p", record.commit, given=message.encode())
    run.clone.git("update-ref", "--create-reflog", "-m", f"run {record.name}", _ref(record), commit, _NEW_REF)
    return commit


def _written(run: Run) -> str:
    """Write the folder as a Git tree. This goes through the clone, because the worktree's own link
    breaks when the clone is moved."""
    folder = run.clone.git("rev-parse", "--absolute-git-dir")
    here = (*unfiltered(run.clone.root), f"--git-dir={folder}", f"--work-tree={run.worktree}")

    def of_agent(path: str) -> str:
        return (PurePosixPath(run.record.folder) / path).as_posix()

    with tempfile.TemporaryDirectory(dir=run.clone.state) as scratch:

        def write(*arguments: str) -> str:
            return git(run.worktree, *here, *arguments, index=Path(scratch) / "index")

        inputs = map(of_agent, run.record.inputs)
        out = [f":(exclude,literal){path}" for path in inputs if not _is_ignored(run.worktree, here, path)]
        write("read-tree", run.record.commit)
        write("add", "--all", "--", ".", *out)
        # the user's commit may hold an earlier champion's files, or a profile of version 0.1.0
        champion = of_agent(str(stage_files.folder("champion")))
        write("rm", "-r", "--force", "--cached", "--quiet", "--ignore-unmatch", "--", champion)
        write("add", "--force", "--", *(of_agent(path) for path in _FORCED if (run.tree / path).exists()))
        return write("write-tree")


def _is_ignored(tree: Path, here: Iterable[str], path: str) -> bool:
    """Say whether Git ignores a path. Git refuses to exclude a path that it ignores anyway."""
    try:
        git(tree, *here, "check-ignore", "--quiet", "--no-index", "--", path)
    except GitError:
        return False
    return True


def remove_tree(clone: Clone, tree: Path) -> None:
    if tree.exists():
        with contextlib.suppress(GitError):  # Git may not know the folder as a worktree (any more)
            clone.git("worktree", "remove", "--force", str(tree))
        shutil.rmtree(tree, ignore_errors=True)
    if tree.is_symlink():  # what it points at is not ours to remove
        tree.unlink()
    clone.git("worktree", "prune")


# -- processes that outlived their driver ----------------------------------------------------------
def note_group(run: Run, group: int) -> None:
    _group_file(run.clone, run.name).write_text(str(group), encoding="utf-8")


def _group_file(clone: Clone, name: str) -> Path:
    return clone.runs / f"{name}.group"


def kill_stage(clone: Clone, name: str) -> None:
    """Kill what is left of the last stage's process group. Process ids are reused, and a copied
    clone has the notes of the original's runs. So only the environment shows to which run a process
    belongs.
    """
    file = _group_file(clone, name)
    group = int(file.read_text(encoding="utf-8") or 0) if file.exists() else 0
    if not group:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, FileNotFoundError):
            if os.getpgid(process.pid) == group and _is_of(process.environ(), clone, name):
                os.kill(process.pid, signal.SIGKILL)


def _is_of(environment: dict[str, str], clone: Clone, name: str) -> bool:
    """Say whether a process works for this run. If its state folder is gone, the clone was
    moved."""
    place = Path(environment.get(files.STATE, ""))
    return environment.get(stopping.RUN) == name and (not place.is_dir() or place.samefile(clone.state))
