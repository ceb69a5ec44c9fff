"""The model report: the bytes of the given base model, as they were when the run began."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rft.reports.base import Report

ModelKind = Literal["embedded", "served", "folder", "gguf", "hub"]


class ModelFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    num_bytes: int


class Model(Report):
    """`data/model/model.json`, written by the flow. The copy in Git says that no model is given, so
    the policy is the embedded one."""

    kind: ModelKind = "embedded"
    """served: behind a chat endpoint, which shows nobody its bytes."""
    model: str | None = None
    """As `policy.model` names it: a folder, a GGUF file or a hub id."""
    revision: str | None = None
    """The commit of a model from the hub."""
    sha256: str | None = None
    """Hash of revision and files. The place is left out: a model that was moved stays the same."""
    files: dict[str, ModelFile] = {}
    """By their names in the folder."""
    chat_template: str | None = None
    """SHA-256 of `chat_template.jinja` beside this file, a copy of `policy.chat_template`."""


def sha256_of(files: dict[str, ModelFile], revision: str | None) -> str:
    """Hash names and content of all files as `rft.files.tree_sha256` does, and the revision if
    there is one. For a single GGUF file, return that file's hash."""
    if revision is None and len(files) == 1 and (name := next(iter(files))).endswith(".gguf"):
        return files[name].sha256
    whole = hashlib.sha256(f"{revision}\0".encode() if revision else b"")
    for name in sorted(files, key=lambda name: name.split("/")):  # as paths are sorted
        whole.update(f"{name}\0".encode() + bytes.fromhex(files[name].sha256))
    return whole.hexdigest()
