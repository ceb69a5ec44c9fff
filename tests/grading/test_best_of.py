"""The best of several candidates: chosen on some inputs, graded on others."""

from __future__ import annotations

import asyncio
import random
from statistics import fmean

import pytest

from rft.grading.best_of import Best, best_of
from rft.types import Grade, GradeStatus, Scored, Unscored


def test_the_best_is_chosen_by_one_seed_and_graded_by_another():
    asked: list[tuple[str, int]] = []

    async def grade(candidate: str, seed: int) -> Grade:
        asked.append((candidate, seed))
        return Scored({"slow": 0.2, "fast": 0.9, "faster": 0.9}[candidate] - 0.1 * (seed == 2))

    found = asyncio.run(best_of(["slow", "fast", "faster"], grade, select=1, confirm=2))
    assert found == Best(1, (Scored(0.2), Scored(0.9), Scored(0.9)), Scored(0.8))
    assert asked == [("slow", 1), ("fast", 1), ("faster", 1), ("fast", 2)]


def test_a_candidate_fitted_to_the_inputs_of_selection_gains_nothing():
    async def grade(candidate: str, seed: int) -> Grade:
        return Scored(1.0 if candidate == "honest" or seed == 1 else 0.0)

    found = asyncio.run(best_of(["hard-coded", "honest"], grade, select=1, confirm=2))
    assert (found.index, found.grade.score) == (0, 0.0)


def test_luck_is_not_paid():
    """Eight candidates that are equally good, 0.5, with noise of 0.2: the highest score of each
    eight is 0.28 too high, the confirmed one is right."""

    async def noisy(candidate: int, seed: int) -> Grade:
        return Scored(random.Random(f"{candidate} {seed}").gauss(0.5, 0.2))

    async def play() -> list[Best]:
        return [await best_of(range(8 * n, 8 * n + 8), noisy, select=1, confirm=2) for n in range(1000)]

    found = asyncio.run(play())
    confirmed = fmean(best.grade.score or 0.0 for best in found)
    highest = fmean(max(grade.score or 0.0 for grade in best.selected) for best in found)
    assert confirmed == pytest.approx(0.5, abs=0.025)  # four standard errors
    assert highest == pytest.approx(0.5 + 1.424 * 0.2, abs=0.025)  # the mean of the highest of eight normals


def test_without_a_score_nothing_is_chosen():
    async def grade(candidate: str, seed: int) -> Grade:
        return Unscored(GradeStatus.infra_error, "down") if candidate == "b" else Scored(1.0)

    found = asyncio.run(best_of(["a", "b"], grade, select=1, confirm=2))
    assert found.grade == Unscored(GradeStatus.infra_error, "down")


def test_what_is_refused():
    async def grade(candidate: str, seed: int) -> Grade:
        return Scored(1.0)

    with pytest.raises(ValueError, match="at least one"):
        asyncio.run(best_of([], grade, select=1, confirm=2))
    with pytest.raises(ValueError, match="confirmed by its own luck"):
        asyncio.run(best_of(["a"], grade, select=1, confirm=1))
