"""The champion: what is served now."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rft import config
from rft.reports.base import Report, added
from rft.reports.prompt import PromptSettings


class Champion(Report):
    """`data/champion/champion.json`, written by the flow."""

    version: int = 0  # the entry of its promotion in the ledger; 0: nothing was promoted yet
    run: str | None = None
    prompt: PromptSettings | None = None
    weights: Literal["lora", "full", "none"] = "none"
    weights_path: str | None = None  # folder inside data/champion
    weights_sha256: str | None = None
    base_sha256: str | None = None  # of the base model that the weights were trained on
    profile_path: str | None = None  # profile of the examples that made its weights, inside data/champion
    profile_sha256: str | None = added(None)
    """SHA-256 of the profile's bytes. None where version 0.1.0 wrote this file, which lacks it."""
    window_path: str | None = added(None)  # profile of the traffic that its run saw, inside data/champion
    window_sha256: str | None = added(None)
    serve: config.Serve = Field(default=config.Serve(), exclude_if=lambda serve: serve.is_single)
    """How its answers are made: the same way as when it was judged."""
