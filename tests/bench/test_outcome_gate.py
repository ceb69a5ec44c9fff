"""Phantom advantages: what an added budget does to a group in which all failed, and to a policy;
and that ours does neither.

The arithmetic, and a bandit that searches drawers and learns by the product's own rewards,
advantages and loss. The figure of the same name (bench/outcome_gate.py) measures it on whole
rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rft import algorithms, config
from rft.algorithms import Tokens, Totals
from rft.config import Budget
from rft.grading.budget import Use, outcome, reward
from rft.types import Grade, Scored

GRPO = algorithms.from_params(config.Train(algorithm="grpo"))
DRAWERS = 20
START = 0.45
"""The chance to look on after an empty drawer that the bandit begins with."""


def rewards(grades: Sequence[Grade], calls: Sequence[int], budget: Budget) -> list[float | None]:
    return [reward(grade, Use(("look",) * num, 0, 2, 0.0), budget) for grade, num in zip(grades, calls, strict=True)]


def advantages(form: str, calls: Sequence[int]) -> list[float]:
    """Of a group in which all failed, with a budget of 8 calls."""
    budget = Budget.model_validate({"tool_calls": 8, "weight": 0.1, "form": form})
    (found,) = GRPO.advantages([rewards([Scored(0.0)] * len(calls), calls, budget)])
    return found.tolist()


def test_an_added_penalty_makes_full_size_advantages_of_nothing():
    """A penalty of at most 0.1, and no word from the task: GRPO divides by what little there is."""
    found = advantages("added", calls=(8, 8, 9, 9, 11, 13, 14, 16))
    assert max(found) == pytest.approx(0.99, abs=0.01)
    assert min(found) == pytest.approx(-1.65, abs=0.01)


def test_a_multiplied_one_makes_none():
    assert advantages("multiplied", calls=(8, 8, 9, 9, 11, 13, 14, 16)) == [0.0] * 8


def test_what_the_variance_filter_looks_at_is_blind_to_the_budget_and_to_style():
    """Rewards differ in every way but one: what the task earned."""
    grades = [Scored(0.1 * n, components={"outcome": 0.0, "style": 0.1 * n}) for n in range(4)]
    assert len(set(rewards(grades, (0, 2, 4, 8), Budget(form="added", tool_calls=1)))) == 4
    assert {outcome(grade) for grade in grades} == {0.0}


# -- a bandit --------------------------------------------------------------------------------------
def learned(form: str, seed: int, steps: int = 40) -> list[float]:
    """The chances to look on, after training. Each decision after an empty drawer is one token, and
    the policy one logit a drawer."""
    budget = Budget.model_validate({"tool_calls": 2, "weight": 0.3, "form": form})
    rng = np.random.default_rng(seed)
    patience = torch.logit(torch.full((DRAWERS - 1,), START)).requires_grad_()
    optimizer = torch.optim.Adam([patience], lr=0.2)
    for _ in range(steps):
        depth_P = rng.integers(1, DRAWERS + 1, size=8)
        searches = [[_search(int(depth), torch.sigmoid(patience).tolist(), rng) for _ in range(8)] for depth in depth_P]
        graded_PG = [
            rewards([Scored(score) for score, _ in group], [1 + sum(goes) for _, goes in group], budget)
            for group in searches
        ]
        advantage_N = np.concatenate(GRPO.advantages(graded_PG))
        tokens = _tokens(patience, [goes for group in searches for _, goes in group], advantage_N)
        loss = GRPO.loss(tokens, Totals(num_rollouts=64, num_tokens=len(tokens.row_N), max_length=DRAWERS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.sigmoid(patience).tolist()


def _search(depth: int, goes_on_D: Sequence[float], rng: np.random.Generator) -> tuple[float, list[bool]]:
    """Drawer after drawer: its score, and its decisions to go on. Nothing is decided once it is
    found, or at the last."""
    goes: list[bool] = []
    for drawer in range(1, DRAWERS):
        if drawer == depth:
            return 1.0, goes
        goes.append(bool(rng.random() < goes_on_D[drawer - 1]))
        if not goes[-1]:
            return 0.0, goes
    return float(depth == DRAWERS), goes


def _tokens(patience: torch.Tensor, goes: Sequence[Sequence[bool]], advantage_B: np.ndarray) -> Tokens:
    """Strictly on-policy; a search that decided nothing has no token."""
    row_N = torch.tensor([row for row, own in enumerate(goes) for _ in own])
    drawer_N = torch.tensor([drawer for own in goes for drawer in range(len(own))])
    sign_N = torch.tensor([1.0 if on else -1.0 for own in goes for on in own])
    logprobs_N = torch.nn.functional.logsigmoid(sign_N * patience[drawer_N])
    advantage_N = torch.tensor(advantage_B, dtype=torch.float32)[row_N]
    old_logprobs_N = logprobs_N.detach()
    return Tokens(
        logprobs_N, old_logprobs_N, old_logprobs_N, advantage_N, row_N, torch.zeros_like(old_logprobs_N), len(goes)
    )


def _success(goes_on_D: Sequence[float]) -> float:
    """Its chance to find: it reaches drawer d when it went on d - 1 times."""
    return float(np.mean(np.cumprod([1.0, *goes_on_D])))


@pytest.mark.parametrize("seed", range(3))
def test_the_added_budget_unteaches_search_and_the_multiplied_one_teaches_it(seed: int):
    """Of 8 seeds tried: 0.051 to 0.089 with it added, 0.59 to 0.86 with it multiplied; the first
    drawer alone holds 0.05."""
    start = _success([START] * (DRAWERS - 1))
    assert start == pytest.approx(0.091, abs=0.001)
    assert _success(learned("added", seed)) < start
    assert _success(learned("multiplied", seed)) > 5 * start
