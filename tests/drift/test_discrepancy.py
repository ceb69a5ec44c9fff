"""The discrepancy of embeddings: nothing between equals, about 1 between strangers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rft.drift import discrepancy, noise


def about(rng: np.random.Generator, topic: int, num_rows: int) -> Any:
    """Rows near one of the axes, of length 1."""
    rows = rng.normal(0, 0.05, (num_rows, 64))
    rows[:, topic] += 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def distance(reference: Any, current: Any) -> tuple[float, Any]:
    labels = np.repeat([0.0, 1.0], [len(reference), len(current)])
    effect, shuffled = discrepancy.discrepancy(np.concatenate([reference, current]), labels, 0)
    return effect, shuffled(200)


def test_rows_are_read_as_they_were_written() -> None:
    rows = about(np.random.default_rng(0), 3, 5)
    assert discrepancy.rows_of(discrepancy.encoded(rows)) == pytest.approx(rows, abs=1e-3)


def test_windows_without_anything_in_common_are_one_apart() -> None:
    rng = np.random.default_rng(1)
    effect, null_D = distance(about(rng, 0, 80), about(rng, 9, 80))
    assert 0.95 <= effect <= 1.0
    assert noise.p_value(effect, null_D) < 0.01


def test_windows_of_the_same_topics_are_not_apart() -> None:
    rng = np.random.default_rng(2)
    p_values: list[float] = []
    for _ in range(40):
        sides = [np.concatenate([about(rng, 0, 30), about(rng, 1, 20)]) for _ in range(2)]
        effect, null_D = distance(*sides)
        p_values.append(noise.p_value(effect, null_D))
        assert 0 <= effect < 0.3
    assert np.mean(np.array(p_values) < 0.1) <= 0.2


def test_a_topic_that_grows_is_seen() -> None:
    rng = np.random.default_rng(3)
    before = np.concatenate([about(rng, 0, 150), about(rng, 1, 50)])
    now = np.concatenate([about(rng, 0, 50), about(rng, 1, 150)])
    effect, null_D = distance(before, now)
    assert 0.2 < effect < 0.9
    assert noise.p_value(effect, null_D) < 0.01


def test_equal_rows_are_nothing_apart() -> None:
    same = about(np.random.default_rng(4), 0, 1).repeat(20, axis=0)
    effect, null_D = distance(same, same)
    assert effect == 0.0
    assert set(null_D) == {0.0}
