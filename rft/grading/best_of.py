"""Grade the best of several candidates, and not the luckiest.

A rollout may end with several candidates: three kernels, five patches. Its worth is that of the
best. But who takes the highest of n noisy scores for the score of the best overrates it: of eight
candidates that are equally good, with noise of one standard deviation, the highest lies 1.4 of them
too high. And a candidate that was fitted to the inputs on which it is selected looks better than it
is. So the best is chosen on some inputs and graded on others:

    selection       each candidate is graded with seed `select`
    confirmation    the best of them, the first of equals, is graded with seed `confirm`; that is
                    its grade

`grade(candidate, seed)` draws its inputs from the seed. A recipe's grader calls `best_of` itself,
around rft/grading's check of a function, a timing or whatever it measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rft.types import Grade, Unscored

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Best:
    """The candidate that was chosen: `Best(2, selected, confirmed)`."""

    index: int
    selected: tuple[Grade, ...]
    """The grades of all candidates, by which one was chosen. Never a score of the rollout."""
    grade: Grade
    """Its grade on other inputs, or why there is none."""


async def best_of(
    candidates: Sequence[T], grade: Callable[[T, int], Awaitable[Grade]], select: int, confirm: int
) -> Best:
    """Choose the best candidate and confirm it. One that has no score cannot be compared, so then
    nothing is chosen, and the grade says why. Raises ValueError without candidates, and for one
    seed given twice."""
    if not candidates:
        raise ValueError("best_of needs at least one candidate")
    if select == confirm:
        raise ValueError(f"select and confirm are both {select}: the best would be confirmed by its own luck")
    selected = tuple(await asyncio.gather(*(grade(candidate, select) for candidate in candidates)))
    scores: list[float] = []
    for number, found in enumerate(selected):
        if isinstance(found, Unscored):
            return Best(number, selected, found)
        scores.append(found.score)
    index = scores.index(max(scores))
    return Best(index, selected, await grade(candidates[index], confirm))
