"""Losses against the formulas written out token by token in plain Python, their gradients, and that
shares of microbatches add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import algorithms, config
from rft.algorithms import Tokens, Totals, dapo
from rft.algorithms.ppo import gae
from rft.config.train import ALGORITHMS, Overlong
from rft.errors import ConfigError
from rft.types import GradeStatus, Scored, StopReason, Trajectory, Turn, Unscored

RATIO = ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo")
BOUNDS = dict.fromkeys(RATIO, (0.8, 1.2)) | {
    "dapo": (0.8, 1.28),
    "gspo": (1 - 3e-4, 1 + 4e-4),
    "cispo": (-math.inf, 5.0),
}


@dataclass(frozen=True)
class Rollout:
    """One list entry an own token."""

    advantage: float
    now: list[float]
    old: list[float]
    sampled: list[float]
    reference: list[float]
    values: list[float]
    old_values: list[float]
    returns: list[float]


def section(name: str, **train: Any) -> config.Train:
    source = {"source": "rollouts"} if name == "supervised" else {}
    return config.Train.model_validate({"algorithm": name} | source | train)


def flat(rollouts: Sequence[Rollout], of: Callable[[Rollout], list[float]]) -> torch.Tensor:
    return torch.tensor([value for one in rollouts for value in of(one)], dtype=torch.float64)


def microbatch(rollouts: Sequence[Rollout]) -> Tokens:
    return Tokens(
        logprobs_N=flat(rollouts, lambda one: one.now).requires_grad_(),
        old_logprobs_N=flat(rollouts, lambda one: one.old),
        sampled_logprobs_N=flat(rollouts, lambda one: one.sampled),
        advantage_N=flat(rollouts, lambda one: [one.advantage] * len(one.now)),
        row_N=torch.tensor([row for row, one in enumerate(rollouts) for _ in one.now], dtype=torch.long),
        entropy_N=torch.zeros(sum(len(one.now) for one in rollouts), dtype=torch.float64),
        num_rows=len(rollouts),
        reference_logprobs_N=flat(rollouts, lambda one: one.reference),
        values_N=flat(rollouts, lambda one: one.values).requires_grad_(),
        old_values_N=flat(rollouts, lambda one: one.old_values),
        returns_N=flat(rollouts, lambda one: one.returns),
    )


def step_totals(rollouts: Sequence[Rollout]) -> Totals:
    """Two rollouts of the step are not learned from."""
    num_tokens = sum(len(one.now) for one in rollouts)
    return Totals(len(rollouts) + 2, num_tokens, 96, len(rollouts) // 2, weight=num_tokens / 2)


# -- the formulas, by hand -------------------------------------------------------------------------
def loss_by_hand(
    name: str, rollouts: Sequence[Rollout], totals: Totals, beta: float, estimator: str, cap: float | None
) -> float:
    whole = 0.0
    for one in rollouts:
        length = len(one.now)
        log_ratios = [now - old for now, old in zip(one.now, one.old, strict=True)]
        if name == "gspo":
            log_ratios = [sum(log_ratios) / length] * length
        if name == "rloo":
            log_ratios = [sum(log_ratios)] * length
        for t in range(length):
            term = gain_by_hand(name, math.exp(log_ratios[t]), one.advantage, one.now[t])
            if name == "rloo":
                term /= length
            term *= 1.0 if cap is None else min(cap, math.exp(one.old[t] - one.sampled[t]))
            gap = one.now[t] - one.reference[t]
            term -= (
                beta
                * {"k1": gap * math.exp(one.now[t] - one.old[t]), "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[
                    estimator
                ]
            )
            if name == "ppo":
                near = one.old_values[t] + min(0.2, max(-0.2, one.values[t] - one.old_values[t]))
                term -= 0.5 * max((one.values[t] - one.returns[t]) ** 2, (near - one.returns[t]) ** 2)
            whole += term / divisor_by_hand(name, length, totals)
    return -whole


def gain_by_hand(name: str, ratio: float, advantage: float, now: float) -> float:
    low, high = BOUNDS[name]
    bounded = min(high, max(low, ratio))
    return bounded * advantage * now if name == "cispo" else min(ratio * advantage, bounded * advantage)


def divisor_by_hand(name: str, length: int, totals: Totals) -> float:
    if name in ("grpo", "gspo"):
        return length * totals.num_rollouts
    if name == "dr_grpo":
        return totals.max_length * totals.num_rollouts
    return totals.num_rollouts if name == "rloo" else totals.num_tokens


@st.composite
def rollouts_of_a_step(draw: Any, even: bool = False) -> list[Rollout]:
    """Log-probabilities of two and a half nats around each other: ratios on both sides of every
    bound."""
    count = draw(st.integers(1, 3)) * 2 if even else draw(st.integers(1, 5))
    return [draw(rollout()) for _ in range(count)]


@st.composite
def rollout(draw: Any) -> Rollout:
    length = draw(st.integers(1, 4))

    def near(values: list[float], by: float) -> list[float]:
        return [value + draw(st.floats(-by, by)) for value in values]

    old = [draw(st.floats(-3, -0.5)) for _ in range(length)]
    values = [draw(st.floats(-1, 1)) for _ in range(length)]
    return Rollout(
        advantage=draw(st.floats(-2, 2)),
        now=near(old, draw(st.sampled_from([0.0, 1e-3, 0.4]))),
        old=old,
        sampled=near(old, 1.5),
        reference=near(old, 1.0),
        values=near(values, 0.5),
        old_values=values,
        returns=near(values, 0.5),
    )


@pytest.mark.parametrize("name", RATIO)
@settings(max_examples=30)
@given(
    rollouts=rollouts_of_a_step(),
    beta=st.sampled_from([0.0, 0.04]),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
    cap=st.sampled_from([None, 1.0, 2.0]),
)
def test_the_loss_is_the_formula(name: str, rollouts: list[Rollout], beta: float, estimator: str, cap: float | None):
    kl = {"beta": beta, "estimator": estimator} if beta else {}  # an estimator of nothing is an error
    algorithm = algorithms.from_params(section(name, kl=kl, importance_cap=cap))
    totals = step_totals(rollouts)
    found = algorithm.loss(microbatch(rollouts), totals).item()
    assert found == pytest.approx(loss_by_hand(name, rollouts, totals, beta, estimator, cap), rel=1e-9, abs=1e-12)


def signed(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(one, advantage=1.0 - 2 * (row % 2)) for row, one in enumerate(rollouts)]


@settings(max_examples=30)
@given(rollouts_of_a_step(even=True))
def test_dpo_is_the_formula(rollouts: list[Rollout]):
    pairs, totals, whole = signed(rollouts), step_totals(rollouts), 0.0
    for chosen, rejected in zip(pairs[0::2], pairs[1::2], strict=True):
        preference = sum(chosen.now) - sum(chosen.reference) - sum(rejected.now) + sum(rejected.reference)
        whole -= math.log(1 / (1 + math.exp(-0.3 * preference)))
    found = algorithms.from_params(section("dpo", dpo={"beta": 0.3})).loss(microbatch(pairs), totals).item()
    assert found == pytest.approx(whole / totals.num_pairs, rel=1e-9)


@settings(max_examples=30)
@given(rollouts_of_a_step())
def test_best_of_n_is_the_next_token_loss(rollouts: list[Rollout]):
    totals = step_totals(rollouts)
    expected = -sum(one.advantage * sum(one.now) for one in rollouts) / totals.num_tokens
    assert algorithms.from_params(section("best_of_n")).loss(microbatch(rollouts), totals).item() == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


# -- shares ----------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=60)
@given(rollouts=rollouts_of_a_step(even=True), name=st.sampled_from(ALGORITHMS), cuts=st.sets(st.integers(1, 2)))
def test_shares_of_any_partition_add_up(rollouts: list[Rollout], name: str, cuts: set[int]):
    """Loss, gradient and facts. Cut between pairs; a part may be empty of nothing but rollouts."""
    step = signed(rollouts) if name == "dpo" else rollouts
    algorithm = algorithms.from_params(
        section(name) if name in ("dpo", "best_of_n", "supervised") else section(name, kl={"beta": 0.1})
    )
    totals, bounds = step_totals(step), [0, *sorted(2 * cut for cut in cuts), len(step)]
    whole = microbatch(step)
    parts = [microbatch(step[start:end]) for start, end in itertools.pairwise(bounds)]
    loss = algorithm.loss(whole, totals)
    shares = [algorithm.loss(part, totals) for part in parts]
    assert sum(share.item() for share in shares) == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    for one in (loss, *shares):
        one.backward()
    torch.testing.assert_close(torch.cat([grad(part) for part in parts]), grad(whole))
    facts = [algorithm.facts(part) for part in parts]
    assert {key: sum(one[key] for one in facts) for key in facts[0]} == pytest.approx(algorithm.facts(whole), abs=1e-9)


def grad(tokens: Tokens) -> torch.Tensor:
    assert tokens.logprobs_N.grad is not None
    return tokens.logprobs_N.grad


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_empty_share_is_zero(name: str):
    """A process without a rollout of its own in this step."""
    tokens = microbatch([])
    loss = algorithms.from_params(section(name)).loss(tokens, Totals(4, 10, 96, 2, weight=10))
    loss.backward()
    assert loss.item() == 0.0


# -- gradients -------------------------------------------------------------------------------------
FIXED = [
    Rollout(0.75, [-1.0, -2.0], [-1.05, -2.3], [-1.0, -2.9], [-1.2, -1.9], [0.1, 0.4], [0.0, 0.1], [0.5, 0.75]),
    Rollout(
        -0.5,
        [-0.5, -0.7, -1.4],
        [-0.6, -1.2, -1.35],
        [-0.7, -1.1, -1.3],
        [-0.4, -0.9, -1.7],
        [0.2, 0.1, 0.3],
        [0.3, 0.2, 0.1],
        [0.4, 0.0, 0.2],
    ),
]


def slopes(name: str, rollouts: list[Rollout], **train: Any) -> torch.Tensor:
    tokens = microbatch(rollouts)
    algorithms.from_params(section(name, **train)).loss(tokens, step_totals(rollouts)).backward()
    return grad(tokens)


@pytest.mark.parametrize("name", [name for name in RATIO if name != "cispo"])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_gradients_are_those_of_the_formula(name: str, estimator: str):
    """Central differences of the loss written by hand. (cispo and k1 stop gradients: the tests
    below.)"""
    expected = [
        (nudged(name, row, t, 1e-6, estimator) - nudged(name, row, t, -1e-6, estimator)) / 2e-6
        for row, one in enumerate(FIXED)
        for t in range(len(one.now))
    ]
    assert slopes(name, FIXED, kl={"beta": 0.04, "estimator": estimator}, importance_cap=2.0).tolist() == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )


def nudged(name: str, row: int, t: int, by: float, estimator: str) -> float:
    now = [value + by * (place == t) for place, value in enumerate(FIXED[row].now)]
    rollouts = [replace(one, now=now) if n == row else one for n, one in enumerate(FIXED)]
    return loss_by_hand(name, rollouts, step_totals(FIXED), 0.04, estimator, 2.0)


def test_cispo_weighs_log_probabilities():
    """The ratio is a number; what is differentiated is log p. 20 is above the bound of 5, and still
    learned from."""
    one = replace(FIXED[0], old=[-1.0 - math.log(20), -2.0 - math.log(3)])
    assert slopes("cispo", [one], importance_cap=None).tolist() == pytest.approx([-5 * 0.75 / 2, -3 * 0.75 / 2])


@pytest.mark.parametrize("name", RATIO)
def test_on_policy_it_is_the_plain_policy_gradient(name: str):
    """At ratio 1: - A / divisor for every token, whatever the algorithm clips."""
    rollouts = [replace(one, old=one.now, sampled=one.now) for one in FIXED]
    totals = step_totals(rollouts)
    expected = [-one.advantage / divisor_by_hand(name, len(one.now), totals) for one in rollouts for _ in one.now]
    assert slopes(name, rollouts).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", [name for name in RATIO if name != "cispo"])
def test_a_ratio_far_up_is_clipped_for_gains_and_not_for_losses(name: str):
    up = [replace(one, old=[value - 1 for value in one.now], sampled=[value - 1 for value in one.now]) for one in FIXED]
    found = slopes(name, up).tolist()
    assert found[:2] == [0.0, 0.0]
    assert all(slope > 0 for slope in found[2:])


@pytest.mark.parametrize("name", RATIO)
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_no_distance_between_policies_makes_an_infinite_loss(name: str, estimator: str):
    """In float32 exp overflows at 88 nats, which a rollout's sum reaches soon."""
    far = [
        Rollout(advantage, [now] * 3, [old] * 3, [old] * 3, [old] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3)
        for advantage, now, old in ((-1.0, -1.0, -300.0), (1.0, -300.0, -1.0), (-1.0, -1.0, -1.0))
    ]
    tokens = microbatch(far)
    floats = {field.name: getattr(tokens, field.name) for field in fields(tokens) if field.name.endswith("_N")}
    single = {key: value.detach().float() for key, value in floats.items() if value is not None and key != "row_N"}
    single["logprobs_N"].requires_grad_()
    tokens = replace(tokens, **single)
    algorithm = algorithms.from_params(section(name, kl={"beta": 0.1, "estimator": estimator}, importance_cap=2.0))
    loss = algorithm.loss(tokens, step_totals(far))
    loss.backward()
    assert math.isfinite(loss.item())
    assert grad(tokens).isfinite().all()
    assert all(math.isfinite(value) for value in algorithm.facts(tokens).values())
    assert (grad(tokens)[:3] > 0).all(), "what became much likelier and is bad must become less likely"


def test_the_importance_weight_is_capped():
    """In a step's first update, where the ratio is 1."""
    now = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    sampled = torch.tensor([-1.0 - math.log(1.5), -1.0 - math.log(9)], dtype=torch.float64)
    tokens = replace(microbatch([FIXED[0]]), logprobs_N=now, old_logprobs_N=now.detach(), sampled_logprobs_N=sampled)
    algorithm = algorithms.from_params(section("dr_grpo", importance_cap=2.0))
    algorithm.loss(tokens, Totals(1, 2, 1)).backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-0.75 * 1.5, -0.75 * 2.0])
    assert algorithm.facts(tokens) == {"clip/share": 0, "importance/truncated": 1}


# -- facts -----------------------------------------------------------------------------------------
def test_facts_count_what_is_clipped():
    """Ratios 1.05 and 1.35 with a gain, 1.11, 1.65 and 0.95 with a loss: only a gain above the
    bound is without gradient."""
    facts = algorithms.from_params(section("grpo", kl={"beta": 0.1, "estimator": "k2"}, importance_cap=None)).facts(
        microbatch(FIXED)
    )
    gaps = [now - reference for one in FIXED for now, reference in zip(one.now, one.reference, strict=True)]
    assert facts == {"clip/share": 1, "kl/mean": pytest.approx(sum(gap * gap / 2 for gap in gaps))}


def test_facts_of_a_rollout_s_ratio_count_its_tokens():
    assert algorithms.from_params(section("gspo")).facts(microbatch(FIXED))["clip/share"] == 2


def test_facts_of_pairs_and_values():
    # margins 0.1 and 0.4: the pair is wrong
    pairs = [replace(FIXED[0], advantage=1.0), replace(FIXED[1], advantage=-1.0)]
    assert algorithms.from_params(section("dpo")).facts(microbatch(pairs)) == {"pairs/right": 0}
    turned = [replace(FIXED[1], advantage=1.0), replace(FIXED[0], advantage=-1.0)]
    assert algorithms.from_params(section("dpo")).facts(microbatch(turned)) == {"pairs/right": 5}
    errors = [(value - goal) ** 2 for one in FIXED for value, goal in zip(one.values, one.returns, strict=True)]
    assert algorithms.from_params(section("ppo")).facts(microbatch(FIXED))["value/error"] == pytest.approx(sum(errors))


# -- what the learner prepares ---------------------------------------------------------------------
def test_needs_say_what_must_be_prepared():
    assert {name: set(algorithms.from_params(section(name)).requirements) for name in RATIO} == {
        name: {"values"} if name == "ppo" else set() for name in RATIO
    }
    assert algorithms.from_params(section("grpo", kl={"beta": 0.1})).requirements == {"reference"}
    assert algorithms.from_params(section("dpo")).requirements == {"reference", "pairs"}
    assert algorithms.from_params(section("best_of_n")).requirements == set()


def test_pairs_in_the_wrong_order_are_no_pairs():
    with pytest.raises(AssertionError, match="chosen one first"):
        algorithms.from_params(section("dpo")).loss(microbatch(signed(FIXED)[::-1]), step_totals(FIXED))


@pytest.mark.parametrize("name", RATIO)
def test_bounds_that_are_written_down_take_the_paper_s_place(name: str):
    """Ratio e with a gain: below a bound of 1 + 2 it counts."""
    up = [
        replace(
            FIXED[0],
            now=[-1.0],
            old=[-2.0],
            sampled=[-2.0],
            reference=[-1.0],
            values=[0.0],
            old_values=[0.0],
            returns=[0.0],
        )
    ]
    assert slopes(name, up, clip={"low": 0.5, "high": 2.0}).item() < 0
    assert (slopes(name, up, clip={"low": 0.5, "high": 0.1}).item() == 0) == (name != "cispo")


# -- the critic's advantages -----------------------------------------------------------------------
def test_gae_written_out():
    values = torch.tensor([0.2, 0.5, 0.4], dtype=torch.float64).numpy()
    last = 1.0 - 0.4
    middle = 0.9 * 0.4 - 0.5 + 0.9 * 0.8 * last
    first = 0.9 * 0.5 - 0.2 + 0.9 * 0.8 * middle
    advantages, returns = gae(1.0, values, 0.9, 0.8)
    assert advantages.tolist() == pytest.approx([first, middle, last])
    assert returns.tolist() == pytest.approx([first + 0.2, middle + 0.5, 1.0])


@given(st.floats(0, 1), st.lists(st.floats(-1, 1), max_size=6))
def test_gae_without_discount_returns_the_reward(reward: float, values: list[float]):
    advantages, returns = gae(reward, torch.tensor(values, dtype=torch.float64).numpy(), 1.0, 1.0)
    assert returns.tolist() == pytest.approx([reward] * len(values))
    assert advantages.tolist() == pytest.approx([reward - value for value in values])


# -- DAPO's shaping --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("length", "expected"), [(10, 0.0), (80, 0.0), (81, -0.025), (90, -0.25), (100, -0.5), (120, -0.5)]
)
def test_overlong_punishment_is_linear_in_the_last_tokens(length: int, expected: float):
    assert dapo.punishment(length, 100, Overlong(buffer=20, penalty=0.5)) == pytest.approx(expected)


def test_overlong_shaping_measures_the_whole_context():
    turn = Turn(prompt_ids=tuple(range(60)), token_ids=tuple(range(30)), logprobs=(0.0,) * 30, text="")
    done = Trajectory("trace", "example", (turn,), StopReason.completed, Scored(1.0), 1.0)
    overlong = section("dapo", overlong={"buffer": 20, "penalty": 1.0}).overlong
    assert dapo.shaped(done, overlong, 100) == pytest.approx(0.5)
    assert dapo.shaped(replace(done, grade=Unscored(GradeStatus.infra_error), reward=None), overlong, 100) is None
    assert dapo.shaped(done, section("dapo").overlong, None) == 1.0


def test_an_overlong_buffer_needs_room():
    with pytest.raises(ConfigError, match="below rollout"):
        dapo.check_overlong(section("dapo", overlong={"buffer": 512}).overlong, 512)
