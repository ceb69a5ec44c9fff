"""The best weights are kept without the optimizer, which nobody reads again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rft.errors import UserError
from rft.trainer import checkpoint
from rft.trainer.learner import Learner
from tests.small_learner import all_of, learner, samples, weights


def taught(**settings: object) -> Learner:
    one = learner(**settings)  # type: ignore[arg-type]
    given = samples(policy=one.model)
    one.update(given, all_of(given, 12))
    return one


@pytest.mark.parametrize("what", ["lora", "full"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_best_weights_come_back_alone(tmp_path: Path, what: str, whole: bool):
    """`whole`: as an earlier version kept them, with the optimizer."""
    one = taught(weights=what)
    best = weights(one).clone()
    checkpoint.write_best(tmp_path, 1, one.state() if whole else one.weights_state())
    given = samples(policy=one.model)
    one.update(given, all_of(given, 12))
    assert not torch.equal(weights(one), best)
    read = checkpoint.read_best(tmp_path, 1)
    assert ("optimizer" in read) == whole
    one.load_weights(read)
    assert torch.equal(weights(one), best)


def test_the_best_weights_of_another_configuration_are_refused():
    with pytest.raises(UserError, match="belongs to another configuration"):
        taught(weights="full").load_weights(taught(weights="lora").weights_state())


def test_no_gradient_lies_in_memory_while_the_policy_samples():
    one = taught(weights="full")
    assert any(parameter.grad is not None for parameter in one.parameters)
    one.free_gradients()
    assert all(parameter.grad is None for parameter in one.parameters)


def test_a_frozen_reference_is_the_start_that_change_is_measured_from():
    one = taught(weights="full", kl={"beta": 0.1})
    assert one._frozen is not None
    assert {start.data_ptr() for start in one.start} == {each.data_ptr() for each in one._frozen.parameters()}
    assert one.weight_change() > 0
