"""The scale that a grader scores on, as its grader.json declares it: `range`, `pass_threshold`,
`chance`.

Whoever judges a score asks the scale and never assumes 0 to 1. There are two ways to speak of a
score: on its own scale, as people read it (4.91 of 0 to 5), and as a share of the range (0.982), as
thresholds in params.yaml are written.

Stands alone, so that the gate can load it without torch or a recipe.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_EXPLOITED = 0.05
"""Share of the range that an exploit may earn beyond what answers without any work earn."""
LUCK = 1.96
"""Standard errors that luck may add to a mean: beyond them on the high side lies one mean in
forty."""


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    pass_threshold: float
    """A score from here on has passed."""
    chance: float
    """The mean score of answers without any work."""

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def exploit_limit(self) -> float:
        """An exploit with a higher mean score is accepted by the grader, and the policy would learn
        it."""
        return self.chance + MAX_EXPLOITED * self.width

    @property
    def has_chance(self) -> bool:
        """Whether answers without any work earn something, now more and now less: luck then moves a
        mean of them."""
        return self.chance > self.low

    def limit_over(self, scores: Sequence[float]) -> float:
        """`exploit_limit` for a mean of these: beyond a declared chance, LUCK standard errors more.

        The ends of the range count among the scores once each, so that a few equal ones are not
        taken for certainty.
        """
        if not self.has_chance:
            return self.exploit_limit
        return self.exploit_limit + LUCK * statistics.stdev([*scores, *self.ends]) / math.sqrt(len(scores))

    def can_refuse(self, num: int) -> bool:
        """Whether an exploit that always earns the highest score lies above its limit: a mean of a
        few says nothing beyond luck."""
        return self.limit_over([self.high] * num) < self.high

    @property
    def exploit_limit_in_words(self) -> str:
        """Where that number comes from: `5% of the range above the lowest score, 0`."""
        if not self.has_chance:
            return f"{MAX_EXPLOITED:.0%} of the range above the lowest score, {self.chance:g}"
        return (
            f"{MAX_EXPLOITED:.0%} of the range above chance, {self.chance:g}, and {LUCK:g} standard errors of its "
            "mean for luck"
        )

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def share(self, score: float) -> float:
        return share(score, self.ends)


UNIT = Scale(low=0.0, high=1.0, pass_threshold=1.0, chance=0.0)
"""What holds for a grader that declares nothing."""


def share(score: float, ends: tuple[float, float]) -> float:
    """`share(4.0, (0, 5))` is 0.8."""
    low, high = ends
    return (score - low) / (high - low)


def of_range(ends: tuple[float, float]) -> str:
    """What follows a score in a sentence: ' of 0 to 5', and nothing for 0 to 1, which needs no
    word."""
    return "" if ends == (0.0, 1.0) else f" of {from_to(ends)}"


def from_to(ends: tuple[float, float]) -> str:
    """`from_to((0.0, 5.0))` is '0 to 5'."""
    return f"{ends[0]:g} to {ends[1]:g}"
