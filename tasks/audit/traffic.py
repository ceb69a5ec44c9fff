"""The conversations of a run: the ids in the files of its traffic, from bytes that were hashed.

A run keeps its conversations as a snapshot, a folder of Parquet files (rft/traffic/schema.py).
"""

from __future__ import annotations

import io
import json
from typing import Protocol

import pyarrow as pa
from pyarrow import parquet

from rft import reports, stage_files
from rft.errors import UserError
from rft.reports import Manifest
from rft.traffic.schema import MANIFEST
from tasks.audit.context import Context
from tasks.audit.graph import altered
from tasks.audit.lock import Stage
from tasks.runs.artifacts import Out, Revision


class HasStages(Protocol):
    """A run as an audit reads it."""

    @property
    def at(self) -> Revision: ...
    @property
    def stages(self) -> dict[str, Stage]: ...


def out(run: HasStages) -> Out | None:
    """Return the output that holds the conversations."""
    outs = (out for stage in run.stages.values() for out in stage.outs)
    return next((out for out in outs if out.path == str(stage_files.CONVERSATIONS)), None)


def ids(ctx: Context, run: HasStages) -> list[str]:
    """Return the ids of the run's conversations. Raises Broken."""
    found = out(run)
    if found is None:
        return []
    return [each for name, part in _parts(ctx, run, found).items() for each in _column(part, f"{found.path}/{name}")]


def manifest(ctx: Context, run: HasStages) -> Manifest | None:
    """Return the snapshot's manifest; None where the run kept no snapshot. Raises Broken."""
    found = out(run)
    if found is None:
        return None
    md5 = _listing(ctx, run, found).get(MANIFEST)
    path = f"{found.path}/{MANIFEST}"
    if md5 is None:
        raise altered(f"{path} is missing")
    try:
        return reports.parse(Manifest, _read(ctx, run, path, md5), path)
    except (UserError, ValueError) as error:
        raise altered(f"{path}: {error}") from None


def ids_of_lines(content: bytes, key: str, path: str) -> list[str]:
    """Return the values of a key in JSON lines. Raises Broken."""
    try:
        return [str(json.loads(line)[key]) for line in content.splitlines()]
    except (ValueError, LookupError, TypeError) as error:
        raise altered(f"{path} holds a row without {key}: {error}") from None


def _parts(ctx: Context, run: HasStages, found: Out) -> dict[str, bytes]:
    listing = _listing(ctx, run, found)
    return {
        name: _read(ctx, run, f"{found.path}/{name}", md5)
        for name, md5 in sorted(listing.items())
        if name.endswith(".parquet")
    }


def _listing(ctx: Context, run: HasStages, found: Out) -> dict[str, str]:
    ctx.store.verify_out(run.at, found)
    return dict(ctx.store.listing(found.md5))


def _read(ctx: Context, run: HasStages, path: str, md5: str) -> bytes:
    return ctx.store.read(run.at, Out(path, md5, 0, None))


def _column(part: bytes, path: str) -> list[str]:
    try:
        return parquet.read_table(io.BytesIO(part), columns=["conversation_id"]).column(0).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, IndexError) as error:
        raise altered(f"{path} is not a part of a snapshot: {error}") from None
