"""A run's part of an audit: its revision in Git, and what the revision says about the run.

    run       The name that the ledger and people use.
    revision  The commit that recorded the run. Every object of it is hashed again.
    code      The commit at which the run began, and uncommitted edits.
    stages    What each stage read and wrote, from dvc.lock (stages.py).

A run that the ledger names rests on its signed entries. For any other run the commit is the only
evidence: everybody who can write to this clone's Git could have written it, and the audit says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from rft import files, reports, stage_files
from rft.errors import UserError
from rft.formatting import counted
from rft.reports.environment import Environment
from tasks.audit import lock, stages
from tasks.audit.context import Context
from tasks.audit.graph import SHORT, Broken, altered, missing, unverifiable
from tasks.audit.lock import Stage
from tasks.audit.recorded import Recorded
from tasks.ledger.entry import Request
from tasks.runs import edits, records
from tasks.runs.artifacts import Revision, read_yaml
from tasks.runs.records import RunRecord

ENVIRONMENT = str(stage_files.ENVIRONMENT)
_AT_THE_END = ("revision", "dvc.lock_sha256")
"""Tags that MLflow gets when a run is over: a run that was killed does not have them."""


@dataclass(frozen=True)
class Run:
    """A run's revision, parsed from bytes that fit their hashes."""

    name: str
    at: Revision
    record: RunRecord
    params: dict[str, Any]
    stages: dict[str, Stage]
    """The stages of this run, in the order of the ladder."""

    @property
    def model(self) -> str:
        return str(self.params.get("agent") or self.params["recipe"]["path"].rstrip("/").rpartition("/")[2])


def link(ctx: Context, source: str, says: str, name: str, commit: str, request: Request | None) -> str:
    """Link something to a run, and the run to what its revision holds. Returns the run's id."""
    seen = ctx.graph.knows("run", name)
    target = ctx.graph.add("run", name, f"run {name}")
    ctx.graph.link(source, says, target, lambda: _same_revision(ctx, name, commit, request))
    if not seen:
        _recorded(ctx, target, name, commit, request)
    return target


def _same_revision(ctx: Context, name: str, commit: str, request: Request | None) -> str:
    """Check that the run's refs and this clone's record name the same revision. Without a request,
    nothing signed names it."""
    for ref, found in ctx.refs.get(name, []):
        if found != commit:
            raise altered(f"{ref} is on {found[:SHORT]}, and {commit[:SHORT]} was recorded: somebody moved the ref")
    mine = _own_record(ctx, name)
    if mine is not None and mine.revision != commit:
        raise altered(f".rft/runs/{name}.json names revision {str(mine.revision)[:SHORT]}, not {commit[:SHORT]}")
    if request is None:
        also = "" if mine is None else "; this clone's record names it too"
        raise unverifiable(f"no entry of the ledger, so nothing signed, names its revision {commit[:SHORT]}{also}")
    told = [f"the ledger names revision {commit[:SHORT]}"]
    told += ["so does its ref"] if ctx.refs.get(name) else []
    told += ["so does this clone's record"] if mine is not None else []
    return ", ".join(told)


def _own_record(ctx: Context, name: str) -> RunRecord | None:
    path = records.path(ctx.clone, name)
    if not path.exists():
        return None
    try:
        return reports.parse(RunRecord, path.read_bytes(), str(path))
    except ValidationError:
        raise altered(f".rft/runs/{name}.json is not a whole record of a run") from None


def _recorded(ctx: Context, source: str, name: str, commit: str, request: Request | None) -> None:
    key = ctx.graph.add("revision", commit, f"revision {commit[:SHORT]}", commit=commit)
    found: list[Run] = []

    def check() -> str:
        count = ctx.store.verify(commit)
        found.append(_parsed(ctx, name, commit))
        if request is not None and request.key != found[0].record.key:
            raise altered(f"its run's key is {found[0].record.key[:SHORT]}, and the request says {request.key[:SHORT]}")
        return f"commit, folders and {count} files hashed again"

    ctx.graph.link(source, "was recorded as", key, check)
    if not found:
        return
    run = found[0]
    ctx.graph.add(
        "run",
        name,
        recipe=run.params["recipe"]["path"],
        started=f"{run.record.started} by {run.record.started_by}",
        ended=run.record.ended,
        state=run.record.state,
        decision=run.record.decision,
        window=run.record.window,
    )
    _code(ctx, key, run, request)
    _environment(ctx, key, run)
    _mlflow(ctx, source, run)
    stages.link(key, Recorded(ctx, run.at, run.record, run.params, run.stages))


def parsed(ctx: Context, name: str, commit: str) -> Run:
    """Return a run's revision, from hashed objects, read once per audit. Raises Broken."""
    if (name, commit) not in ctx.parsed:
        ctx.store.verify(commit)
        ctx.parsed[name, commit] = _parsed(ctx, name, commit)
    return ctx.parsed[name, commit]


def _parsed(ctx: Context, name: str, commit: str) -> Run:
    record = _record(ctx.store.commit(commit).message, name, commit)
    text = ctx.store.file(commit, record.inside(lock.PARAMS))
    locked = ctx.store.file(commit, record.inside("dvc.lock"))
    try:
        params = read_yaml(text or b"")
        for section, key in (("recipe", "path"), ("traffic", "file")):
            if not isinstance(params[section][key], str):
                raise TypeError(f"{section}.{key} is not a text")
    except (yaml.YAMLError, LookupError, TypeError) as error:
        raise altered(f"params.yaml of revision {commit[:SHORT]} is not as a run writes it: {error!r}") from None
    return Run(name, ctx.at(commit), record, params, _own(ctx, record, locked))


def stages_of(ctx: Context, at: Revision) -> dict[str, Stage]:
    """Return the stages in a revision's dvc.lock. Raises Broken."""
    locked = ctx.store.file(at.commit, at.from_the_top("dvc.lock"))
    return lock.parse(locked) if locked else {}


def _own(ctx: Context, record: RunRecord, locked: bytes | None) -> dict[str, Stage]:
    """Return the run's own stages, without those of earlier runs in a dvc.lock that the user
    committed."""
    try:
        before = ctx.store.file(record.commit, record.inside("dvc.lock")) if locked else None
        earlier = lock.parse(before) if before else {}
    except Broken:  # the link to that commit says what is wrong with it
        earlier = {}
    found = lock.parse(locked) if locked else {}
    return {name: stage for name, stage in found.items() if name in record.stages or earlier.get(name) != stage}


def _record(message: str, name: str, commit: str) -> RunRecord:
    body = message.partition("\n\n")[2]
    try:
        told, _ = json.JSONDecoder().raw_decode(body)
        record = reports.parse(RunRecord, json.dumps(told).encode(), f"the message of revision {commit[:SHORT]}")
    except ValidationError as error:
        later = [".".join(map(str, each["loc"])) for each in error.errors() if each["type"] == "extra_forbidden"]
        if later:
            raise unverifiable(
                f"revision {commit[:SHORT]} was made by a newer version of agent-rft ({', '.join(later)} is unknown "
                "here): audit it with that one"
            ) from None
        raise altered(f"the message of revision {commit[:SHORT]} holds no whole record of a run") from None
    except ValueError:
        raise altered(f"revision {commit[:SHORT]} is not a run's: its message holds no record") from None
    if record.name != name:
        raise altered(f"revision {commit[:SHORT]} is that of run {record.name}, not of {name}")
    return record


# -- code ------------------------------------------------------------------------------------------
def _code(ctx: Context, source: str, run: Run, request: Request | None) -> None:
    commit = run.record.commit
    key = ctx.graph.add("code", commit, f"commit {commit[:SHORT]}", commit=commit)
    changed: list[str] = []

    def check() -> str:
        parents = ctx.store.commit(run.at.commit).parents
        if parents != (commit,):
            raise altered(f"the parent of revision {run.at.commit[:SHORT]} is not commit {commit[:SHORT]}")
        count = ctx.store.verify(commit)
        try:
            found = edits.between(ctx.clone, commit, run.at.commit, run.record.folder)
        except UserError as error:
            raise altered(str(error)) from None
        changed.extend(found.changed)
        if request is not None and found.sha256 is not None and request.edits_sha256 != found.sha256:
            raise altered(
                f"its uncommitted edits have hash {found.sha256[:SHORT]}, and the request says "
                f"{str(request.edits_sha256)[:SHORT]}"
            )
        if found.sha256 is None and run.record.edits_sha256 is not None:
            raise altered("the run says that it had uncommitted edits, and its revision holds none")
        edited = "no uncommitted edits" if not changed else f"uncommitted edits in {', '.join(changed[:5])}"
        return f"{counted(count, 'file')} hashed again; {edited}"

    ctx.graph.link(source, "began at", key, check)
    if changed:
        ctx.graph.add("revision", run.at.commit, uncommitted_edits=", ".join(changed))


# -- environment -----------------------------------------------------------------------------------
def environment(ctx: Context, run: Run) -> Environment | None:
    """Return the packages of a run; None where it recorded none. Raises Broken for a file that is
    not the one that the run recorded."""
    content = ctx.store.file(run.at.commit, run.record.inside(ENVIRONMENT))
    if content is None:
        if run.record.environment_sha256 is not None:
            raise missing(f"{ENVIRONMENT} of revision {run.at.commit[:SHORT]} is gone, and the run wrote one")
        return None
    if hashlib.sha256(content).hexdigest() != run.record.environment_sha256:
        raise altered(f"{ENVIRONMENT} of revision {run.at.commit[:SHORT]} is not the one that its run recorded")
    try:
        return reports.parse(Environment, content, f"{ENVIRONMENT} of revision {run.at.commit[:SHORT]}")
    except ValidationError as error:
        raise altered(f"{ENVIRONMENT}: {error.errors()[0]['msg']}") from None


def _environment(ctx: Context, source: str, run: Run) -> None:
    key = ctx.graph.add("environment", run.name, "packages")
    told: list[Environment] = []

    def check() -> str:
        found = environment(ctx, run)
        if found is None:
            raise unverifiable("the run recorded no packages")
        told.append(found)
        return f"SHA-256 recomputed: {counted(len(found.starts[-1].packages), 'package')}"

    ctx.graph.link(source, "ran with", key, check)
    for start in told[0].starts[-1:] if told else ():
        ctx.graph.add(
            "environment",
            run.name,
            agent_rft=start.tool,
            python=start.python,
            platform=start.platform,
            packages=counted(len(start.packages), "package"),
            sha256=files.digest(start.packages),
            starts=str(len(told[0].starts)) if len(told[0].starts) > 1 else None,
        )


# -- MLflow ----------------------------------------------------------------------------------------
def _mlflow(ctx: Context, source: str, run: Run) -> None:
    if run.record.mlflow_run_id is None:
        return
    key = ctx.graph.add("alias", f"mlflow-run/{run.name}", "MLflow run", mlflow_run_id=run.record.mlflow_run_id)

    def check() -> str:
        found = ctx.shown.run(run.record.mlflow_run_id or "")
        if found is None:
            if _own_record(ctx, run.name) is not None:
                raise missing(f"this clone's MLflow has no run {run.record.mlflow_run_id} any more: it was deleted")
            raise unverifiable("this MLflow does not hold it: the run was made in another clone")
        if found.info.lifecycle_stage == "deleted":
            raise missing(
                f"run {run.record.mlflow_run_id} was deleted in MLflow. Restore it there: it is kept for a while"
            )
        expected = {"run": run.name, "git_commit": run.record.commit, "revision": run.at.commit}
        expected["dvc.lock_sha256"] = run.at.lock_sha256 or ""
        for tag, value in expected.items():
            told = found.data.tags.get(tag)
            if told != value and not (told is None and tag in _AT_THE_END):
                raise altered(f"its tag {tag} is {told!r}, and the run's revision says {value!r}")
        return f"tags {', '.join(expected)} are those of the revision"

    ctx.graph.link(key, "shows", source, check)
