"""From rows to an evaluation: unscored is not zero, and everything is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rft import evaluate
from rft.rollout_log import LogRow
from rft.types import Example

EXAMPLES = [Example(f"n-{n}", ({"role": "user", "content": "q"},), "t", {"slice": "even" if n % 2 == 0 else "odd"}) for n in range(3)]


def row(example: Example, sample: int, reward: float | None, calls: int = 1) -> LogRow:
    blank = LogRow(
        stage="baseline",
        arm="champion",
        step=0,
        example_id=example.id,
        sample=sample,
        attempt=0,
        rollout_id="trace",
        split="validation",
        slice=example.slice,
        stop_reason="completed",
        reward=reward,
        score=reward,
        solved=reward == 1.0,
        status="ok",
        num_turns=1,
        num_tool_calls=calls,
        num_tool_errors=0,
        num_tokens=5,
        num_forks=0,
        components="{}",
        explanation="",
        item="{}",
        messages="[]",
        ids=[],
        mine=[],
        logprobs=[],
    )
    return replace(blank, status="ok" if reward is not None else "infra_error")


ROWS = [
    row(EXAMPLES[0], 0, 1.0, 2),
    row(EXAMPLES[0], 1, 0.0),
    row(EXAMPLES[1], 0, None),
    row(EXAMPLES[1], 1, 1.0),
    row(EXAMPLES[2], 0, 0.0),
    row(EXAMPLES[2], 1, 0.0, 9),
]


def test_the_mean_leaves_the_unscored_out():
    made = evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0)
    assert made.metrics["reward/mean"].value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert made.unscored == 1


def test_counts():
    made = evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0)
    assert made.tool_calls == {"1": 4, "2": 1, "9": 1}
    assert made.metrics["tool_calls/p95"].value == 9
    assert made.max_at_k[0][1] < made.max_at_k[1][1]
    assert [one.slice for one in made.rows] == ["even", "odd", "even"]


def test_rows_by_example():
    made = evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0)
    assert evaluate.by_example(made.rows) == {"n-0": [1.0, 0.0], "n-1": [None, 1.0], "n-2": [0.0, 0.0]}
    assert evaluate.by_example(made.rows, "tool_calls")["n-2"] == [1, 9]


def test_equal_rows_give_equal_bytes():
    one, two = (evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0).model_dump_json() for _ in range(2))
    assert one == two
