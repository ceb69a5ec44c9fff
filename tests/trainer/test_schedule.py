"""The learning rate, as a user would check it against a plot."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config
from rft.trainer import schedule


def section(**train: object) -> config.Train:
    return config.Train.model_validate(train)


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(2, 300), st.integers(0, 40))
def test_a_rate_rises_over_the_warm_up_and_never_again(kind: str, steps: int, warmup: int):
    """It reaches train.lr right after a warm-up of a run that has only begun, and never goes above
    it, nor to zero."""
    warmup = min(warmup, steps - 1)
    one = section(schedule=kind, steps=steps, warmup_steps=warmup, lr=0.5)
    rates = [schedule.rate(one, step) for step in range(1, steps + 1)]
    assert all(0.0 < rate <= 0.5 + 1e-12 for rate in rates)
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[warmup:], rates[warmup + 1 :], strict=False))
    assert rates[0] == pytest.approx(0.5 / (warmup + 1))
    if not warmup and kind != "constant":
        assert rates[-1] == pytest.approx(0.005)


@pytest.mark.parametrize(("kind", "middle"), [("constant", 1.0), ("linear", 0.505), ("cosine", 0.505)])
def test_half_way(kind: str, middle: float):
    """0.505 is 0.01 + 0.99 / 2."""
    assert schedule.rate(section(schedule=kind, steps=101, lr=1.0), 51) == pytest.approx(middle)


def test_a_cosine_falls_as_a_cosine():
    one = section(schedule="cosine", steps=5, lr=1.0)
    shares = [(schedule.rate(one, step) - 0.01) / 0.99 for step in range(1, 6)]
    assert shares == pytest.approx([0.5 * (1 + math.cos(math.pi * quarter / 4)) for quarter in range(5)])


def test_a_run_of_one_step_has_its_rate():
    assert schedule.rate(section(steps=1, lr=0.25), 1) == 0.25


def test_a_warm_up_that_never_ends_is_refused():
    with pytest.raises(ValueError, match="warmup_steps = 10 must be below steps = 10"):
        section(steps=10, warmup_steps=10)
