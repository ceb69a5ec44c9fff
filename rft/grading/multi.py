"""The grader with several parts: each part grades on its own, and a formula joins their scores.

    all have a score     the formula's value is the score, and the parts' scores are components
    one has no score     the whole has no score, for the same reason. Otherwise the outage of one
                         judge would count as the policy's fault
    one reports a hack   the whole is that hack
    one could not read   that part has its lowest score, and the formula decides. If no part could
    the answer           read it, the whole is an unjudgeable_answer: it has the lowest score,
                         whatever the formula says
    no value             the formula divides by zero or is not finite: the whole has no score
    the gate is shut     a part that `gate` names did not pass: the whole has the lowest score, and
                         the other parts are not asked. So style or a judge's praise pays only for
                         right work, and wrong work causes no costs for a judge

The parts run side by side. Avoid a division by zero: an answer that causes it has no score at all.
Write `max(x, 1e-9)` in a denominator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Self

from rft.config.formula import Undefined
from rft.config.graders import Multi
from rft.grading.judge import TokenUsage
from rft.grading.protocol import Grader
from rft.grading.within import within
from rft.scale import Scale
from rft.types import OUTCOME, Example, Grade, GradeStatus, RolloutContext, Scored, StopReason, Turn, Unscored
from rft.wire.contract import Malformed

FORMULA = "formula_parse_error"
WORST_FIRST = (
    GradeStatus.infra_error,
    GradeStatus.grader_timeout,
    GradeStatus.judge_error,
    GradeStatus.grader_bad_reply,
)
"""The order in which one reason is chosen if the parts have several. Failures that a pause may end
come first."""


class MultiGrader:
    """`async with MultiGrader(settings, {"exact": grader, ...}) as grader: ...` also opens and
    closes the parts."""

    def __init__(self, settings: Multi, parts: Mapping[str, AbstractAsyncContextManager[Grader]]) -> None:
        self._settings, self._unopened, self._formula = settings, parts, settings.formula
        self.scale: Scale = settings.scale
        self._parts: dict[str, Grader] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._parts = {key: await stack.enter_async_context(part) for key, part in self._unopened.items()}
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def usage(self) -> dict[str, TokenUsage]:
        found: dict[str, TokenUsage] = {}
        for part in self._parts.values():
            for model, tokens in getattr(part, "usage", {}).items():
                found[model] = found.get(model, TokenUsage()) + tokens
        return found

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Raises what a part raises."""

        async def graded(keys: Sequence[str]) -> dict[str, Grade]:
            parts = (self._parts[key].grade(example, turns, stop_reason, context) for key in keys)
            return dict(zip(keys, await asyncio.gather(*parts), strict=True))

        gates = self._settings.gate
        grades = await graded(gates)
        shut = [key for key, grade in grades.items() if not grade.solved]
        if not shut:
            grades |= await graded([key for key in self._parts if key not in gates])
        return self._joined(grades, shut)

    def _joined(self, grades: Mapping[str, Grade], shut: Sequence[str]) -> Grade:
        explanations = "; ".join(f"{key}: {grade.explanation}" for key, grade in grades.items() if grade.explanation)
        flags = tuple(dict.fromkeys(flag for grade in grades.values() for flag in grade.flags))
        evidence = tuple(f"{key}: {suspicion}" for key, grade in grades.items() for suspicion in grade.evidence)
        hacks = [key for key, grade in grades.items() if grade.status is GradeStatus.hack]
        if hacks:
            reason = f"{hacks[0]}: {grades[hacks[0]].explanation}"
            return Scored(self.scale.low, GradeStatus.hack, explanation=reason, flags=flags, evidence=evidence)
        scores: dict[str, float] = {}
        failed: dict[str, Unscored] = {}
        for key, grade in grades.items():
            if grade.score is None:
                failed[key] = grade
            else:
                scores[key] = grade.score
        if failed:
            status = min(failed.values(), key=lambda grade: WORST_FIRST.index(grade.status)).status
            explanations = "; ".join(f"{key}: {grade.explanation}" for key, grade in failed.items())
            return Unscored(status, explanations, flags, evidence)
        unread = all(grade.status is GradeStatus.unjudgeable_answer for grade in grades.values())
        status = GradeStatus.unjudgeable_answer if unread else GradeStatus.ok
        if self._settings.gate:
            scores[OUTCOME] = self.scale.low if shut else self.scale.high
        if shut or unread:
            explanation = "; ".join(filter(None, [f"did not pass {', '.join(shut)}" if shut else "", explanations]))
            return Scored(self.scale.low, status, False, scores, explanation, flags, evidence)
        try:
            score = within(self._formula.value(scores), self.scale, self._settings.declares_range)
        except (Undefined, Malformed) as error:
            problem = f"grader: {self._settings.name}: calculate_output gives {error} of {_listed(scores)}"
            return Unscored(GradeStatus.grader_bad_reply, problem, (*flags, FORMULA), evidence)
        return Scored(score, status, score >= self.scale.pass_threshold, scores, explanations, flags, evidence)


def _listed(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{key} = {score:g}" for key, score in scores.items())
