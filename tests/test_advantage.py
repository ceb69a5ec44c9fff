"""Advantages against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.advantage import advantages

REWARD = st.one_of(st.none(), st.floats(0, 1))


def test_dr_grpo_subtracts_the_mean():
    assert advantages([1.0, 0.0, 0.5, 0.5], "dr_grpo").tolist() == [0.5, -0.5, 0.0, 0.0]


def test_grpo_divides_by_the_deviation_of_the_group():
    assert advantages([1.0, 0.0], "grpo").tolist() == pytest.approx([0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4)])


def test_the_unscored_are_outside_the_mean():
    values = advantages([1.0, None, 0.0], "dr_grpo")
    assert values[0] == 0.5
    assert values[2] == -0.5
    assert math.isnan(values[1])


@pytest.mark.parametrize("rewards", [[0.3] * 4, [0.1 + 0.2, 0.3, 0.3], [1.0], [None, 1.0], [None, None]])
def test_no_variance_is_no_advantage(rewards: list):
    for algorithm in ("dr_grpo", "grpo"):
        values = advantages(rewards, algorithm)
        assert all(value == 0 for value, reward in zip(values, rewards, strict=True) if reward is not None)


@given(st.lists(REWARD, min_size=1, max_size=12), st.sampled_from(["dr_grpo", "grpo"]))
def test_they_sum_to_nothing_and_keep_the_order(rewards: list, algorithm):
    values = advantages(rewards, algorithm)
    scored = [(reward, value) for reward, value in zip(rewards, values, strict=True) if reward is not None]
    assert abs(sum(value for _, value in scored)) < 1e-6
    assert all((a[1] <= b[1]) or np.isclose(a[1], b[1]) for a in scored for b in scored if a[0] <= b[0])
