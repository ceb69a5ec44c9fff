"""The grader that asks a judge for a number.

The judge is told `input`, with the templates filled in, and asked for its steps and a number. A
number beyond `range` is clipped to it, as published. What is no number is no verdict: the published
grader makes it 0, which here would be a statement about the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from rft import config
from rft.config.graders import ScoreModel
from rft.config.templates import Missing
from rft.grading.judge import Judge, TokenUsage
from rft.grading.seen import scope_of, without
from rft.scale import Scale, from_to
from rft.types import Example, Grade, RolloutContext, Scored, StopReason, Turn, Unscored
from rft.wire.contract import Malformed


class ScoreJudge:
    """The grader of a `score_model`: open it with `async with`."""

    def __init__(self, settings: ScoreModel, section: config.Tools) -> None:
        """Raises ConfigError without a judge's address."""
        self._settings = settings
        self.scale: Scale = settings.scale
        low_to_high = f"a number, {from_to(self.scale.ends)}"
        self._judge = Judge(settings, section, {"type": "number", "description": low_to_high}, _number)

    async def __aenter__(self) -> Self:
        await self._judge.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._judge.__aexit__(*exc)

    @property
    def usage(self) -> dict[str, TokenUsage]:
        return {self._settings.model: self._judge.usage}

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Raises what stops the stage: a refused key, an unknown model."""
        try:
            verdict = await self._judge.verdict(scope_of(turns, stop_reason, context), context)
        except Missing as missing:
            return without(self._settings, missing)
        found = verdict.result
        if isinstance(found, Unscored):
            return Unscored(found.status, found.explanation, found.flags, verdict.evidence)
        score = min(max(found, self.scale.low), self.scale.high)
        words = verdict.words if score == found else f"clipped from {found:g}. {verdict.words}"
        return Scored(score, solved=score >= self.scale.pass_threshold, explanation=words, evidence=verdict.evidence)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"the judge's result is {value!r:.80}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Malformed("the judge's result is not finite")
    return number
