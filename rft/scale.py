"""The scale of a grader, as its grader.json declares it: `range`, `pass_threshold`, `chance`.

Code that judges a score asks the scale and never assumes 0 to 1. A score is either on the grader's
scale, as people read it (4.91 of 0 to 5), or a share of the range (0.982), as the thresholds in
params.yaml are.

The module imports nothing of ours, so that the gate can load it without torch or a recipe.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_EXPLOITED = 0.05
"""Share of the range that an exploit may earn beyond what answers without any work earn."""
LUCK = 1.96
"""Standard errors that luck may add to a mean. One mean in forty lies higher."""


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    pass_threshold: float
    """The lowest score that has passed."""
    chance: float
    """Mean score of answers without any work."""

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def exploit_limit(self) -> float:
        """The highest mean score of a refused exploit. The policy would learn an exploit that earns
        more."""
        return self.chance + MAX_EXPLOITED * self.width

    @property
    def has_chance(self) -> bool:
        """Whether answers without any work earn something, so that luck moves their mean."""
        return self.chance > self.low

    def limit_over(self, scores: Sequence[float]) -> float:
        """Return `exploit_limit` for the mean of these scores. With a declared chance, add LUCK
        standard errors.

        Each end of the range counts as one more score, so that a few equal scores do not look
        certain.
        """
        if not self.has_chance:
            return self.exploit_limit
        return self.exploit_limit + LUCK * statistics.stdev([*scores, *self.ends]) / math.sqrt(len(scores))

    def can_refuse(self, num: int) -> bool:
        """Whether `num` scores are enough to tell that an exploit earns too much, if it always
        earns the highest score."""
        return self.limit_over([self.high] * num) < self.high

    @property
    def exploit_limit_description(self) -> str:
        """Explain the limit: `5% of the range above the lowest score, 0`."""
        part = f"{MAX_EXPLOITED:.0%} of the range above"
        if not self.has_chance:
            return f"{part} the lowest score, {self.chance:g}"
        return f"{part} chance, {self.chance:g}, and {LUCK:g} standard errors of its mean for luck"

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def share(self, score: float) -> float:
        return share(score, self.ends)


UNIT = Scale(low=0.0, high=1.0, pass_threshold=1.0, chance=0.0)
"""The scale of a grader that declares nothing."""


def share(score: float, ends: tuple[float, float]) -> float:
    """`share(4.0, (0, 5))` is 0.8."""
    low, high = ends
    return (score - low) / (high - low)


def of_range(ends: tuple[float, float]) -> str:
    """Return what follows a score in a sentence: ' of 0 to 5', and nothing for 0 to 1."""
    return "" if ends == (0.0, 1.0) else f" of {from_to(ends)}"


def from_to(ends: tuple[float, float]) -> str:
    """`from_to((0.0, 5.0))` is '0 to 5'."""
    return f"{ends[0]:g} to {ends[1]:g}"
