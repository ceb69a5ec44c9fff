"""The graders that ask a judge: for a number (`score_model`), or for a label (`label_model`).

The judge gets `input` with its templates filled in. A number beyond `range` is clipped to it, as
the published contract says. A label gives 1 if it is one of `passing_labels`, else 0. In the
published contract a label_model is a part of a multi, and on one platform it may also stand alone;
here both are allowed. A result that is not a number, or not one of the labels, is not a verdict.
The published grader gives it 0, which here would be a statement about the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from rft import config
from rft.config.graders import LabelModel, ScoreModel
from rft.config.templates import Missing
from rft.grading.judge import Judge, TokenUsage
from rft.grading.seen import scope_of, without
from rft.scale import Scale, from_to
from rft.types import Example, Grade, RolloutContext, Scored, StopReason, Turn, Unscored
from rft.wire.contract import Malformed


class ModelGrader:
    """The grader of a `score_model` or a `label_model`. Open it with `async with`."""

    def __init__(self, settings: ScoreModel | LabelModel, section: config.Tools) -> None:
        """Raises ConfigError without a judge's address."""
        self._settings = settings
        self.scale: Scale = settings.scale
        if isinstance(settings, ScoreModel):
            schema = {"type": "number", "description": f"a number, {from_to(self.scale.ends)}"}
            self._judge = Judge(settings, section, schema, _number)
        else:
            self._judge = Judge(settings, section, {"type": "string", "enum": settings.labels}, self._label)

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
        """Raises only what stops the stage: a refused key, an unknown model."""
        try:
            verdict = await self._judge.verdict(scope_of(turns, stop_reason, context), context)
        except Missing as missing:
            return without(self._settings, missing)
        found = verdict.result
        if isinstance(found, Unscored):
            return Unscored(found.status, found.explanation, found.flags, verdict.evidence)
        if isinstance(self._settings, LabelModel):
            score = float(found in self._settings.passing_labels)
            explanation = f"{found}: {verdict.explanation}" if verdict.explanation else str(found)
        else:
            score = min(max(float(found), self.scale.low), self.scale.high)
            explanation = verdict.explanation if score == found else f"clipped from {found:g}. {verdict.explanation}"
        return Scored(
            score, solved=score >= self.scale.pass_threshold, explanation=explanation, evidence=verdict.evidence
        )

    def _label(self, value: Any) -> str:
        assert isinstance(self._settings, LabelModel)
        if value not in self._settings.labels:
            raise Malformed(f"the judge's label is {value!r:.80}, expected one of {', '.join(self._settings.labels)}")
        return value


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
