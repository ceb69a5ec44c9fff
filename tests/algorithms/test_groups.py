"""Advantages against numbers worked by hand, and what may not be learned from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import algorithms, config
from rft.algorithms import Algorithm
from rft.config.train import ALGORITHMS

GROUPED = [name for name in ALGORITHMS if name not in ("reinforce_pp", "ppo", "supervised")]
REWARD = st.one_of(st.none(), st.floats(0, 1))


def algorithm(name: str) -> Algorithm:
    source = {"source": "rollouts"} if name == "supervised" else {}
    return algorithms.from_params(config.Train.model_validate({"algorithm": name} | source))


def one(name: str, rewards_G: list) -> list[float]:
    (advantages,) = algorithm(name).advantages([rewards_G])
    return advantages.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr_grpo", [0.5, -0.5, 0.0, 0.0]),
        ("grpo", [0.5 / (math.sqrt(1 / 6) + 1e-4), -0.5 / (math.sqrt(1 / 6) + 1e-4), 0.0, 0.0]),
        ("rloo", [1 - 1 / 3, -2 / 3, 0.0, 0.0]),
        ("reinforce_pp", [0.5 / (math.sqrt(1 / 6) + 1e-4), -0.5 / (math.sqrt(1 / 6) + 1e-4), 0.0, 0.0]),
        ("dpo", [1.0, -1.0, 0.0, 0.0]),
        ("best_of_n", [1.0, 0.0, 0.0, 0.0]),
        ("supervised", [1.0, 0.0, 0.0, 0.0]),
        ("ppo", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_each_algorithm_on_one_group(name: str, expected: list[float]):
    assert one(name, [1.0, 0.0, 0.5, 0.5]) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_the_algorithms_after_grpo_kept_its_advantage(name: str):
    assert one(name, [0.1, 0.9, 0.4]) == one("grpo", [0.1, 0.9, 0.4])


def test_reinforce_pp_looks_at_the_whole_batch():
    left, right = algorithm("reinforce_pp").advantages([[1.0, 1.0], [0.0, None]])
    values = [2 / 3 - 1 / 3, 2 / 3 - 1 / 3, -2 / 3]
    std = math.sqrt(sum(value**2 for value in values) / 2) + 1e-4
    assert left.tolist() == pytest.approx([values[0] / std] * 2)
    assert right[0] == pytest.approx(values[2] / std)
    assert math.isnan(right[1])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("unscored", [None, math.nan])
def test_the_unscored_are_outside(name: str, unscored: float | None):
    """In no mean: the others' advantages are those of a group without it."""
    values = one(name, [1.0, unscored, 0.0])
    assert math.isnan(values[1])
    assert [values[0], values[2]] == one(name, [1.0, 0.0])


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    "rewards", [[0.3] * 4, [0.1 + 0.2, 0.3, 0.3], [1.0], [None, 1.0], [None, None], [], [0.0, 0.0, None]]
)
def test_what_says_nothing_is_no_advantage(name: str, rewards: list):
    """All equal, up to float noise; fewer than two scored."""
    values = one(name, rewards)
    assert len(values) == len(rewards)
    assert all(
        math.isnan(value) if reward is None else value == 0 for value, reward in zip(values, rewards, strict=True)
    )


def test_supervised_imitates_one_of_equals_too():
    """Whether it passed is the collector's question."""
    equals, _, _ = algorithm("supervised").advantages([[0.5, 0.5], [None], []])
    assert equals.tolist() == [1.0, 0.0]
    assert one("supervised", [None, 0.25, None])[1] == 1.0


def test_reinforce_pp_learns_nothing_from_a_batch_of_equals():
    assert [group.tolist() for group in algorithm("reinforce_pp").advantages([[0.5, 0.5], [0.5]])] == [
        [0.0, 0.0],
        [0.0],
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_empty_batch_has_no_advantages(name: str):
    assert algorithm(name).advantages([]) == []


def test_an_infinite_reward_is_refused():
    with pytest.raises(ValueError, match="infinite"):
        one("dr_grpo", [1.0, math.inf])


@given(st.lists(st.lists(REWARD, min_size=1, max_size=8), min_size=1, max_size=4), st.sampled_from(ALGORITHMS))
def test_shape_and_order_are_kept(rewards_PG: list[list[float | None]], name: str):
    """One number a rollout; NaN exactly for the unscored; within a group who scored better is never
    below."""
    advantages_PG = algorithm(name).advantages(rewards_PG)
    assert [len(group) for group in advantages_PG] == [len(group) for group in rewards_PG]
    for rewards_G, advantages_G in zip(rewards_PG, advantages_PG, strict=True):
        assert np.isnan(advantages_G).tolist() == [reward is None for reward in rewards_G]
        scored = [
            (reward, value)
            for reward, value in zip(rewards_G, advantages_G.tolist(), strict=True)
            if reward is not None
        ]
        if name not in ("best_of_n", "supervised", "dpo"):
            assert all(a[1] <= b[1] + 1e-12 for a in scored for b in scored if a[0] <= b[0])


@given(st.lists(REWARD, min_size=1, max_size=12), st.sampled_from(["dr_grpo", "grpo", "rloo", "dpo"]))
def test_a_group_adds_up_to_nothing(rewards_G: list[float | None], name: str):
    assert abs(np.nansum(one(name, rewards_G))) < 1e-6


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_the_best_and_the_worst_are_those(rewards_G: list[float]):
    pair, best = one("dpo", rewards_G), one("best_of_n", rewards_G)
    if any(pair):
        assert rewards_G[pair.index(1.0)] == max(rewards_G)
        assert rewards_G[pair.index(-1.0)] == min(rewards_G)
        assert best == [max(0.0, value) for value in pair]
        assert sorted(set(pair)) in ([-1.0, 1.0], [-1.0, 0.0, 1.0])
    else:
        assert np.ptp(rewards_G) < 1e-9
