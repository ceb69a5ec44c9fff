"""The estimators of KL, against the exact divergence of small distributions: their means, and what
their gradients average to."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from rft.algorithms.kl import ESTIMATORS

LOGITS = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([-0.1, 0.4, 0.6, -0.3], dtype=torch.float64), -1)


def expected(name: str) -> tuple[float, torch.Tensor]:
    """The estimator's mean over samples of the policy, and the mean of its gradient by the logits:
    exact, over all four tokens."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, -1)
    values = ESTIMATORS[name](logprobs, REFERENCE, logprobs.detach())
    (logprobs.exp().detach() * values).sum().backward()
    assert logits.grad is not None
    return (logprobs.exp() * values).sum().item(), logits.grad


def divergence(policy: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (policy.exp() * (policy - other)).sum()


def gradient(of_logprobs: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    of_logprobs(torch.log_softmax(logits, -1)).backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_average_to_the_divergence(name: str):
    assert expected(name)[0] == pytest.approx(divergence(torch.log_softmax(LOGITS, -1), REFERENCE).item(), rel=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2"])
def test_k1_and_k2_have_the_divergence_s_gradient(name: str):
    """k1's own derivative would average to zero: a penalty without effect."""
    torch.testing.assert_close(expected(name)[1], gradient(lambda logprobs: divergence(logprobs, REFERENCE)))


def test_k1_has_it_of_an_old_policy_s_samples_too():
    old = torch.log_softmax(torch.tensor([0.9, 0.1, -0.4, 0.2], dtype=torch.float64), -1)
    logits = LOGITS.clone().requires_grad_()
    values = ESTIMATORS["k1"](torch.log_softmax(logits, -1), REFERENCE, old)
    mean = (old.exp() * values).sum()
    mean.backward()
    assert logits.grad is not None
    assert mean.item() == pytest.approx(divergence(torch.log_softmax(LOGITS, -1), REFERENCE).item(), rel=1e-12)
    torch.testing.assert_close(logits.grad, gradient(lambda logprobs: divergence(logprobs, REFERENCE)))


def test_k3_has_the_reverse_divergence_s_gradient():
    torch.testing.assert_close(expected("k3")[1], gradient(lambda logprobs: divergence(REFERENCE, logprobs)))


@pytest.mark.parametrize(
    ("name", "value", "slope"), [("k1", 0.5, 0.5), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))]
)
def test_a_token_written_out(name: str, value: float, slope: float):
    now = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    estimate = ESTIMATORS[name](now, torch.tensor([-1.5], dtype=torch.float64), now.detach())
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value)
    assert now.grad is not None
    assert now.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_policies_are_exactly_zero_apart(name: str):
    now = torch.tensor([-3.0, -0.1], requires_grad=True)
    estimate = ESTIMATORS[name](now, now.detach(), now.detach())
    estimate.sum().backward()
    assert estimate.tolist() == [0.0, 0.0]
    assert now.grad is not None
    assert now.grad.tolist() == [0.0, 0.0]


def test_k3_keeps_its_digits_near_the_reference():
    gap = 1e-3
    estimate = ESTIMATORS["k3"](torch.tensor([gap]), torch.tensor([0.0]), torch.tensor([gap])).item()
    assert estimate == pytest.approx(gap**2 / 2, rel=1e-3)
