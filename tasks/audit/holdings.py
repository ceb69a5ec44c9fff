"""What a run holds: is this conversation, example, package, base model or hash in it?

Each answer says in words where it was found, in bytes that were hashed on the way; None: not there.
What cannot be searched raises Broken, so that nobody takes such a run for one that lacks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from rft import stage_files
from rft.reports.audit import Kind
from tasks.audit import revisions, traffic
from tasks.audit.context import Context
from tasks.audit.graph import altered, unverifiable
from tasks.audit.revisions import Run
from tasks.runs.artifacts import Out

Holds = Callable[[Context, Run, str], str | None]
_SPLITS = ("train", "validation", "test")


def out_of(run: Run, path: str) -> Out | None:
    """Return an output of one of the run's stages."""
    return next((out for stage in run.stages.values() for out in stage.outs if out.path == path), None)


# -- conversations ---------------------------------------------------------------------------------
def conversations(ctx: Context, run: Run) -> list[str]:
    """Return the ids of a run's conversations. Raises Broken."""
    return traffic.ids(ctx, run)


def conversation(ctx: Context, run: Run, wanted: str) -> str | None:
    out = traffic.out(run)
    if out is None or wanted not in traffic.ids(ctx, run):
        return None
    return f"it is in {out.path}, MD5 {out.md5} recomputed"


def example(ctx: Context, run: Run, wanted: str) -> str | None:
    found: list[str] = []
    key = _id_key(ctx, run)
    for split in _SPLITS:
        out = out_of(run, str(stage_files.examples_file(split)))
        if out is not None and wanted in traffic.ids_of_lines(ctx.store.read(run.at, out), key, out.path):
            found.append(split)
    return f"it is among its {' and '.join(found)} examples, MD5 recomputed" if found else None


def _id_key(ctx: Context, run: Run) -> str:
    out = out_of(run, str(stage_files.KEYS))
    if out is None:
        return "id"
    try:
        return str(json.loads(ctx.store.read(run.at, out)).get("id") or "id")
    except (ValueError, AttributeError):
        raise altered(f"{out.path} is not JSON") from None


# -- packages --------------------------------------------------------------------------------------
def package(ctx: Context, run: Run, wanted: str) -> str | None:
    """Look for a package: `wanted` is NAME or NAME==VERSION."""
    name, _, version = wanted.partition("==")
    found = revisions.environment(ctx, run)
    if found is not None:
        versions = {_canonical(each): told for start in found.starts for each, told in start.packages.items()}
        told = versions.get(_canonical(name))
        has = told is not None and version in ("", told)
        return f"{name} {told} was installed, SHA-256 of the list recomputed" if has else None
    raise unverifiable("it recorded no packages")


def _canonical(name: str) -> str:
    return name.strip().casefold().replace("_", "-").replace(".", "-")


# -- base models -----------------------------------------------------------------------------------
def base_model(ctx: Context, run: Run, wanted: str) -> str | None:
    """Look for a base model by its name or hub id, or by the beginning of its hash."""
    out = out_of(run, "data/policy")
    if out is None:
        return None
    ctx.store.verify_out(run.at, out)
    inside = dict(ctx.store.listing(out.md5)).get("report.json")
    told = json.loads(ctx.store.read(run.at, Out("data/policy/report.json", inside or "", 0, None))) if inside else {}
    if wanted == told.get("model") or (len(wanted) >= 7 and str(told.get("sha256", "")).startswith(wanted)):
        return f"base model {told['model']}, SHA-256 {told['sha256']}"
    return None


# -- hashes ----------------------------------------------------------------------------------------
def anything(ctx: Context, run: Run, wanted: str) -> str | None:
    """Look for a hash or the beginning of one: of a commit, a file, a folder, or in a report."""
    for what, value in _hashes(ctx, run):
        if value.startswith(wanted):
            return f"{what} has hash {value}"
    for what, content in _texts(ctx, run):
        if wanted.encode() in content:
            return f"{what} names it"
    return None


def _hashes(ctx: Context, run: Run) -> Iterator[tuple[str, str]]:
    yield "its revision", run.at.commit
    yield "the commit that it began at", run.record.commit
    for blob in ctx.store.files(run.at.commit):
        yield f"{blob.path} of its revision", blob.name
    for name, stage in run.stages.items():
        for dep in stage.deps:
            yield f"{dep.path}, which stage {name} read,", dep.md5
        for out in stage.outs:
            yield f"{out.path}, which stage {name} wrote,", out.md5
    for stage in run.stages.values():
        for out in stage.outs:
            ctx.store.verify_out(run.at, out)
            inside = ctx.store.listing(out.md5) if out.is_folder else [("", out.md5)]
            for path, md5 in inside:
                yield f"{out.path}{'/' if path else ''}{path}", md5
                yield f"{out.path}{'/' if path else ''}{path}", ctx.store.sha256(md5)


def _texts(ctx: Context, run: Run) -> Iterator[tuple[str, bytes]]:
    for path in ("dvc.lock", "params.yaml", "data/champion/champion.json", revisions.ENVIRONMENT):
        yield f"{path} of its revision", ctx.store.file(run.at.commit, run.record.inside(path)) or b""
    yield "its record", ctx.store.commit(run.at.commit).message.encode()
    for stage in run.stages.values():
        for out in stage.outs:
            if out.path.endswith(".json"):
                yield out.path, ctx.store.read(run.at, out)
            elif out.is_folder and "report.json" in dict(ctx.store.listing(out.md5)):
                md5 = dict(ctx.store.listing(out.md5))["report.json"]
                yield f"{out.path}/report.json", ctx.store.read(run.at, Out(out.path, md5, 0, None))


WAYS: dict[Kind, Holds] = {
    "conversation": conversation,
    "example": example,
    "package": package,
    "base model": base_model,
    "bytes": anything,
}


def holds(ctx: Context, run: Run, kind: Kind, wanted: str) -> str | None:
    """Say where the run holds what is wanted; None: nowhere. Raises Broken where it cannot be
    searched."""
    return WAYS[kind](ctx, run, wanted)
