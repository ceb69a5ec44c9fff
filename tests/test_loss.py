"""The loss against the formula written out token by token, and its gradient against the policy gradient."""

from __future__ import annotations

import pytest
import torch

from rft.loss import Scored, TrainingSample, policy_loss

OLD = [[-1.0, -2.0], [-0.5]]
ADVANTAGES = [0.75, -0.25]


def samples() -> list[TrainingSample]:
    return [TrainingSample([1, 2, 3], [False, True, True], OLD[0], ADVANTAGES[0]), TrainingSample([1, 2], [False, True], OLD[1], ADVANTAGES[1])]


def scored(shift: float) -> Scored:
    now = torch.tensor([-1.0 + shift, -2.0 + shift, -0.5 + shift], requires_grad=True)
    return Scored(now, torch.zeros(3), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize(("algorithm", "expected"), [("dr_grpo", -(0.75 * 2 - 0.25) / (2 * 10)), ("grpo", -(0.75 - 0.25) / 2)])
def test_on_policy_value(algorithm, expected: float):
    assert policy_loss(scored(0.0), samples(), algorithm, num_rollouts=2, norm_length=10).item() == pytest.approx(expected)


def test_on_policy_gradient_is_the_policy_gradient():
    one = scored(0.0)
    policy_loss(one, samples(), "dr_grpo", 2, 10).backward()
    assert one.logprobs_N.grad is not None
    assert one.logprobs_N.grad.tolist() == pytest.approx([-0.75 / 20, -0.75 / 20, 0.25 / 20])


def test_a_ratio_far_up_is_clipped_for_gains_and_not_for_losses():
    one = scored(1.0)
    policy_loss(one, samples(), "dr_grpo", 2, 10).backward()
    assert one.logprobs_N.grad is not None
    gains, losses = one.logprobs_N.grad[:2], one.logprobs_N.grad[2]
    assert gains.tolist() == [0.0, 0.0]
    assert losses.item() == pytest.approx(0.25 * torch.e / 20)


def test_shares_of_microbatches_add_up():
    whole = policy_loss(scored(0.1), samples(), "grpo", 2, 10).item()
    parts = 0.0
    for n, rows in ((0, slice(0, 2)), (1, slice(2, 3))):
        now = scored(0.1).logprobs_N[rows]
        parts += policy_loss(Scored(now, now, torch.zeros(len(now), dtype=torch.long)), samples()[n : n + 1], "grpo", 2, 10).item()
    assert parts == pytest.approx(whole)
