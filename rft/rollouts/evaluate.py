"""Turn rollouts into an evaluation: the numbers that `baseline`, `prompt` and `challenger` share.

Every number has an interval, from a bootstrap over examples and the rollouts within them. An
unscored rollout has no outcome. It is counted, with its stop reason, and is in no other number.
Rewards are those that the trainer would see (with the budget); scores are the grader's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from rft import stats
from rft.reports import Evaluation, Metric, Row
from rft.rollouts.log import LogRow
from rft.rows import sha256
from rft.scale import UNIT, Scale
from rft.types import ABSTAINED, Example, GradeStatus


def evaluation(
    name: str,
    rows: Sequence[LogRow],
    examples: Sequence[Example],
    temperature: float,
    k: int,
    seed: int,
    scale: Scale = UNIT,
) -> Evaluation:
    """Evaluate `rows`, which are in order of example and sample. `scale`: the scale of their
    grader."""
    table = rows_of(rows, examples)
    rewards, scores = [row.rewards for row in table], [row.scores for row in table]
    calls = [row.counts("tool_calls") for row in table]
    tells = any(row.abstained for row in table)
    costs = [(name, [row.counts(name) for row in table]) for name in ("context_tokens", "cached_tokens")]
    all_calls = [int(count) for row in calls for count in row if count is not None]
    return Evaluation(
        name=name,
        temperature=temperature,
        k=k,
        examples_sha256=sha256(examples),
        metrics={
            "reward/mean": stats.mean_interval(rewards, seed=seed),
            "score/mean": stats.mean_interval(scores, seed=seed),
            "solved/share": stats.mean_interval([row.solved for row in table], seed=seed),
            "tool_calls/mean": stats.mean_interval(calls, seed=seed),
            "tool_calls/p50": Metric(value=stats.percentile(all_calls, 0.5), n=len(all_calls)),
            "tool_calls/p95": stats.quantile_interval(calls, 0.95, seed=seed),
            "tokens/mean": stats.mean_interval([row.counts("tokens") for row in table], seed=seed),
            **({"abstained/share": stats.mean_interval([row.abstained for row in table], seed=seed)} if tells else {}),
            **{f"{name}/mean": stats.mean_interval(found, seed=seed) for name, found in costs if _any(found)},
        },
        max_at_k=stats.max_at_k(scores, range(1, k + 1)),
        shares=stats.shares([row.solved for row in table]),
        stop_reasons=_reasons(row for row in rows if row.score is not None),
        tool_calls={str(n): count for n, count in sorted(Counter(all_calls).items())},
        unscored=sum(row.score is None for row in rows),
        unscored_stop_reasons=_reasons(row for row in rows if row.score is None),
        rows=table,
        range=scale.ends,
    )


def rows_of(rows: Sequence[LogRow], examples: Sequence[Example]) -> list[Row]:
    """Return one row per example, in the order of the examples."""
    tells = any(_abstained(row) is not None for row in rows)
    return [_row([row for row in rows if row.example_id == example.id], example, tells) for example in examples]


def _any(counts: Iterable[stats.Scores]) -> bool:
    return any(count is not None for row in counts for count in row)


def _reasons(rows: Iterable[LogRow]) -> dict[str, int]:
    return dict(sorted(Counter(row.stop_reason for row in rows).items()))


def _abstained(row: LogRow) -> bool | None:
    """Tell whether a rollout abstained where there is an answer; None if its grade does not say
    so."""
    if ABSTAINED not in row.components:  # true in most logs, and then no JSON is parsed
        return None
    found = json.loads(row.components).get(ABSTAINED)
    return None if found is None else found > 0


def _row(rows: Sequence[LogRow], example: Example, tells: bool) -> Row:
    return Row(
        example_id=example.id,
        slice=example.slice,
        rewards=[row.reward for row in rows],
        scores=[row.score for row in rows],
        solved=[row.solved for row in rows],
        tool_calls=[row.num_tool_calls for row in rows],
        tokens=[row.num_tokens for row in rows],
        stop_reasons=[row.stop_reason for row in rows],
        turns=[row.num_turns for row in rows],
        context_tokens=[row.num_context_tokens for row in rows],
        cached_tokens=[row.num_cached_tokens for row in rows],
        unreadable_calls=[row.num_unreadable_calls for row in rows],
        abstained=[_abstained(row) for row in rows] if tells else [],
        hacks=sum(row.status == GradeStatus.hack for row in rows),
    )
