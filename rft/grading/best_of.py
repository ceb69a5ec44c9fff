"""Grade the best of several candidates, and not the luckiest.

A rollout may end with several candidates: three kernels, five patches. It is worth as much as its
best candidate. But the highest of n noisy scores overrates the best candidate. With eight equally
good candidates, the highest score lies 1.4 standard deviations of the noise too high on average. A
candidate that was fitted to the inputs on which it is selected looks too good as well. So the best
is chosen on some inputs and graded on others:

    selection       each candidate is graded with seed `select`
    confirmation    the best of them (the first of equals) is graded again, with seed `confirm`.
                    Only this grade counts

`grade(candidate, seed)` draws its inputs from the seed. A recipe's grader calls `best_of` itself.
It passes a `grade` that checks a function, takes a timing, or measures something else.
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
    """The grades of all candidates, by which the best was chosen. None of them is the rollout's
    score."""
    grade: Grade
    """Its grade on the other inputs, or the reason why it has no score."""


async def best_of(
    candidates: Sequence[T], grade: Callable[[T, int], Awaitable[Grade]], select: int, confirm: int
) -> Best:
    """Choose the best candidate and confirm it. A candidate without a score cannot be compared:
    then none is chosen, and the grade says why. Raises ValueError without candidates, and for equal
    seeds."""
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
