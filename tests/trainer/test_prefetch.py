"""Sampling ahead: batches in order, never more than `lag` steps old, weights that change only
between two of them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rft.trainer.collect import Batch
from rft.trainer.prefetch import Prefetcher

STEPS = 12


def run(lag: int, sampling_s: float = 0.002, learning_s: float = 0.002) -> list[tuple[int, int]]:
    """(step, policy version that sampled it) as the learner sees them."""
    version, torn = 0, []

    def collect(step: int) -> Batch:
        before = version
        time.sleep(sampling_s)
        torn.append(before != version)
        return Batch(step, [], [], [], before)

    seen = []
    with Prefetcher(collect, lag, 0, STEPS) as batches:
        for done in range(1, STEPS + 1):
            batch = batches.next()
            seen.append((batch.step, batch.policy_version))
            time.sleep(learning_s)
            with batches.between:
                version = done
    assert not any(torn)
    return seen


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("slow", ["sampling", "learning"])
def test_no_batch_is_by_weights_older_than_the_lag(lag: int, slow: str):
    times: dict[str, float] = {f"{slow}_s": 0.01}
    seen = run(lag, **times)
    assert [step for step, _ in seen] == list(range(1, STEPS + 1))
    assert all(step - 1 - version <= lag for step, version in seen)


def test_without_a_lag_every_batch_is_on_policy():
    assert run(0) == [(step, step - 1) for step in range(1, STEPS + 1)]


def test_with_a_lag_the_next_batch_is_sampled_while_the_learner_learns():
    under_way = threading.Event()

    def collect(step: int) -> Batch:
        if step == 2:
            under_way.set()
        return Batch(step, [], [], [])

    with Prefetcher(collect, 1, 0, STEPS) as batches:
        assert batches.next().step == 1
        assert under_way.wait(10)  # nobody has asked for it yet


def test_what_sampling_raises_reaches_the_learner():
    def collect(step: int) -> Any:
        raise ValueError(f"step {step}")

    before = threading.active_count()
    with pytest.raises(ValueError, match="step 1"), Prefetcher(collect, 1, 0, STEPS) as batches:
        batches.next()
    assert threading.active_count() == before


def test_nothing_is_sampled_beyond_the_last_step():
    steps = []
    with Prefetcher(lambda step: steps.append(step) or Batch(step, [], [], []), 3, 4, 6) as batches:
        assert [batches.next().step for _ in range(2)] == [5, 6]
    assert steps == [5, 6]
