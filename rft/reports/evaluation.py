"""Measurements of policies on a set of examples: the baseline, and the challenger's three arms."""

from __future__ import annotations

from collections.abc import Sized
from typing import Literal

from pydantic import Field

from rft import config
from rft.reports.base import Report
from rft.types import Metric

Counted = Literal["tool_calls", "tokens", "turns", "context_tokens", "cached_tokens", "unreadable_calls"]


def _is_empty(values: Sized) -> bool:
    return not len(values)


class Row(Report):
    """All rollouts of one example in one arm.

    Each list has one item per rollout. None is unscored: such a rollout has no outcome, and its
    calls, tokens and stop reason are recorded but not counted. `tokens` are sampled tokens. Context
    and cached tokens (rft.types.Usage) are None where the policy did not count them.

    `turns` and the lists after it are empty in reports of 0.1.0, and are left out when these are
    written again. `abstained` is left out where no grade tells, and None where the example has no
    answer.
    """

    example_id: str
    slice: str
    rewards: list[float | None]
    scores: list[float | None]
    solved: list[bool | None]
    tool_calls: list[int]
    tokens: list[int]
    stop_reasons: list[str]
    hacks: int = 0
    turns: list[int] = Field(default=[], exclude_if=_is_empty)
    context_tokens: list[int | None] = Field(default=[], exclude_if=_is_empty)
    cached_tokens: list[int | None] = Field(default=[], exclude_if=_is_empty)
    unreadable_calls: list[int | None] = Field(default=[], exclude_if=_is_empty)
    abstained: list[bool | None] = Field(default=[], exclude_if=_is_empty)

    def counts(self, what: Counted) -> list[float | None]:
        """Return the count of each rollout. None: the count is not on record, or the rollout is
        unscored, because an outage may have cut it short."""
        found: list[int | None] = getattr(self, what) or [None] * len(self.scores)
        counted = zip(self.scores, found, strict=True)
        return [None if score is None or count is None else float(count) for score, count in counted]


class Evaluation(Report):
    """One policy with one prompt on one set of examples. Numbers count scored rollouts, unless
    their name says unscored."""

    name: str
    temperature: float
    k: int
    examples_sha256: str
    metrics: dict[str, Metric]
    max_at_k: list[tuple[int, float]]
    shares: dict[str, float]  # always_failed, always_solved, mixed
    stop_reasons: dict[str, int]
    tool_calls: dict[str, int]  # histogram: number of calls (as text) -> rollouts
    unscored: int
    unscored_stop_reasons: dict[str, int] = {}
    rows: list[Row]
    range: tuple[float, float] = (0.0, 1.0)  # of the grader: scores and rewards are on this scale


class BaselineReport(Report):
    readiness: Literal["not worth it", "not yet", "ready", "suspect"]
    """suspect: the setup looks wrong, so the numbers say nothing about the agent."""
    reason: str
    sampled: Evaluation
    greedy: Evaluation


class Arm(Report):
    """One candidate, or the champion, measured. `sampled` is what would be served.

    With `serve`, several rollouts make one answer. Its outcome is that of the chosen rollout, and
    its cost is the sum over all of them.
    """

    name: Literal["champion", "champion_new_prompt", "challenger"]
    prompt_sha256: str
    weights_sha256: str
    sampled: Evaluation
    greedy: Evaluation
    serve: config.Serve = Field(default=config.Serve(), exclude_if=lambda serve: serve.is_single)
    unserved: dict[str, Metric] = Field(default={}, exclude_if=_is_empty)
    """Means over all rollouts, as if each were an answer. Empty where each is an answer."""


class HackSource(Report):
    """Whether this grader sees a hack, as the preflight found. A declaration alone does not prove
    it."""

    declared: bool = False  # grader.json: reports_hacks
    flagged: list[str] = []  # the recipe's exploits that the grader called a hack
    tried: int = 0  # the recipe's exploits that were played

    @property
    def is_measured(self) -> bool:
        """Whether a rate of 0 means anything."""
        return self.declared and bool(self.flagged)

    @property
    def description(self) -> str:
        """Say how that is known; or why it is not known, and what to do."""
        if not self.declared:
            return (
                "grader.json does not declare that the grader reports hacks. Let it answer hack: REASON where the "
                'rollout shows one, and declare "reports_hacks": true'
            )
        if not self.tried:
            return "none of the recipe's exploits could be played. Add one to exploits.jsonl that the grader flags"
        if not self.flagged:
            return (
                f"grader.json declares reports_hacks, and the grader flagged none of the {self.tried} exploits that "
                "were played. Let it answer hack: REASON to those that are one, or add one that it sees to "
                "exploits.jsonl"
            )
        return f"the grader flagged {len(self.flagged)} of the {self.tried} exploits that were played"


class ChallengerReport(Report):
    test_sha256: str
    arms: list[Arm]
    hack_source: HackSource = HackSource()
