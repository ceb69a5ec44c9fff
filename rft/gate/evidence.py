"""The rows of two arms, as the statistics want them: by example, as shares of the range."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

from rft import config, stats
from rft.reports import Arm, Metric
from rft.reports.evaluation import Counted
from rft.reports.gate import OF_RANGE
from rft.scale import UNIT, share
from rft.words import counted


def seeded(gate: config.Gate, statistic: Callable[..., Metric]) -> Callable[..., Metric]:
    """Give a statistic the gate's own seed and effort."""
    return partial(statistic, num=gate.num_bootstrap, seed=gate.seed)


def paired(gate: config.Gate) -> Callable[..., Metric]:
    return seeded(gate, stats.paired_gain)


def compare(new: stats.ById, old: stats.ById, method: Callable[..., Metric]) -> Metric | None:
    """Compare by example; None, and not a pass, when no example has a score in both arms."""
    both = any(any_score(new[id]) and any_score(old[id]) for id in new)
    return method(new, old) if both else None


def any_score(row: stats.Scores) -> bool:
    return any(x is not None for x in row)


def rewards(arm: Arm, slices: Set[str] | None = None) -> stats.ById:
    rows = (row for row in arm.sampled.rows if slices is None or row.slice in slices)
    return {row.example_id: _shares(row.rewards, arm) for row in rows}


def scores(arm: Arm) -> stats.ById:
    return {row.example_id: _shares(row.scores, arm) for row in arm.greedy.rows}


def _shares(values: list[float | None], arm: Arm) -> list[float | None]:
    return [None if value is None else share(value, arm.sampled.range) for value in values]


def unit(what: str, arm: Arm) -> str:
    return what + (OF_RANGE if arm.sampled.range != UNIT.ends else "")


def counts(arm: Arm, what: Counted) -> stats.ById:
    return {row.example_id: row.counts(what) for row in arm.sampled.rows}


def size(arm: Arm, slices: Set[str] | None = None) -> str:
    rows = [row for row in arm.sampled.rows if slices is None or row.slice in slices]
    examples, rollouts = counted(len(rows), "example"), counted(arm.sampled.k, "rollout")
    if not arm.serve.is_single:
        rollouts = f"{counted(arm.sampled.k, 'answer')}, each {arm.serve.words},"
    return f"{examples} x {rollouts} at temperature {arm.sampled.temperature:g}"


def unserved(arm: Arm) -> str:
    """Say what a single rollout earns, where an answer is made of several."""
    single = arm.unserved.get("reward/mean")
    return "" if single is None else f"; a single rollout earns {single.value:.3f}"
