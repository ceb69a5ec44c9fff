"""Grade an answer that says "I don't know" before its grader sees it.

                      abstains             answers
    has an answer     `pays`               as the grader says
    has no answer     the highest score    the lowest score

The row says whether it has an answer. If it has one, the grade's component `abstained` is 1 for an
abstention and 0 for any other answer. The gate compares the mean of this component between
candidate and champion (gate.max_abstention_increase). A text that only begins like an abstention is
an answer: "I don't know, but perhaps Paris" goes to the grader.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Self

from rft.config.abstention import plain
from rft.config.graders import Grader
from rft.config.templates import Missing, Scope, Template
from rft.grading import protocol
from rft.grading.seen import scope_of, without
from rft.scale import Scale
from rft.types import ABSTAINED, Example, Grade, GradeStatus, RolloutContext, Scored, StopReason, Turn, Unscored


class Abstaining:
    """`async with Abstaining(settings, grader) as grader: ...` also opens and closes the grader
    inside."""

    def __init__(self, settings: Grader, inner: AbstractAsyncContextManager[protocol.Grader]) -> None:
        assert settings.abstention is not None
        self._settings, self._unopened = settings, inner
        self.scale: Scale = settings.scale
        self._says = {plain(text) for text in settings.abstention.says}
        self._pays = settings.abstention.pays
        self._answer = Template.read(settings.abstention.answer)
        asked = settings.abstention.unanswerable
        self._unanswerable = None if asked is None else Template.read(asked)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.inner = await stack.enter_async_context(self._unopened)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Raises what the grader inside raises."""
        scope = scope_of(turns, stop_reason, context)
        try:
            asked = None if self._unanswerable is None else self._unanswerable.render(scope)
        except Missing as missing:
            return without(self._settings, missing)
        if asked not in (None, "true", "false"):
            problem = f"abstention.unanswerable is {asked!r:.80} in this row, expected true or false"
            return Unscored(GradeStatus.grader_bad_reply, f"grader: {self._settings.name}: {problem}", ("other_error",))
        abstains, low, high = self._abstains(scope), self.scale.low, self.scale.high
        if asked == "true":
            if abstains:
                return Scored(high, solved=True, explanation="abstained, and there is no answer")
            return Scored(low, explanation="answered, and there is no answer")
        if abstains:
            return Scored(self._pays, components={ABSTAINED: 1.0}, explanation="abstained, and there is an answer")
        grade = await self.inner.grade(example, turns, stop_reason, context)
        return replace(grade, components={**grade.components, ABSTAINED: 0.0}) if isinstance(grade, Scored) else grade

    def _abstains(self, scope: Scope) -> bool:
        try:
            return plain(self._answer.render(scope)) in self._says
        except Missing:  # the answer has no such field: its grader judges that
            return False
