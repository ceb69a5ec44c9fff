"""What the outputs of stages mean: conversations, examples, a base model, weights, a decision.

The reports name hashes of the bytes that they describe; here the two are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rft import files, reports, stage_files
from rft.errors import RftError
from rft.formatting import counted
from rft.models import hub
from rft.reports import Decision, ExamplesReport, Model, PolicyReport, TrafficReport, TrainReport
from rft.reports.model import sha256_of
from tasks.audit import traffic
from tasks.audit.graph import SHORT, Broken, altered, fits, missing, unverifiable
from tasks.audit.recorded import Recorded

_DECIDED_ON: dict[str, type[reports.Report]] = {
    "drift": reports.DriftReport,
    "baseline": reports.BaselineReport,
    "prompt_report": reports.PromptReport,
    "train": TrainReport,
    "challenger": reports.ChallengerReport,
}
"""The decision's name for a report -> the report's kind."""


def link(run: Recorded) -> None:
    """Link a run's stages to what their outputs mean."""
    _Meanings(run.ctx, run.at, run.record, run.params, run.stages).link()


class _Meanings(Recorded):
    def link(self) -> None:
        if "traffic" in self.stages:
            self._conversations()
        if "examples" in self.stages:
            self._examples()
        if "policy" in self.stages:
            self._base_model()
        if "train" in self.stages:
            self._weights()
        if "gate" in self.stages:
            self._decision()
        self._tools()

    def _conversations(self) -> None:
        key = self.graph.add("conversations", self.record.name, "conversations")

        def check() -> str:
            told = self.report(TrafficReport)
            count = len(traffic.ids(self.ctx, self))
            about = {"window": told.source, "first": told.first, "last": told.last}
            self.graph.add("conversations", self.record.name, counted(count, "conversation"), **about)
            fits(count, told.num_conversations, "the number of conversations")
            fits(told.sha256, self.params["traffic"].get("sha256") or told.sha256, "the window in the report")
            if (manifest := traffic.manifest(self.ctx, self)) is not None:
                fits(manifest.sha256, told.sha256, "the window in the snapshot's manifest")
            return f"{count} counted again, as the report says"

        self.graph.link(self.stage_id("traffic"), "holds", key, check)

    def _examples(self) -> None:
        key = self.graph.add("examples", self.record.name, "examples")

        def check() -> str:
            told = self.report(ExamplesReport)
            about = {split: f"{count}, SHA-256 {told.sha256[split]}" for split, count in told.counts.items()}
            self.graph.add("examples", self.record.name, source=told.source, **about)
            for split, sha256 in told.sha256.items():
                rows = self.read(str(stage_files.examples_file(split)))  # type: ignore[arg-type]
                fits(hashlib.sha256(rows).hexdigest(), sha256, f"{split}.jsonl")
                fits(_num_lines(rows), told.counts.get(split), f"the number of {split} examples")
            sizes = " and ".join(f"{count} {split}" for split, count in told.counts.items())
            return f"SHA-256 of each split recomputed: {sizes}, from the {told.source}"

        self.graph.link(self.stage_id("examples"), "made", key, check)
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
            if told.base:
                made_of = self.graph.add("base model", told.base_sha256, f"base model {told.base}")
                self.graph.link(key, "was warm-started from", made_of, lambda: self._given_bytes(told))

        def check() -> str:
            if told is None:
                assert state is not None
                raise state
            return self._base_bytes(told)

        self.graph.link(self.stage_id("policy"), "holds", key, check)

    def _base_bytes(self, told: PolicyReport) -> str:
        if told.kind == "served":
            raise unverifiable(f"an endpoint serves {told.model}: nobody sees its weights")
        if told.is_made_here:
            policy = self.outs.get(str(stage_files.folder("policy")))
            if policy is None:
                raise missing("the run left no data/policy")
            fits(self.tree_sha256(policy, "model/"), told.sha256, "its folder")
            return "SHA-256 of its folder recomputed"
        return self._given_bytes(told)

    def _given_bytes(self, told: PolicyReport) -> str:
        """Check the model that was given: the base model itself, or the one it was made of."""
        model, sha256 = (told.base, told.base_sha256) if told.base else (told.model, told.sha256)
        place = self.ctx.clone.root / self.record.folder / model
        if told.revision is not None:
            return self._of_the_hub(model, told.revision, sha256)
        if not place.exists():
            if Path(model).is_absolute() or model in self.record.inputs:
                raise missing(f"{model} is not here: restore the model with SHA-256 {sha256}")
            raise unverifiable(f"{model} is not a folder here: a model of the hub, whose revision is not pinned")
        fits(self.ctx.store.model_sha256(place), sha256, f"the model {model}")
        return f"SHA-256 of {model} recomputed"

    def _of_the_hub(self, model: str, revision: str, sha256: str) -> str:
        """Check the commit's files in this machine's cache, by the names that the run recorded."""
        named = self.report(Model)
        fits(sha256_of(named.files, revision), sha256, "the hashes in model.json")
        folder = hub.find(model, revision)
        if folder is None:
            raise missing(f"commit {revision[:10]} of {model} is not in the hub's cache of this machine (HF_HOME)")
        for name, file in named.files.items():
            if not (folder / name).exists():
                raise missing(f"{name} of {model} at {revision[:10]} is not in the hub's cache of this machine")
            fits(files.sha256(folder / name), file.sha256, f"{name} of {model}")
        return f"SHA-256 of {counted(len(named.files), 'file')} of {model} at {revision[:10]} recomputed"

    def _weights(self) -> None:
        try:
            told = self.report(TrainReport)
        except (Broken, RftError):
            return  # the link to the report's bytes says what is wrong
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
            fits(self.tree_sha256(out), told.sha256, told.path or "")
            return "SHA-256 of the folder recomputed, as the report says"

        self.graph.link(self.stage_id("train"), "trained", key, check)

    def _decision(self) -> None:
        """Link the gate to the reports that it read. Its decision names each by the hash of the
        report's canonical JSON."""
        for name, kind in _DECIDED_ON.items():
            path = str(stage_files.path(kind))
            if path in self.outs:
                check = partial(self._decided_on, path, name)
                self.graph.link(self.stage_id("gate"), "decided on", self.add_bytes(self.outs[path]), check)

    def _decided_on(self, path: str, name: str) -> str:
        try:
            told = json.loads(self.read(path))
        except ValueError as error:
            raise altered(f"{path} is not JSON: {error}") from None
        told.pop("schema", None)  # no parsing into our model: a later version may know more keys
        fits(files.digest(told), self.report(Decision).hashes.get(name), path)
        return "SHA-256 of its canonical JSON recomputed, as the decision names it"

    def _tools(self) -> None:
        users = [name for name in ("baseline", "prompt", "train", "challenger") if name in self.stages]
        for name, address, version in _elsewhere(self.params.get("tools") or {}):
            key = self.graph.add("tools", name, name, address=address, declared_version=version)
            why = f"it runs elsewhere, and only declares its version: {version}" if version else "it runs elsewhere"
            for user in users:
                self.graph.link(self.stage_id(user), "called", key, _never(why))


def _elsewhere(tools: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Yield the tools that no recipe of the revision holds: name, address, declared version."""
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
