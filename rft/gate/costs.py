"""What the candidate costs, compared with the champion: the guards beside the reward.

A higher reward can be bought: with a longer prompt, with more turns, with calls that are tried
until one can be read, with rollouts that end without a score. Each has a check of its own.

    token cost         all tokens of a rollout, read and sampled, at `gate.prices`. Each turn reads
                       the whole dialogue again, so a longer prompt is paid in each
                       (rft.types.Usage)
    P95 turns          how long the longest rollouts are
    unreadable calls   the share of rollouts with a tool call that could not be read
    abstentions        the share of rollouts that say "I don't know" where there is an answer
    unscored share     a bound on both arms: above it the comparison is not trusted
    unscored increase  the candidate's share less the champion's: below that bound, too, a candidate
                       whose rollouts get lost is not better

All but the bound are intervals of differences, paired by example, as in rft/gate/checks.py. If some
scored rollouts did not count what they read, the cost is *not measured*, because they could be the
expensive ones, and the check keeps its vote. It has none where no arm counts anything, because
behind an endpoint without `usage` nothing could ever be promoted; the reason then names what was
not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from rft import config, stats
from rft.gate import evidence
from rft.gate.checks import on_interval
from rft.reports import Arm, Check, wording
from rft.reports.evaluation import Counted
from rft.words import counted

_TOKENS: tuple[Counted, ...] = ("context_tokens", "cached_tokens", "tokens")


def of_arms(gate: config.Gate, new: Arm, old: Arm) -> Iterator[Check]:
    yield _cost(gate, new, old)
    yield _turns(gate, new, old)
    yield _unreadable(gate, new, old)
    yield from _abstentions(gate, new, old)
    yield _unscored(gate, new, old)
    yield _unscored_increase(gate, new, old)


# -- tokens ----------------------------------------------------------------------------------------
def _cost(gate: config.Gate, new: Arm, old: Arm) -> Check:
    uncounted, scored = _uncounted(new) + _uncounted(old), _scored(new) + _scored(old)
    if not uncounted:
        method = evidence.seeded(gate, stats.relative_difference)
        change = evidence.compare(_paid(new, gate.prices), _paid(old, gate.prices), method)
        detail = _spent(gate.prices, new, old)
        return on_interval(wording.COST, "non_inferiority", change, gate.max_tokens_increase, "relative", detail)
    why = "the policy does not count the tokens that it reads: the replies of its server hold no usage"
    if uncounted < scored:
        why = f"{uncounted:,} of {counted(scored, 'scored rollout')} did not count the tokens that they read"
    return Check(
        name=wording.COST,
        kind="non_inferiority",
        passed=None,
        value=None,
        margin=gate.max_tokens_increase,
        unit="relative",
        decides=uncounted < scored,
        detail=why,
    )


def _scored(arm: Arm) -> int:
    return sum(score is not None for row in arm.sampled.rows for score in row.scores)


def _uncounted(arm: Arm) -> int:
    """Count the scored rollouts whose context is not on record, or is said to be empty."""
    return _scored(arm) - sum(count > 0 for count in _pooled(arm, "context_tokens"))


def _paid(arm: Arm, prices: config.Prices) -> stats.ById:
    """Return what each scored rollout costs."""
    read, cached, written = (evidence.counts(arm, what) for what in _TOKENS)
    return {id: [_price(prices, *of) for of in zip(read[id], cached[id], written[id], strict=True)] for id in read}


def _price(prices: config.Prices, read: float | None, cached: float | None, written: float | None) -> float | None:
    if read is None or cached is None or written is None:
        return None
    return (read - cached) * prices.context + cached * prices.cached + written * prices.sampled


def _spent(prices: config.Prices, new: Arm, old: Arm) -> str:
    """Say what a rollout of each arm reads and writes."""
    (read, cached, written), was = ([_mean(arm, what) for what in _TOKENS] for arm in (new, old))
    at = "" if prices == config.Prices() else f"; priced {prices.context:g}, {prices.cached:g} and {prices.sampled:g}"
    return (
        f"a rollout reads {read} tokens, {cached} of them cached, and samples {written}; "
        f"champion {was[0]}, {was[1]} and {was[2]}{at}"
    )


def _mean(arm: Arm, what: Counted) -> str:
    """Average over examples the means over their rollouts, as the check does."""
    rows = ([count for count in row if count is not None] for row in evidence.counts(arm, what).values())
    means = [fmean(row) for row in rows if row]
    return f"{fmean(means):,.0f}" if means else "none"


# -- turns, and calls that cannot be read ----------------------------------------------------------
def _turns(gate: config.Gate, new: Arm, old: Arm) -> Check:
    method = evidence.seeded(gate, stats.quantile_difference)
    change = evidence.compare(evidence.counts(new, "turns"), evidence.counts(old, "turns"), method)
    check = on_interval(wording.TURNS, "non_inferiority", change, gate.max_turns_p95_increase, "turns")
    if change is None:
        return _unrecorded(check, new, old, "turns")
    after, before = (stats.percentile(_pooled(arm, "turns"), 0.95) for arm in (new, old))
    return check.model_copy(update={"detail": f"{counted(int(after), 'turn')}, champion {before:g}"})


def _unreadable(gate: config.Gate, new: Arm, old: Arm) -> Check:
    after, before = (_with_unreadable(arm) for arm in (new, old))
    change = evidence.compare(after, before, evidence.paired(gate))
    check = on_interval(wording.UNREADABLE, "non_inferiority", change, gate.max_unreadable_increase, "points")
    if change is None:
        return _unrecorded(check, new, old, "unreadable_calls")
    detail = f"{_percent(after)} of the rollouts wrote one, champion {_percent(before)}"
    return check.model_copy(update={"detail": detail})


def _with_unreadable(arm: Arm) -> stats.ById:
    """Mark each scored rollout: 1 with an unreadable call, 0 without."""
    counts = evidence.counts(arm, "unreadable_calls")
    return {id: [None if count is None else float(count > 0) for count in row] for id, row in counts.items()}


# -- abstentions -----------------------------------------------------------------------------------
def _abstentions(gate: config.Gate, new: Arm, old: Arm) -> Iterator[Check]:
    """Yield the check where grades tell of abstentions, or are asked to. Without a margin it is
    shown and decides nothing."""
    after, before = (_abstained(arm) for arm in (new, old))
    margin, told = gate.max_abstention_increase, any(map(evidence.any_score, [*after.values(), *before.values()]))
    if margin is None and not told:
        return
    change = evidence.compare(after, before, evidence.paired(gate))
    check = on_interval(wording.ABSTENTIONS, "non_inferiority", change, margin or 0.0, "points")
    detail = check.detail if told else "no grade tells whether a rollout abstained"
    if change is not None:
        detail = f"{_percent(after)} of the rollouts with an answer to give abstained, champion {_percent(before)}"
    if margin is None:
        detail = f"gate.max_abstention_increase is not set; {detail}"
        check = check.model_copy(update={"decides": False, "margin": None, "passed": None})
    yield check.model_copy(update={"detail": detail})


def _abstained(arm: Arm) -> stats.ById:
    """Mark each scored rollout of an example that has an answer: 1 if it abstained."""
    return {
        row.example_id: [None if mark is None else float(mark) for mark in row.abstained or [None] * len(row.scores)]
        for row in arm.sampled.rows
    }


def _unrecorded(check: Check, new: Arm, old: Arm, what: Counted) -> Check:
    """Tell a report that does not say from arms that have no score in common."""
    if all(_pooled(arm, what) or not _scored(arm) for arm in (new, old)):
        return check
    return check.model_copy(update={"detail": "an older version of agent-rft, which did not record it, rolled out"})


def _pooled(arm: Arm, what: Counted) -> list[float]:
    return [count for row in evidence.counts(arm, what).values() for count in row if count is not None]


# -- unscored --------------------------------------------------------------------------------------
def _unscored(gate: config.Gate, new: Arm, old: Arm) -> Check:
    """Judge the arm with more unscored rollouts."""
    share, name = max((_unscored_share(arm), arm.name) for arm in (new, old))
    return Check(
        name="unscored share",
        kind="state",
        passed=share <= gate.max_unscored_share,
        value=share,
        margin=gate.max_unscored_share,
        unit="share",
        detail=f"worse arm: {name}",
    )


def _unscored_increase(gate: config.Gate, new: Arm, old: Arm) -> Check:
    after, before = _without_score(new), _without_score(old)
    change = evidence.compare(after, before, evidence.paired(gate))
    detail = f"{_percent(after)} of the rollouts have no score, champion {_percent(before)}"
    return on_interval(wording.UNSCORED, "non_inferiority", change, gate.max_unscored_increase, "points", detail)


def _unscored_share(arm: Arm) -> float:
    rewards = [reward for row in (*arm.sampled.rows, *arm.greedy.rows) for reward in row.rewards]
    return sum(reward is None for reward in rewards) / len(rewards) if rewards else 1.0


def _without_score(arm: Arm) -> stats.ById:
    """Mark each rollout, greedy ones too: 1 without a score, 0 with one."""
    marks: dict[str, list[float]] = {}
    for row in (*arm.sampled.rows, *arm.greedy.rows):
        marks.setdefault(row.example_id, []).extend(float(reward is None) for reward in row.rewards)
    return marks


def _percent(marks: stats.ById) -> str:
    return f"{100 * fmean(mark for row in marks.values() for mark in row if mark is not None):.1f} %"
