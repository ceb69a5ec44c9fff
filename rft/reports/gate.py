"""The gate's checks, its decision, and what it asks a person to approve.

rft/reports/wording.py writes them in words.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rft import config
from rft.reports.base import Report
from rft.reports.prompt import PromptSettings

OF_RANGE = " of the range"
POOLED = "small slices"
"""The check on all slices that are too small to be judged alone."""


def _is_none(value: object) -> bool:
    """Leave out a field that earlier versions did not have. Otherwise the digest would change by
    which an earlier approval names its decision."""
    return value is None


class Check(Report):
    """One named condition on an interval or a fact. If `decides` is False, it is only shown."""

    name: str
    kind: Literal["superiority", "non_inferiority", "veto", "state"]
    """veto: fails if a loss beyond the margin is shown. An open one does not block."""
    passed: bool | None  # None: the interval spans the margin
    value: float | None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    detectable: float | None = None  # smallest true effect that this many examples tell from the margin at 80 % power
    n: int = 0  # examples behind the interval
    unit: str = ""
    """reward or score (either may end in OF_RANGE: a share of it), calls, turns, share, points (a
    difference of shares), or relative (0.1: ten percent more)."""
    decides: bool = True
    detail: str = ""
    level: float | None = Field(default=None, exclude_if=_is_none)
    """One-sided level of each end of the interval. None: there is no interval, or an earlier
    version wrote it, which always had 2.5 %."""
    needed_for_veto: int | None = Field(default=None, exclude_if=_is_none)
    """How many examples a veto needs to reject a loss of twice its margin in 80 % of cases. None:
    no number is enough."""

    @property
    def is_better_above(self) -> bool:
        """Whether a value above the margin passes."""
        return self.unit.removesuffix(OF_RANGE) in ("reward", "score")

    @property
    def is_unsettled(self) -> bool:
        """Whether it blocks a promotion although it did not fail. A veto does so only where nothing
        was measured."""
        return self.decides and self.passed is None and (self.kind != "veto" or self.value is None)

    @property
    def is_unprotected(self) -> bool:
        """Whether a veto had too few examples to show a loss of twice its margin."""
        if self.kind != "veto" or self.passed is not None or self.value is None:
            return False
        return self.needed_for_veto is None or self.n < self.needed_for_veto

    @property
    def confidence(self) -> float:
        return 1 - 2 * (0.025 if self.level is None else self.level)


class Decision(Report):
    decision: Literal["promote", "reject", "inconclusive"]
    reason: str
    candidate: Literal["champion_new_prompt", "challenger", "none"]
    checks: list[Check]
    hashes: dict[str, str]
    more_examples: int | None = Field(default=None, exclude_if=_is_none)
    """How many more test examples would probably settle an inconclusive decision. None: it is
    decided, no realistic number would settle it, or an earlier version wrote it."""


class PromotionRequest(Report):
    """What an approver signs, all by hash. For a prompt alone, `weights` is none: the champion
    keeps its weights."""

    candidate: str
    prompt: PromptSettings
    weights: Literal["lora", "full", "none"]
    weights_path: str | None
    weights_sha256: str | None
    decision_sha256: str
    test_sha256: str
    serve: config.Serve = Field(default=config.Serve(), exclude_if=lambda serve: serve.is_single)
    """How its answers are made. It was judged this way, and an approval covers this too."""
