"""The interface by which the loop, the stages and the replay know a grader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rft.scale import Scale
from rft.types import Example, Grade, RolloutContext, StopReason, Turn


class Grader(Protocol):
    """Judges a finished rollout."""

    @property
    def scale(self) -> Scale:
        """The range of its scores."""
        ...

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Return a score, or the reason why there is no score. Raises only what stops the stage."""
        ...
