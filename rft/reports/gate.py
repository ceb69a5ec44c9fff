"""The gate's checks, its decision, and what it asks a person to approve. rft/reports/wording.py
writes them in words."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report
from rft.reports.prompt import PromptSettings

OF_RANGE = " of the range"


class Check(Report):
    """One named condition on an interval or a fact. With `decides` False it is only shown."""

    name: str
    kind: Literal["superiority", "non_inferiority", "state"]
    passed: bool | None  # None: the interval spans the margin
    value: float | None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    detectable: float | None = None  # smallest true effect that this many examples tell from the margin at 80 % power
    n: int = 0  # examples behind the interval
    unit: str = ""
    """reward or score (either may end in OF_RANGE: a share of it), calls, share, or relative (0.1:
    ten percent more)."""
    decides: bool = True
    detail: str = ""

    @property
    def is_better_above(self) -> bool:
        """Whether a value above the margin passes."""
        return self.unit.removesuffix(OF_RANGE) in ("reward", "score")


class Decision(Report):
    decision: Literal["promote", "reject", "inconclusive"]
    reason: str
    candidate: Literal["champion_new_prompt", "challenger", "none"]
    checks: list[Check]
    hashes: dict[str, str]


class PromotionRequest(Report):
    """What an approver signs, all by hash. For a prompt alone `weights` is none: the champion's
    stay."""

    candidate: str
    prompt: PromptSettings
    weights: Literal["lora", "full", "none"]
    weights_path: str | None
    weights_sha256: str | None
    decision_sha256: str
    test_sha256: str
