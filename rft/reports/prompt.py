"""The prompt report: the candidates of the search, and its winner."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rft.reports.base import Report
from rft.types import Metric


class PromptSettings(Report):
    """An instruction and the settings around it: a candidate of the search, or what is served.

    `tool_defaults` fills in arguments that the policy left out, e.g. {"search": {"k": 3}}.
    `max_turns` may lower rollout.max_turns, never raise it.
    """

    name: str
    system: str
    tool_defaults: dict[str, dict[str, Any]] = {}
    block_repeated_calls: bool = False
    max_turns: int | None = Field(default=None, ge=1)
    """None: rollout.max_turns."""


class Candidate(Report):
    settings: PromptSettings
    parent: str | None
    search: Metric  # mean reward on the search part of validation
    gain: Metric | None = None  # paired with the seed prompt, same part
    round: int = 0
    eliminated: bool = False


class PromptReport(Report):
    winner: PromptSettings
    found: bool
    reason: str
    candidates: list[Candidate]
    confirmation: Metric | None = None  # paired gain on the confirmation part
    num_rollouts: int
