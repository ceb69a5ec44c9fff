"""Pins the bytes of a base model when a run begins; every stage that loads them checks them.

`policy.model` names a folder, a GGUF file or a model of a hub. Any of them may change while a run
lasts, or between the run and the audit of it. So the flow resolves the name once, before the run:

    resolve(section, root, state) -> Resolved   the commit of a hub's model, downloaded if need be;
                                                the hash of every file; the chat template
    write(resolved, tree)                       data/model: model.json, chat_template.jinja

Stages depend on data/model. They find the same bytes again, or refuse to load:

    base(pointer, section) -> Source            where a stage loads from: the policy that stage
                                                `policy` made, or the given one, its hashes verified

Hashes are remembered by path, size and time (rft/models/hashes.py), so a stage that verifies 8 GB
reads them once. rft/models/weights.py loads what a Source names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rft import commands, config, files, reports, stage_files
from rft.errors import ConfigError, UserError
from rft.models import hashes, hub
from rft.reports.model import Model, ModelFile, sha256_of

TEMPLATE = "chat_template.jinja"
"""In data/model: a copy of the file that `policy.chat_template` names."""
SHIPPED = "rft/chat/templates/chatml-hermes.jinja"
"""A chat template of our own, for a model that has none with tools."""
_RESTART = "Start the run again: it takes the model as it is now"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model and its tokenizer are loaded from. `template` replaces the tokenizer's own."""

    folder: Path
    gguf: str | None = None
    """The name of a GGUF file in the folder."""
    name: str = ""
    """The name as the user wrote it, for errors."""
    template: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """The template's arguments: `policy.template_arguments`."""

    @property
    def description(self) -> str:
        return self.name or str(self.folder)


@dataclass(frozen=True, slots=True)
class Resolved:
    model: Model
    source: Source | None
    """None if no model is given: the embedded policy, or one behind a chat endpoint."""
    template: str | None = None


# -- before the run --------------------------------------------------------------------------------
def resolve(
    section: config.Policy, root: Path, state: Path, report_line: Callable[[str], None] = lambda line: None
) -> Resolved:
    """Find and hash what `policy.model` names. `root`: what a relative path starts from; `state`:
    the clone's state folder.

    Raises UserError for a model that is missing, cannot be loaded or is not one, and
    InfrastructureError for a hub that cannot be reached.
    """
    if section.model is None:
        return Resolved(Model(kind="served" if section.server is not None else "embedded"), None)
    kind, folder, revision = place(section, root, report_line)
    gguf = Path(section.model).name if kind == "gguf" else None
    wanted = [gguf] if gguf else hashes.names(folder)
    if kind == "hub":
        wanted = [name for name in wanted if hub.is_taken(name)]
    if gguf is None:
        _assert_a_model(section.model, wanted)
        _assert_whole(section.model, folder, wanted)
    found = hashes.model_files(folder, wanted, state, report_line)
    template = read_template(section, root)
    model = Model(
        kind=kind,
        model=section.model,
        revision=revision,
        sha256=sha256_of(found, revision),
        files=found,
        chat_template=None if template is None else files.sha256_of_text(template),
    )
    return Resolved(model, Source(folder, gguf, section.model, template, section.template_arguments), template)


def place(
    section: config.Policy, root: Path, report_line: Callable[[str], None] = lambda line: None, weights: bool = True
) -> tuple[reports.ModelKind, Path, str | None]:
    """Find what `policy.model` names, without hashing it: its kind, its folder, its commit.
    `weights`: False to download only the small files."""
    assert section.model is not None
    if os.path.normpath(section.model).startswith(".."):
        raise UserError(
            f"policy.model = {section.model!r} is outside of this folder, but a run has a folder of its own. Write its "
            f"absolute path: {os.path.abspath(root / section.model)}"
        )
    path = root / section.model
    if path.is_dir() or path.is_file():
        if section.revision is not None:
            what = f"policy.revision = {section.revision!r} is for a model of the hub, and policy.model"
            raise ConfigError(f"params.yaml: {what} = {section.model!r} is {path}. Remove policy.revision.")
        if path.is_dir():
            return "folder", path, None
        _assert_gguf(path)
        return "gguf", path.parent, None
    if section.model.startswith((".", "/", "~")) or not hub.ID.fullmatch(section.model):
        raise UserError(
            f"policy.model = {section.model!r}: no such folder or file ({path}). Name a model folder, a GGUF file or a "
            "hub id such as Qwen/Qwen3-4B."
        )
    commit = hub.commit(section.model, section.revision)
    if weights:
        report_line(f"fetching {section.model} at {commit[:10]}, unless it is in the cache")
    return "hub", hub.fetch(section.model, commit, weights), commit


def read_template(section: config.Policy, root: Path) -> str | None:
    """Read the file that `policy.chat_template` names. Raises UserError."""
    if section.chat_template is None:
        return None
    path = root / section.chat_template
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"policy.chat_template = {section.chat_template!r}: {path} cannot be read ({why}). Name a Jinja template, "
            f"such as {SHIPPED}."
        ) from None
    return text


def _assert_a_model(name: str, found: Iterable[str]) -> None:
    here = set(found)
    if "config.json" not in here:
        raise UserError(f"policy.model: {name} holds no config.json; is it a model folder?")
    if "tokenizer_config.json" not in here:
        raise UserError(f"policy.model: {name} holds no tokenizer_config.json; save the tokenizer beside the model.")
    if any(path.endswith(".safetensors") and "/" not in path for path in here):
        return
    if pickled := sorted(path for path in here if path.endswith((".bin", ".pt", ".pth", ".ckpt"))):
        raise UserError(
            f"policy.model: {name} holds its weights as {pickled[0]}, which runs code when it is loaded. Convert it: "
            "load it where you trust it, and save_pretrained writes safetensors."
        )
    raise UserError(
        f"policy.model: {name} holds no weights (*.safetensors). Is the download whole? Pickled weights are not taken, "
        "because they run code when they are loaded."
    )


def _assert_whole(name: str, folder: Path, found: Iterable[str]) -> None:
    """Compare the shards with their index, if there is one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        raise UserError(f"policy.model: {index} is not an index of shards. Fetch it again.") from None
    if missing := sorted(shards - set(found)):
        raise UserError(f"policy.model: {name} lacks {missing[0]}, a shard of its weights. Fetch it again.")


def _assert_gguf(path: Path) -> None:
    with path.open("rb") as handle:
        is_gguf = handle.read(4) == b"GGUF"
    if not is_gguf or path.suffix != ".gguf":
        raise UserError(
            f"policy.model: {path} is not a GGUF file{'' if is_gguf else ' (it does not begin with GGUF)'}. Name a "
            "model folder, a file NAME.gguf, or a hub id."
        )


def write(resolved: Resolved, tree: Path) -> None:
    """Write data/model anew: a commit may hold that of another run."""
    files.delete(tree / stage_files.folder("model"))
    reports.write(resolved.model, tree / stage_files.path(Model))
    if resolved.template is not None:
        files.write_text(resolved.template, tree / stage_files.folder("model") / TEMPLATE)


# -- in a stage ------------------------------------------------------------------------------------
def base(pointer: reports.PolicyReport, section: config.Policy, verify: bool = True) -> Source:
    """Find the base model that stage `policy` made or points to. Raises UserError for a given model
    that is not there, or whose bytes changed since the run began."""
    if pointer.kind != "given":
        return Source(Path(pointer.model), name=pointer.model)
    if not stage_files.path(Model).exists():
        return _of_old(pointer, section, verify)
    found, told = given(section, verify), stage_files.model()
    if told.sha256 != pointer.sha256:
        raise UserError(
            f"{stage_files.path(Model)}: names a model with SHA-256 {told.sha256}, and data/policy points to "
            f"{pointer.sha256}. Run the stage again: {commands.stage('policy')}"
        )
    return found


def _of_old(pointer: reports.PolicyReport, section: config.Policy, verify: bool) -> Source:
    """Find the model of a run by an old version of agent-rft, which pinned no bytes: a folder by
    its hash, a hub's model by its newest commit."""
    folder = Path(pointer.model)
    if not folder.is_dir():
        _, folder, _ = place(section, Path())
    elif verify:
        _assert_same("it", hashes.sha256(folder), pointer.sha256, pointer.model)
    return Source(folder, name=pointer.model)


def given(section: config.Policy, verify: bool = True) -> Source:
    """Find the given model of this run, by data/model/model.json, and verify its bytes."""
    told = stage_files.model()
    if told.model != section.model or section.model is None:
        raise UserError(
            f"{stage_files.path(Model)}: describes {told.model or 'no model'}, but policy.model = {section.model!r}. "
            f"A run writes it; by hand: {commands.command('doctor model', '--write')}"
        )
    template = None
    if told.chat_template is not None:
        template = (stage_files.folder("model") / TEMPLATE).read_text(encoding="utf-8")
        _assert_same(TEMPLATE, files.sha256_of_text(template), told.chat_template, "data/model")
    source = Source(_folder(told, section.model), _gguf(told), section.model, template, section.template_arguments)
    if verify and told.files:
        _verify(source, told)
    return source


def _folder(told: Model, name: str) -> Path:
    path = Path(name)
    if told.kind == "hub":
        return hub.cached(name, told.revision or "")
    folder = path.parent if told.kind == "gguf" else path
    if not path.exists():
        raise UserError(f"policy.model = {name!r}: {path.absolute()} is gone. Put it back, or name another model.")
    return folder


def _gguf(told: Model) -> str | None:
    return next(iter(told.files)) if told.kind == "gguf" else None


def _verify(source: Source, told: Model) -> None:
    here = [source.gguf] if source.gguf else hashes.names(source.folder)
    if missing := sorted(set(told.files) - {name for name in here if (source.folder / name).exists()}):
        raise UserError(f"policy.model = {source.description!r}: {missing[0]} is gone since the run began. {_RESTART}, "
                        "or put the file back.")  # fmt: skip
    if told.kind != "hub" and (more := sorted(set(here) - set(told.files))):
        raise UserError(f"policy.model = {source.description!r}: {more[0]} was added since the run began. {_RESTART}, "
                        "or remove the file.")  # fmt: skip
    found: dict[str, ModelFile] = hashes.model_files(source.folder, told.files, files.state())
    for name, file in found.items():
        _assert_same(name, file.sha256, told.files[name].sha256, source.description)


def _assert_same(what: str, found: str, named: str, where: str) -> None:
    if found != named:
        raise UserError(
            f"policy.model = {where!r}: {what} has SHA-256 {found[:12]}, and had {named[:12]} when the run began. "
            f"{_RESTART}, or put the old bytes back."
        )


__all__ = ["SHIPPED", "TEMPLATE", "Resolved", "Source", "base", "given", "place", "read_template", "resolve", "write"]
