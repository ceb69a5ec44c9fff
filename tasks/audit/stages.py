"""The stages of a run, from its dvc.lock: what each read, ran and wrote, all of it hashed again.

dvc.lock names every file that a stage read by MD5. A file that another stage wrote must have the
hash that this stage gave it; code and recipe must be those of the revision, the settings those of
its params.yaml, the champion's shelf that of the version it began with. Then the reports are read,
and the hashes in them compared with the bytes that they are about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from rft import files, reports, shelves
from rft.errors import RftError
from rft.reports import Decision, ExamplesReport, PolicyReport, TrafficReport, TrainReport
from rft.words import counted
from tasks.audit import lock
from tasks.audit.context import Context
from tasks.audit.graph import SHORT, Broken, altered, fits, missing, unverifiable
from tasks.audit.lock import Declared, Stage
from tasks.runs.artifacts import PROFILE, WEIGHTS, Out, Revision
from tasks.runs.records import RunRecord

R = TypeVar("R", bound=reports.Report)
_CHAMPION = str(shelves.folder("champion"))
_DECIDED_ON: dict[str, type[reports.Report]] = {
    "drift": reports.DriftReport,
    "baseline": reports.BaselineReport,
    "prompt_report": reports.PromptReport,
    "train": TrainReport,
    "challenger": reports.ChallengerReport,
}
"""As the decision calls the reports -> their kind."""


def link(
    ctx: Context, source: str, at: Revision, params: dict[str, Any], every: dict[str, Stage], record: RunRecord
) -> None:
    """Link a revision to its stages, and these to what they read and wrote."""
    found = _Stages(ctx, source, at, params, every, record)
    num_bytes = sum(out.size for out in found.outs.values())
    ctx.said(f"[audit] run {record.name}: {len(every)} stages, {num_bytes / 1e6:,.1f} MB to hash")
    for name, stage in found.own.items():
        found.stage(name, stage)
    found.meanings()


class _Stages:
    def __init__(
        self,
        ctx: Context,
        source: str,
        at: Revision,
        params: dict[str, Any],
        every: dict[str, Stage],
        record: RunRecord,
    ) -> None:
        self.ctx, self.graph, self.source, self.at = ctx, ctx.graph, source, at
        self.params, self.record = params, record
        self.own = every
        self.outs = {out.path: out for stage in self.own.values() for out in stage.outs}
        self.blobs = {blob.path: blob for blob in ctx.store.files(at.commit)}

    # -- one stage -----------------------------------------------------------------------------
    def stage(self, name: str, stage: Stage) -> None:
        run, how = self.record.name, self.record.stages.get(name)
        key = self.graph.add("stage", f"{run}/{name}", f"stage {name}", how=how, run=run)
        self.graph.link(self.source, "ran", key, lambda: self._as_declared(name, stage))
        code = self.graph.add("code", f"files/{self.at.commit}/{name}", f"code of stage {name}")
        self.graph.link(key, "ran the code", code, lambda: self._code(stage))
        settings = self.graph.add("parameters", self.at.commit, "params.yaml", sha256=files.digest(self.params))
        self.graph.link(key, "had the settings", settings, lambda: self._settings(stage))
        self._inputs(key, stage)
        for out in stage.outs:
            target = self._bytes(out)
            self.graph.link(key, "wrote", target, lambda out=out: self.ctx.store.verify_out(self.at, out))

    def _bytes(self, out: Out) -> str:
        count = None if out.num_files is None else counted(out.num_files, "file")
        return self.graph.add(
            "bytes", f"{self.record.name}/{out.path}", out.path, md5=out.md5, size=str(out.size), files=count
        )

    def _as_declared(self, name: str, stage: Stage) -> str:
        wanted = self._declared.get(name)
        if wanted is None:
            raise altered(f"dvc.lock has a stage {name}, and dvc.yaml of the revision has none")
        pairs = {
            "command": (stage.command, wanted.command),
            "dependencies": ({out.path for out in stage.deps}, wanted.deps),
            "outputs": ({out.path for out in stage.outs}, wanted.outs),
            "settings": ({*stage.params}, wanted.params),
        }
        for what, (found, named) in pairs.items():
            if found != named:
                more = sorted({*found} ^ {*named})[:3] if not isinstance(found, str) else [found]
                raise altered(f"dvc.lock names other {what} of stage {name} than dvc.yaml: {', '.join(more)}")
        return "command, dependencies, outputs and settings in dvc.lock are those of dvc.yaml"

    @cached_property
    def _declared(self) -> dict[str, Declared]:
        return lock.declared(self.ctx.store.file(self.at.commit, "dvc.yaml") or b"", self.params)

    def _settings(self, stage: Stage) -> str:
        for name, value in stage.params.items():
            try:
                now = lock.value_of(self.params, name)
            except (LookupError, TypeError):
                raise altered(f"params.yaml of the revision has no {name}, and the stage had it") from None
            if now != value:
                raise altered(f"{name} in params.yaml of the revision is not what stage {stage.name} was run with")
        return f"{', '.join(stage.params)} in params.yaml are what dvc.lock says"

    # -- what it read --------------------------------------------------------------------------
    def _code(self, stage: Stage) -> str:
        code = [dep for dep in stage.deps if self._is_code(dep)]
        wrong = [dep.path for dep in code if self._git_md5(dep) != dep.md5]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise altered(f"{', '.join(wrong[:3])}{more} of the revision is not what stage {stage.name} ran")
        return f"MD5 of {counted(len(code), 'file')} recomputed"

    def _is_code(self, dep: Out) -> bool:
        special = (_CHAMPION, self.params["recipe"]["path"], self.params["traffic"]["file"])
        return dep.path not in self.outs and dep.path not in special and dep.path not in self.record.inputs

    def _git_md5(self, dep: Out) -> str | None:
        if dep.path in self.blobs:
            return self.ctx.store.blob_md5(self.blobs[dep.path])
        inside = self._folder(dep.path)
        return lock.folder_md5(inside) if inside else None

    def _folder(self, path: str) -> dict[str, str]:
        found = self.ctx.store.folder_of(self.at.commit, path)
        return {inside: self.ctx.store.blob_md5(blob) for inside, blob in found.items()}

    def _inputs(self, key: str, stage: Stage) -> None:
        for dep in stage.deps:
            if dep.path in self.outs:
                target = self._bytes(self.outs[dep.path])
                self.graph.link(key, "read", target, lambda dep=dep: self._as_written(dep))
            elif dep.path == self.params["recipe"]["path"]:
                target = self.graph.add("recipe", f"{self.at.commit}/{dep.path}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._recipe(dep))
            elif dep.path == _CHAMPION:
                target = self.graph.add("bytes", f"{self.record.name}/{dep.path}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._champion(dep))
            elif dep.path == self.params["traffic"]["file"]:
                target = self.graph.add("window", dep.md5, dep.path, md5=dep.md5, size=str(dep.size))
                self.graph.link(key, "read", target, lambda dep=dep: self._window(dep))
            elif dep.path in self.record.inputs:
                target = self.graph.add("bytes", f"input/{dep.md5}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._input(dep))

    def _as_written(self, dep: Out) -> str:
        fits(dep.md5, self.outs[dep.path].md5, f"what it read of {dep.path}")
        return f"MD5 {dep.md5}, as it was written"

    def _recipe(self, dep: Out) -> str:
        inside = self._folder(dep.path)
        if lock.folder_md5(inside) == dep.md5:
            return f"MD5 of {counted(len(inside), 'file')} recomputed"
        if (dep.num_files or 0) > len(inside):
            raise unverifiable(
                f"it held {dep.num_files} files when the stage ran, and Git has {len(inside)}: the others were "
                "ignored, and nobody can say what they were"
            )
        raise altered(f"{dep.path} of the revision is not what the stage read")

    def _champion(self, dep: Out) -> str:
        found = self._folder(dep.path)
        for path in (PROFILE, WEIGHTS):
            pointed = self._pointed(path)
            if pointed is None:
                continue
            inside = str(Path(path).relative_to(_CHAMPION))
            if pointed.is_folder:
                self.ctx.store.verify_out(self.at, pointed)
                found |= {f"{inside}/{name}": md5 for name, md5 in self.ctx.store.listing(pointed.md5)}
            else:
                self.ctx.store.read(self.at, pointed)
                found[inside] = pointed.md5
        fits(lock.folder_md5(found), dep.md5, f"{dep.path} of the revision")
        return f"MD5 of {counted(len(found), 'file')} recomputed"

    def _pointed(self, path: str) -> Out | None:
        if f"{path}.dvc" not in self.blobs:
            return None
        return self.at.outs.get(path)

    def _window(self, dep: Out) -> str:
        """The window's own file is the user's: it may have made room for the next one."""
        sha256 = self.params["traffic"].get("sha256")
        for path in (self._cached(dep), self.ctx.clone.root / dep.path):
            if path is not None and path.is_file() and files.sha256(path) == sha256 and _md5(path) == dep.md5:
                return f"SHA-256 {sha256} recomputed"
        now = self.ctx.clone.root / dep.path
        where = f"{dep.path} holds another window by now" if now.is_file() else f"{dep.path} is not here any more"
        raise unverifiable(f"{where}; what was read of it was kept as {shelves.CONVERSATIONS}")

    def _cached(self, dep: Out) -> Path | None:
        path = self.ctx.clone.dvc_cache / "files/md5" / dep.md5[:2] / dep.md5[2:]
        return path if path.exists() else None

    def _input(self, dep: Out) -> str:
        raise unverifiable(f"{dep.path} came along with the run and is kept nowhere")

    # -- what the reports mean -----------------------------------------------------------------
    def meanings(self) -> None:
        """Link stages to what their outputs mean: conversations, examples, base model, weights."""
        if "traffic" in self.own:
            self._conversations()
        if "examples" in self.own:
            self._examples()
        if "policy" in self.own:
            self._base_model()
        if "train" in self.own:
            self._weights()
        if "gate" in self.own:
            self._decision()
        self._tools()

    def _stage(self, name: str) -> str:
        return f"stage:{self.record.name}/{name}"

    def report(self, kind: type[R]) -> R:
        """A report of the run, from verified bytes. Raises Broken."""
        path = str(shelves.path(kind))
        found = self._read(path)
        try:
            return reports.parse(kind, found, f"{path} of revision {self.at.commit[:SHORT]}")
        except ValueError as error:
            raise altered(f"{path} is not a whole {kind.__name__}: {error}") from None

    def _read(self, path: str) -> bytes:
        """Bytes of an output or of a file in an output folder, verified. Raises Broken."""
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

    def _conversations(self) -> None:
        key = self.graph.add("conversations", self.record.name, "conversations")

        def check() -> str:
            told = self.report(TrafficReport)
            count = _num_lines(self._read(str(shelves.CONVERSATIONS)))
            about = {"window": told.source, "first": told.first, "last": told.last}
            self.graph.add("conversations", self.record.name, counted(count, "conversation"), **about)
            fits(count, told.num_conversations, "the number of conversations")
            fits(told.sha256, self.params["traffic"].get("sha256") or told.sha256, "the window in the report")
            return f"{count} counted again, as the report says"

        self.graph.link(self._stage("traffic"), "holds", key, check)

    def _examples(self) -> None:
        key = self.graph.add("examples", self.record.name, "examples")

        def check() -> str:
            told = self.report(ExamplesReport)
            about = {split: f"{count}, SHA-256 {told.sha256[split]}" for split, count in told.counts.items()}
            self.graph.add("examples", self.record.name, source=told.source, **about)
            for split, sha256 in told.sha256.items():
                rows = self._read(str(shelves.examples_file(split)))  # type: ignore[arg-type]
                fits(hashlib.sha256(rows).hexdigest(), sha256, f"{split}.jsonl")
                fits(_num_lines(rows), told.counts.get(split), f"the number of {split} examples")
            words = " and ".join(f"{count} {split}" for split, count in told.counts.items())
            return f"SHA-256 of each split recomputed: {words}, from the {told.source}"

        self.graph.link(self._stage("examples"), "made", key, check)
        if self._source() == "window":
            says = "were rebuilt from"
            self.graph.link(key, says, f"conversations:{self.record.name}", lambda: "examples.source is window")

    def _source(self) -> str:
        try:
            return self.report(ExamplesReport).source
        except (Broken, RftError):
            return "unknown"

    def _base_model(self) -> None:
        state, told = None, None
        try:
            told = self.report(PolicyReport)
        except (Broken, RftError) as error:
            state = error
        name = told.sha256 if told else self.record.name
        shown = f"base model {told.model}" if told else "base model"
        key = self.graph.add("base model", name, shown)
        if told is not None:
            parameters = f"{told.num_parameters:,}"
            self.graph.add("base model", name, what=told.kind, sha256=told.sha256, parameters=parameters)

        def check() -> str:
            if told is None:
                assert state is not None
                raise state
            return self._base_bytes(told)

        self.graph.link(self._stage("policy"), "holds", key, check)

    def _base_bytes(self, told: PolicyReport) -> str:
        if told.kind == "served":
            raise unverifiable(f"{told.model} is served by an endpoint: nobody sees its weights")
        if told.kind == "embedded":
            policy = self.outs.get(str(shelves.folder("policy")))
            if policy is None:
                raise missing("the run left no data/policy")
            fits(self._tree_sha256(policy, "model/"), told.sha256, "its folder")
            return "SHA-256 of its folder recomputed"
        folder = self.ctx.clone.root / told.model
        if not folder.is_dir():
            if Path(told.model).is_absolute() or told.model in self.record.inputs:
                raise missing(f"{told.model} is not here: restore the folder that had SHA-256 {told.sha256}")
            raise unverifiable(f"{told.model} is no folder here: a model of the hub, whose revision is not pinned")
        fits(self.ctx.store.folder_sha256(folder), told.sha256, f"the folder {told.model}")
        return f"SHA-256 of the folder {told.model} recomputed"

    def _tree_sha256(self, out: Out, below: str = "") -> str:
        self.ctx.store.verify_out(self.at, out)
        digest = hashlib.sha256()
        for path, md5 in self.ctx.store.listing(out.md5):
            if path.startswith(below):
                name = path.removeprefix(below)
                digest.update(f"{name}\0".encode() + bytes.fromhex(self.ctx.store.sha256(md5)))
        return digest.hexdigest()

    def _weights(self) -> None:
        try:
            told = self.report(TrainReport)
        except (Broken, RftError):
            return  # the link to the report's bytes says it
        if not told.trained or told.sha256 is None:
            return
        key = self.graph.add(
            "weights", told.sha256, f"weights {told.sha256[:SHORT]}", what=told.weights, sha256=told.sha256,
            algorithm=told.algorithm, steps=str(told.steps),
        )  # fmt: skip

        def check() -> str:
            out = self.outs.get(told.path or "")
            if out is None:
                raise missing(f"the report names {told.path}, and dvc.lock has none")
            fits(self._tree_sha256(out), told.sha256, told.path or "")
            return "SHA-256 of the folder recomputed, as the report says"

        self.graph.link(self._stage("train"), "trained", key, check)

    def _decision(self) -> None:
        """The gate's decision names each report that it read by the hash of its canonical JSON."""
        for name, kind in _DECIDED_ON.items():
            path = str(shelves.path(kind))
            if path in self.outs:
                check = partial(self._decided_on, path, name)
                self.graph.link(self._stage("gate"), "decided on", self._bytes(self.outs[path]), check)

    def _decided_on(self, path: str, name: str) -> str:
        try:
            told = json.loads(self._read(path))
        except ValueError as error:
            raise altered(f"{path} is not JSON: {error}") from None
        told.pop("schema", None)  # as it was written: a later version may know more keys
        fits(files.digest(told), self.report(Decision).hashes.get(name), path)
        return "SHA-256 of its canonical JSON recomputed, as the decision names it"

    def _tools(self) -> None:
        users = [name for name in ("baseline", "prompt", "train", "challenger") if name in self.own]
        for name, address, version in _elsewhere(self.params.get("tools") or {}):
            key = self.graph.add("tools", name, name, address=address, declared_version=version)
            why = f"it runs elsewhere, and only declares its version: {version}" if version else "it runs elsewhere"
            for user in users:
                self.graph.link(self._stage(user), "called", key, _never(why))


def _elsewhere(tools: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """The tools that no recipe of the revision holds: name, address, declared version."""
    if address := tools.get("server_url"):
        yield "external tool server", str(address), tools.get("version")
    for each in tools.get("endpoints") or ():
        yield f"tool {each['name']}", str(each["server_url"]), None
    for each in tools.get("mcp") or ():
        yield f"MCP server {each['name']}", str(each.get("url") or " ".join(each.get("command") or ())), None


def _never(why: str) -> Callable[[], str]:
    def check() -> str:
        raise unverifiable(why)

    return check


def _num_lines(content: bytes) -> int:
    return content.count(b"\n") + bool(content and not content.endswith(b"\n"))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
