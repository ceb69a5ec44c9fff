"""The grader that asks a judge to choose a label: 1 if it is one of `passing_labels`, else 0.

The published contract has it inside a multi, and one platform also alone; here it may stand in both
places. A label that is not in `labels` is no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rft import config
from rft.config.graders import LabelModel
from rft.config.templates import Missing
from rft.grading.judge import Judge, TokenUsage
from rft.grading.seen import scope_of, without
from rft.scale import Scale
from rft.types import Example, Grade, RolloutContext, Scored, StopReason, Turn, Unscored
from rft.wire.contract import Malformed


class LabelJudge:
    """The grader of a `label_model`: open it with `async with`."""

    def __init__(self, settings: LabelModel, section: config.Tools) -> None:
        """Raises ConfigError without a judge's address."""
        self._settings = settings
        self.scale: Scale = settings.scale
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
        """Raises what stops the stage: a refused key, an unknown model."""
        try:
            verdict = await self._judge.verdict(scope_of(turns, stop_reason, context), context)
        except Missing as missing:
            return without(self._settings, missing)
        label = verdict.result
        if isinstance(label, Unscored):
            return Unscored(label.status, label.explanation, label.flags, verdict.evidence)
        score = float(label in self._settings.passing_labels)
        words = f"{label}: {verdict.words}" if verdict.words else label
        return Scored(score, solved=score >= self.scale.pass_threshold, explanation=words, evidence=verdict.evidence)

    def _label(self, value: Any) -> str:
        if value not in self._settings.labels:
            raise Malformed(f"the judge's label is {value!r:.80}, expected one of {', '.join(self._settings.labels)}")
        return value
