"""From rows to an evaluation: unscored is not zero, and everything is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rft.rollouts import evaluate
from rft.rollouts.log import LogRow
from rft.types import Example

EXAMPLES = [
    Example(f"n-{n}", ({"role": "user", "content": "q"},), "t", {"slice": "even" if n % 2 == 0 else "odd"})
    for n in range(3)
]


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
        solved=None if reward is None else reward == 1.0,
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
        loss_mask=[],
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
    assert made.tool_calls == {"1": 3, "2": 1, "9": 1}
    assert made.metrics["tool_calls/p95"].value == 9
    assert made.max_at_k[0][1] < made.max_at_k[1][1]
    assert [one.slice for one in made.rows] == ["even", "odd", "even"]


def test_rows_by_example():
    made = evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0)
    assert [(row.example_id, row.rewards) for row in made.rows] == [
        ("n-0", [1.0, 0.0]),
        ("n-1", [None, 1.0]),
        ("n-2", [0.0, 0.0]),
    ]
    assert [row.counts("tool_calls") for row in made.rows] == [[2, 1], [None, 1], [1, 9]]


def test_an_outage_is_no_failure():
    """R14: two solved and two outages gave solved 0.5, "mixed" 100 % and P95 calls 9."""
    solved, outage = (
        row(EXAMPLES[0], 0, 1.0, 3),
        replace(row(EXAMPLES[0], 1, None, 9), stop_reason="tool_error", num_tokens=500),
    )
    rows = [solved, outage, replace(solved, example_id="n-1"), replace(outage, example_id="n-1")]
    made = evaluate.evaluation("champion", rows, EXAMPLES[:2], 1.0, 2, seed=0)
    assert made.metrics["solved/share"].value == 1.0
    assert made.shares == {"always_failed": 0.0, "always_solved": 1.0, "mixed": 0.0}
    assert [made.metrics[f"tool_calls/{name}"].value for name in ("mean", "p50", "p95")] == [3.0, 3.0, 3.0]
    assert made.metrics["tokens/mean"].value == 5.0
    assert (made.tool_calls, made.stop_reasons) == ({"3": 2}, {"completed": 2})
    assert (made.unscored, made.unscored_stop_reasons) == (2, {"tool_error": 2})
    assert [(one.solved, one.tool_calls, one.stop_reasons) for one in made.rows] == [
        ([True, None], [3, 9], ["completed", "tool_error"])
    ] * 2


def test_equal_rows_give_equal_bytes():
    one, two = (evaluate.evaluation("champion", ROWS, EXAMPLES, 1.0, 2, seed=0).model_dump_json() for _ in range(2))
    assert one == two
