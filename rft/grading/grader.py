"""From a finished rollout to a grade: a score, or the word that there is none.

A score that cannot be trusted is not a zero: zero is a statement about the policy, and training on
it teaches that an outage is the policy's fault. So every verdict is one of three things: a finite
number (`ok`), something else (`grader_error`, unscored), or no reply after the retries
(`infra_error`, unscored).

`Grader` is all that the loop, the stages and the replay know of a grader. `grader_of` makes the one
that grader.json asks for, so a new kind is a module of its own (as rft/grading/endpoint.py is) and
a line there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from rft import config, recipe
from rft.grading.endpoint import EndpointGrader
from rft.scale import Scale
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, Turn
from rft.wire.client import ToolEndpoint


class Grader(Protocol):
    """Judges a finished rollout. All that the loop, the stages and the replay know of a grader,
    whatever its kind."""

    @property
    def scale(self) -> Scale:
        """The range of its scores."""
        ...

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Gives a score, or the reason why there is none. Raises only what stops the stage."""
        ...


def grader_of(
    settings: recipe.Grader, server: ToolEndpoint, section: config.Tools
) -> AbstractAsyncContextManager[Grader]:
    """Make the grader of a grader.json; it grades once it is entered. `server` is the tools'
    server, where the grader may live.

    Raises ConfigError for an address or a header that cannot be used.
    """
    return EndpointGrader(settings, server, section)


@dataclass(frozen=True, slots=True)
class Ungraded:
    """In the place of a grader, for a rollout that nobody judges."""

    scale: Scale

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        return Grade(None, GradeStatus.grader_error, explanation="nobody judged it")
