"""Count what the checks need of an arm, by example, and put it into words."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from statistics import fmean

from rft import config, stats
from rft.formatting import counted
from rft.reports import Arm, Metric
from rft.reports.evaluation import Counted
from rft.reports.gate import OF_RANGE
from rft.scale import UNIT, share
from rft.stats import ById

Marks = Callable[[config.Gate, Arm], ById]
"""Example -> a number for each of its rollouts; None for a rollout without a score."""
Describe = Callable[[config.Gate, Arm, Arm, ById, ById], str]
"""(gate, candidate, champion, marks of each) -> a sentence."""
_TOKENS: tuple[Counted, ...] = ("context_tokens", "cached_tokens", "tokens")


def paired(gate: config.Gate) -> Callable[..., Metric]:
    return partial(stats.paired_gain, num=gate.num_bootstrap, seed=gate.seed)


def compare(new: ById, old: ById, method: Callable[..., Metric]) -> Metric | None:
    """Compare by example; None, and not a pass, when no example has a score in both arms."""
    both = any(any_score(new[id]) and any_score(old[id]) for id in new)
    return method(new, old) if both else None


def any_score(row: stats.Scores) -> bool:
    return any(x is not None for x in row)


# -- marks -----------------------------------------------------------------------------------------
def rewards(arm: Arm, slices: Set[str] | None = None) -> ById:
    rows = (row for row in arm.sampled.rows if slices is None or row.slice in slices)
    return {row.example_id: _shares(row.rewards, arm) for row in rows}


def greedy(gate: config.Gate, arm: Arm) -> ById:
    return {row.example_id: _shares(row.scores, arm) for row in arm.greedy.rows}


def counter(what: Counted) -> Marks:
    return lambda gate, arm: {row.example_id: row.counts(what) for row in arm.sampled.rows}


def paid(gate: config.Gate, arm: Arm) -> ById:
    """Mark each scored rollout with its cost."""
    prices = gate.prices

    def price(read: float | None, cached: float | None, written: float | None) -> float | None:
        if read is None or cached is None or written is None:
            return None
        return (read - cached) * prices.context + cached * prices.cached + written * prices.sampled

    return {row.example_id: [*map(price, *map(row.counts, _TOKENS))] for row in arm.sampled.rows}


def unreadable(gate: config.Gate, arm: Arm) -> ById:
    """Mark a rollout with a call that could not be read with 1, others with 0."""
    counts = counter("unreadable_calls")(gate, arm)
    return {id: [None if count is None else float(count > 0) for count in row] for id, row in counts.items()}


def abstained(gate: config.Gate, arm: Arm) -> ById:
    """Mark a rollout that abstained where there is an answer with 1, others with 0."""
    return {
        row.example_id: [None if mark is None else float(mark) for mark in row.abstained or [None] * len(row.scores)]
        for row in arm.sampled.rows
    }


def without_score(gate: config.Gate, arm: Arm) -> ById:
    """Mark a rollout without a score with 1, others with 0; greedy ones too."""
    marks: dict[str, list[float | None]] = {}
    for row in (*arm.sampled.rows, *arm.greedy.rows):
        marks.setdefault(row.example_id, []).extend(float(reward is None) for reward in row.rewards)
    return marks


def _shares(values: list[float | None], arm: Arm) -> list[float | None]:
    return [None if value is None else share(value, arm.sampled.range) for value in values]


# -- over all examples -----------------------------------------------------------------------------
def num_scored(arm: Arm) -> int:
    return sum(score is not None for row in arm.sampled.rows for score in row.scores)


def pooled(arm: Arm, what: Counted) -> list[float]:
    return [count for row in arm.sampled.rows for count in row.counts(what) if count is not None]


def unscored_share(arm: Arm) -> float:
    rewards = [reward for row in (*arm.sampled.rows, *arm.greedy.rows) for reward in row.rewards]
    return sum(reward is None for reward in rewards) / len(rewards) if rewards else 1.0


# -- in words --------------------------------------------------------------------------------------
def unit(what: str, arm: Arm) -> str:
    """Return a check's unit. For rewards and scores it says whether they are shares of a range."""
    return what + (OF_RANGE if what in ("reward", "score") and arm.sampled.range != UNIT.ends else "")


def size(arm: Arm, slices: Set[str] | None = None) -> str:
    rows = [row for row in arm.sampled.rows if slices is None or row.slice in slices]
    examples, rollouts = counted(len(rows), "example"), counted(arm.sampled.k, "rollout")
    if not arm.serve.is_single:
        rollouts = f"{counted(arm.sampled.k, 'answer')}, each {arm.serve.description},"
    return f"{examples} x {rollouts} at temperature {arm.sampled.temperature:g}"


def unserved(arm: Arm) -> str:
    """Say what a single rollout earns, where an answer is made from several."""
    single = arm.unserved.get("reward/mean")
    return "" if single is None else f"; a single rollout earns {single.value:.3f}"


def spent(gate: config.Gate, new: Arm, old: Arm, after: ById, before: ById) -> str:
    """Say what a rollout of each arm reads and writes."""
    (read, cached, written), was = ([_mean(arm, what) for what in _TOKENS] for arm in (new, old))
    prices = gate.prices
    at = "" if prices == config.Prices() else f"; priced {prices.context:g}, {prices.cached:g} and {prices.sampled:g}"
    return (
        f"a rollout reads {read} tokens, {cached} of them cached, and samples {written}; "
        f"champion {was[0]}, {was[1]} and {was[2]}{at}"
    )


def _mean(arm: Arm, what: Counted) -> str:
    """Average over examples the means over their rollouts, as the check does."""
    rows = ([count for count in row.counts(what) if count is not None] for row in arm.sampled.rows)
    means = [fmean(row) for row in rows if row]
    return f"{fmean(means):,.0f}" if means else "none"


def longest(gate: config.Gate, new: Arm, old: Arm, after: ById, before: ById) -> str:
    most, was = (stats.percentile(pooled(arm, "turns"), 0.95) for arm in (new, old))
    return f"{counted(int(most), 'turn')}, champion {was:g}"


def percent(what: str) -> Describe:
    """Say in how many rollouts of each arm the mark is set."""

    def describe(gate: config.Gate, new: Arm, old: Arm, after: ById, before: ById) -> str:
        return f"{_percent(after)} of the rollouts {what}, champion {_percent(before)}"

    return describe


def _percent(marks: ById) -> str:
    return f"{100 * fmean(mark for row in marks.values() for mark in row if mark is not None):.1f} %"
