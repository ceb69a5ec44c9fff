"""What a run's revision holds, read only from hashed objects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from rft import reports, stage_files
from rft.formatting import counted
from tasks.audit.context import Context
from tasks.audit.graph import SHORT, Graph, altered, missing
from tasks.audit.lock import Stage
from tasks.audit.store import Blob
from tasks.runs.artifacts import Out, Revision
from tasks.runs.records import RunRecord

R = TypeVar("R", bound=reports.Report)


@dataclass(frozen=True)
class Recorded:
    ctx: Context
    at: Revision
    record: RunRecord
    params: dict[str, Any]
    stages: dict[str, Stage]
    """The stages of this run, in the order of the ladder."""

    @property
    def graph(self) -> Graph:
        return self.ctx.graph

    @cached_property
    def outs(self) -> dict[str, Out]:
        return {out.path: out for stage in self.stages.values() for out in stage.outs}

    @cached_property
    def everything(self) -> dict[str, Blob]:
        """Map each file of the revision by its path from the top."""
        return {blob.path: blob for blob in self.ctx.store.files(self.at.commit)}

    @cached_property
    def blobs(self) -> dict[str, Blob]:
        """Map each file of the agent's folder by its path in that folder."""
        above = f"{self.record.folder}/" if self.record.folder else ""
        return {path.removeprefix(above): blob for path, blob in self.everything.items() if path.startswith(above)}

    def stage_id(self, name: str) -> str:
        return f"stage:{self.record.name}/{name}"

    def add_bytes(self, out: Out) -> str:
        count = None if out.num_files is None else counted(out.num_files, "file")
        return self.graph.add(
            "bytes", f"{self.record.name}/{out.path}", out.path, md5=out.md5, size=str(out.size), files=count
        )

    def folder(self, path: str) -> dict[str, str]:
        """Return the files of a folder in Git: path in the folder -> MD5."""
        found = self.ctx.store.folder_of(self.at.commit, self.at.from_the_top(path))
        return {inside: self.ctx.store.blob_md5(blob) for inside, blob in found.items()}

    def report(self, kind: type[R]) -> R:
        """Return a report of the run, from verified bytes. Raises Broken."""
        path = str(stage_files.path(kind))
        found = self.read(path)
        try:
            return reports.parse(kind, found, f"{path} of revision {self.at.commit[:SHORT]}")
        except ValueError as error:
            raise altered(f"{path} is not a whole {kind.__name__}: {error}") from None

    def read(self, path: str) -> bytes:
        """Return verified bytes of an output, or of a file in an output folder. Raises Broken."""
        if path in self.outs:
            return self.ctx.store.read(self.at, self.outs[path])
        folder = next((out for out in self.outs.values() if path.startswith(f"{out.path}/")), None)
        if folder is None:
            raise missing(f"the run left no {path}")
        self.ctx.store.verify_out(self.at, folder)
        inside = dict(self.ctx.store.listing(folder.md5)).get(path.removeprefix(f"{folder.path}/"))
        if inside is None:
            raise missing(f"the run left no {path}")
        return self.ctx.store.read(self.at, Out(path, inside, 0, None))

    def tree_sha256(self, out: Out, below: str = "") -> str:
        """Compute `rft.files.tree_sha256` of an output folder, or of one in it. Raises Broken."""
        self.ctx.store.verify_out(self.at, out)
        digest = hashlib.sha256()
        for path, md5 in self.ctx.store.listing(out.md5):
            if path.startswith(below):
                name = path.removeprefix(below)
                digest.update(f"{name}\0".encode() + bytes.fromhex(self.ctx.store.sha256(md5)))
        return digest.hexdigest()
