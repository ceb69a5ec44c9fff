"""The stages of a run, from its dvc.lock: what each read, ran and wrote, all of it hashed again.

dvc.lock names by MD5 every file that a stage read. If another stage wrote the file, both must name
the same hash. Code and recipe must be those of the revision, and the settings those of its
params.yaml. The champion must be that of the version that the run began with. `meanings` says what
outputs mean.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from rft import files, needs, stage_files
from rft.formatting import counted
from tasks.audit import engine, lock, meanings, traffic
from tasks.audit.graph import altered, fits, unverifiable
from tasks.audit.lock import Declared, Stage
from tasks.audit.recorded import Recorded
from tasks.runs.artifacts import PROFILE, WEIGHTS, WINDOW, Out

_CHAMPION = str(stage_files.folder("champion"))


def link(source: str, run: Recorded) -> None:
    """Link a revision to its stages, and each stage to what it read, what it wrote and what that
    means."""
    num_bytes = sum(out.size for out in run.outs.values())
    run.ctx.report_line(f"[audit] run {run.record.name}: {len(run.stages)} stages, {num_bytes / 1e6:,.1f} MB to hash")
    found = _Stages(run.ctx, run.at, run.record, run.params, run.stages)
    for name, stage in run.stages.items():
        found.stage(source, name, stage)
    meanings.link(run)


class _Stages(Recorded):
    def stage(self, source: str, name: str, stage: Stage) -> None:
        run, how = self.record.name, self.record.stages.get(name)
        key = self.graph.add("stage", f"{run}/{name}", f"stage {name}", how=how, run=run)
        self.graph.link(source, "ran", key, lambda: self._as_declared(name, stage))
        code = self.graph.add("code", f"files/{self.at.commit}/{name}", f"code of stage {name}")
        self.graph.link(key, "ran the code", code, lambda: self._code(stage))
        settings = self.graph.add("parameters", self.at.commit, "params.yaml", sha256=files.digest(self.params))
        self.graph.link(key, "had the settings", settings, lambda: self._settings(stage))
        self._inputs(key, stage)
        for out in stage.outs:
            target = self.add_bytes(out)
            self.graph.link(key, "wrote", target, lambda out=out: self.ctx.store.verify_out(self.at, out))

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
        return lock.declared(self.ctx.store.file(self.at.commit, self.at.from_the_top("dvc.yaml")) or b"", self.params)

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
        told = f"MD5 of {counted(len(code), 'file')} recomputed"
        if needs.PINS not in {dep.path for dep in code}:  # at first dvc.lock named each module
            return told
        return f"{told}, {engine.verify(self, stage.name)}"

    def _is_code(self, dep: Out) -> bool:
        special = (_CHAMPION, self.params["recipe"]["path"], self.params["traffic"]["file"])
        return dep.path not in self.outs and dep.path not in special and dep.path not in self.record.inputs

    def _git_md5(self, dep: Out) -> str | None:
        if dep.path in self.blobs:
            return self.ctx.store.blob_md5(self.blobs[dep.path])
        inside = self.folder(dep.path)
        return lock.folder_md5(inside) if inside else None

    def _inputs(self, key: str, stage: Stage) -> None:
        for dep in stage.deps:
            if dep.path in self.outs:
                target = self.add_bytes(self.outs[dep.path])
                self.graph.link(key, "read", target, lambda dep=dep: self._as_written(dep))
            elif dep.path == self.params["recipe"]["path"]:
                target = self.graph.add("recipe", f"{self.at.commit}/{dep.path}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._recipe(dep))
            elif dep.path == _CHAMPION:
                target = self.graph.add("bytes", f"{self.record.name}/{dep.path}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._champion(dep))
            elif dep.path in (str(stage_files.SNAPSHOT), self.params["traffic"]["file"]):
                target = self.graph.add("window", dep.md5, dep.path, md5=dep.md5, size=str(dep.size))
                self.graph.link(key, "read", target, lambda dep=dep: self._window(dep))
                if dep.path == str(stage_files.SNAPSHOT):
                    named = self.params["traffic"]["file"]
                    log = self.graph.add("window", f"log/{self.params['traffic'].get('sha256')}", named)
                    self.graph.link(key, "was given", log, self._log)
            elif dep.path in self.record.inputs:
                target = self.graph.add("bytes", f"input/{dep.md5}", dep.path, md5=dep.md5)
                self.graph.link(key, "read", target, lambda dep=dep: self._input(dep))

    def _as_written(self, dep: Out) -> str:
        fits(dep.md5, self.outs[dep.path].md5, f"what it read of {dep.path}")
        return f"MD5 {dep.md5}, as it was written"

    def _recipe(self, dep: Out) -> str:
        inside = self.folder(dep.path)
        if lock.folder_md5(inside) == dep.md5:
            return f"MD5 of {counted(len(inside), 'file')} recomputed"
        if (dep.num_files or 0) > len(inside):
            raise unverifiable(
                f"it held {dep.num_files} files when the stage ran, and Git has {len(inside)}: Git ignored the "
                "others, so nobody can say what they were"
            )
        raise altered(f"{dep.path} of the revision is not what the stage read")

    def _champion(self, dep: Out) -> str:
        found = self.folder(dep.path)
        for path in (PROFILE, WINDOW, WEIGHTS):
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
        """Check that what the run read is what it kept."""
        kept = self.outs.get(str(stage_files.CONVERSATIONS))
        if kept is None:
            raise unverifiable(f"the run kept nothing of what it read of {dep.path}")
        fits(dep.md5, kept.md5, f"what it read of {dep.path}")
        return f"MD5 {dep.md5}, as it was kept in {kept.path}"

    def _log(self) -> str:
        """Check the log behind a snapshot. It is the user's: files may be gone or hold other
        rows."""
        manifest = traffic.manifest(self.ctx, self)
        if manifest is None:
            raise unverifiable("the run kept no snapshot of it")
        for source in manifest.sources:
            path = self.ctx.clone.root / self.record.folder / source.name
            if not path.is_file():
                raise unverifiable(f"{source.name} is not here any more; what was read of it was kept")
            if files.sha256(path) != source.sha256:
                raise unverifiable(f"{source.name} holds another log by now; what was read of it was kept")
        return f"SHA-256 of {counted(len(manifest.sources), 'file')} recomputed"

    def _input(self, dep: Out) -> str:
        raise unverifiable(f"{dep.path} was brought into the run's worktree, and is kept nowhere")
