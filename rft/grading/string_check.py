"""The grader that compares two strings, and gives 1 or 0.

    eq, ne    equal, or not equal, letter by letter; nothing is trimmed
    like      input contains reference
    ilike     the same, but upper and lower case are equal (case folding): STRASSE contains straße

Every text contains an empty reference, so with `like` a row without an answer would always pass. An
empty reference therefore gives no score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rft.config.graders import StringCheck
from rft.config.templates import Missing, Template
from rft.grading.seen import passed, scope_of, without
from rft.scale import Scale
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, Turn, Unscored
from rft.wire.contract import clip

OPERATIONS: dict[str, Callable[[str, str], bool]] = {
    "eq": lambda text, reference: text == reference,
    "ne": lambda text, reference: text != reference,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}
_CONTAINS = ("like", "ilike")


class StringChecker:
    """The grader of a `string_check`."""

    def __init__(self, settings: StringCheck) -> None:
        self._settings = settings
        self.scale: Scale = settings.scale
        self._input, self._reference = Template.read(settings.input), Template.read(settings.reference)

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        scope = scope_of(turns, stop_reason, context)
        try:
            text, reference = self._input.render(scope), self._reference.render(scope)
        except Missing as missing:
            return without(self._settings, missing)
        operation = self._settings.operation
        if operation in _CONTAINS and not reference:
            why = f"grader: {self._settings.name}: the reference is empty, and every text contains that"
            return Unscored(GradeStatus.grader_bad_reply, why, flags=("other_error",))
        holds = OPERATIONS[operation](text, reference)
        comparison = f"{operation}: {_shown(text)} and {_shown(reference)}"
        return passed(self._settings, float(holds), comparison if holds else f"not {comparison}")


def _shown(text: str) -> str:
    return repr(clip(text.encode("utf-8", "replace"), 80))
