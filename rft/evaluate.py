"""From rollouts to an evaluation: the numbers that `baseline`, `prompt` and `challenger` share.

Every number has its interval, from a bootstrap over examples and the rollouts within them; unscored rollouts are counted and left out of every
mean. Rewards are what the trainer would have seen (with the budget), scores what the grader said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rft import stats
from rft.examples import sha256
from rft.reports import Evaluation, Metric, Row
from rft.rollout_log import LogRow
from rft.scale import UNIT, Scale
from rft.types import Example, GradeStatus


def evaluation(
    name: str, rows: Sequence[LogRow], examples: Sequence[Example], temperature: float, k: int, seed: int, scale: Scale = UNIT
) -> Evaluation:
    """`rows` in order of example and sample. `scale`: of the grader that scored them."""
    table = [_row([one for one in rows if one.example_id == example.id], example) for example in examples]
    rewards, scores = [row.rewards for row in table], [row.scores for row in table]
    calls = [value for row in table for value in row.tool_calls]
    return Evaluation(
        name=name,
        temperature=temperature,
        k=k,
        examples_sha256=sha256(examples),
        metrics={
            "reward/mean": stats.mean_interval(rewards, seed=seed),
            "score/mean": stats.mean_interval(scores, seed=seed),
            "solved/share": stats.mean_interval([[float(x) for x in row.solved] for row in table], seed=seed),
            "tool_calls/mean": stats.mean_interval([[float(x) for x in row.tool_calls] for row in table], seed=seed),
            "tool_calls/p50": Metric(value=stats.percentile(calls, 0.5), n=len(calls)),
            "tool_calls/p95": stats.quantile_interval([[float(x) for x in row.tool_calls] for row in table], 0.95, seed=seed),
            "tokens/mean": stats.mean_interval([[float(x) for x in row.tokens] for row in table], seed=seed),
        },
        max_at_k=stats.max_at_k(scores, range(1, k + 1)),
        shares=stats.shares([row.solved for row in table]),
        stop_reasons=dict(sorted(Counter(one.stop_reason for one in rows).items())),
        tool_calls={str(n): count for n, count in sorted(Counter(calls).items())},
        unscored=sum(one.reward is None for one in rows),
        rows=table,
        range=scale.ends,
    )


def by_example(table: Iterable[Row], field: str = "rewards") -> dict[str, list[float | None]]:
    """The form that the paired statistics take."""
    return {row.example_id: list(getattr(row, field)) for row in table}


def _row(rows: Sequence[LogRow], example: Example) -> Row:
    return Row(
        example_id=example.id,
        slice=example.slice,
        rewards=[one.reward for one in rows],
        scores=[one.score for one in rows],
        solved=[one.solved for one in rows],
        tool_calls=[one.num_tool_calls for one in rows],
        tokens=[one.num_tokens for one in rows],
        stop_reasons=[one.stop_reason for one in rows],
        hacks=sum(one.status == GradeStatus.hack for one in rows),
    )
