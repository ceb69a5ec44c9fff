"""The fields of an export's `manifest.json`: which agent it is, and the SHA-256 of every file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rft import config
from rft.export.merge import Moved
from rft.reports import Report

Dtype = Literal["float32", "bfloat16", "float16"]


class Origin(Report):
    """Which agent it is. `version` is None for an agent that was never promoted."""

    model: str
    version: int | None
    run: str
    revision: str
    standing: str
    withdrawn: bool = False
    """Whether it was promoted and then rolled back."""

    @property
    def approved(self) -> bool:
        return self.version is not None and not self.withdrawn

    @property
    def served_name(self) -> str:
        return f"{self.model}-{self.run}" if self.version is None else f"{self.model}-{self.version}"


class Base(Report):
    """The base model. `path` is in the export. None: the model is only named."""

    kind: Literal["embedded", "warm_started", "given", "served"]
    name: str
    sha256: str
    path: str | None = None
    verified: bool = False


class Weights(Report):
    """The trained weights. `sha256` is the hash from the train report."""

    kind: Literal["lora", "full", "none"]
    sha256: str | None
    path: str | None
    rank: int | None = None
    dtype: Dtype | None = None
    moved: Moved | None = None


class File(Report):
    sha256: str
    num_bytes: int


class Manifest(Report):
    origin: Origin
    approved: bool
    base: Base
    weights: Weights
    prompt_sha256: str
    tool_format: str | None
    """None for a chat endpoint, which writes and reads its tool calls itself."""
    max_tokens: int | None
    openings_compared: int
    not_compared: str | None = None
    """Why no recorded opening was compared, if none was."""
    template_problems: list[str]
    """Where the template renders a whole dialogue to other text than a rollout held."""
    files: dict[str, File] = {}
    serve: config.Serve = Field(default=config.Serve(), exclude_if=lambda serve: serve.is_single)
    """How an answer is made from rollouts. The gate judged such answers."""
