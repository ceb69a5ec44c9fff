"""What a budget may and may not do to a score."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.budget import reward
from rft.config import Budget
from rft.types import Grade, GradeStatus

scores = st.floats(-5, 5)
calls = st.integers(0, 50)
budgets = st.builds(Budget, tool_calls=st.integers(0, 20), weight=st.floats(0, 1), form=st.sampled_from(["multiplied", "added"]))


@pytest.mark.parametrize(
    ("form", "num_calls", "expected"),
    [
        ("multiplied", 0, 0.8),
        ("multiplied", 4, 0.8),
        ("multiplied", 5, 0.8 * 0.875),
        ("multiplied", 6, 0.8 * 0.75),
        ("multiplied", 8, 0.4),
        ("multiplied", 40, 0.4),
        ("added", 4, 0.8),
        ("added", 6, 0.55),
        ("added", 40, 0.3),
    ],
)
def test_by_hand(form: str, num_calls: int, expected: float):
    budget = Budget.model_validate({"tool_calls": 4, "weight": 0.5, "form": form})
    assert reward(Grade(0.8), num_calls, budget) == pytest.approx(expected)


def test_no_calls_allowed():
    budget = Budget(tool_calls=0, weight=0.5)
    assert [reward(Grade(1.0), n, budget) for n in range(3)] == [1.0, 0.5, 0.5]


def test_the_added_form_is_not_clamped():
    assert reward(Grade(0.0), 8, Budget(form="added")) == -0.5


@given(calls, budgets)
def test_unscored_stays_unscored(num_calls: int, budget: Budget):
    assert reward(Grade(None, GradeStatus.infra_error), num_calls, budget) is None


@given(scores, calls)
def test_without_a_budget_the_reward_is_the_score(score: float, num_calls: int):
    assert reward(Grade(score), num_calls, Budget(tool_calls=None)) == score


@given(scores, calls, budgets)
def test_a_budget_never_raises_the_score_and_is_free_inside(score: float, num_calls: int, budget: Budget):
    value = reward(Grade(score), num_calls, budget)
    assert value is not None
    assert math.isfinite(value)
    assert value <= score
    if budget.tool_calls is not None and num_calls <= budget.tool_calls:
        assert value == score


@given(scores, st.lists(calls, min_size=2, max_size=10), budgets)
def test_more_calls_never_earn_more(score: float, counts: list[int], budget: Budget):
    rewards = [reward(Grade(score), n, budget) for n in sorted(counts)]
    assert rewards == sorted(rewards, key=lambda value: -(value or 0.0))


@given(st.lists(calls, min_size=2, max_size=8), st.integers(0, 20), st.floats(0, 1))
def test_an_all_fail_group_has_nothing_to_learn_from(counts: list[int], allowed: int, weight: float):
    """The multiplied form: whatever was called, all rewards are 0, so all advantages are."""
    assert {reward(Grade(0.0), n, Budget(tool_calls=allowed, weight=weight)) for n in counts} == {0.0}


@given(st.floats(0, 1), st.floats(0, 1), calls, budgets)
def test_a_better_score_never_earns_less(a: float, b: float, num_calls: int, budget: Budget):
    low, high = sorted((a, b))
    one, other = reward(Grade(low), num_calls, budget), reward(Grade(high), num_calls, budget)
    assert one is not None
    assert other is not None
    assert one <= other
