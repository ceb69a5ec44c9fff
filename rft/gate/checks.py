"""The gate's conditions. Each compares an interval, paired by example, with its margin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from rft import config, reports, stats
from rft.gate import evidence
from rft.reports import Arm, Check, Metric, wording

Timings = dict[str, Any]
"""A timing.json: {"rollout_s": {"challenger/<arm>/sampled": {"p50", "p95", "n"}, ...}, ...}."""


def of_arms(gate: config.Gate, challenger: reports.ChallengerReport, new: Arm, old: Arm) -> Iterator[Check]:
    """Compare a candidate with the champion: the question first, then the guards."""
    paired, reward = evidence.paired(gate), evidence.unit("reward", new)
    gain = evidence.compare(evidence.rewards(new), evidence.rewards(old), paired)
    yield on_interval("mean reward", "superiority", gain, gate.min_gain, reward, evidence.size(new))
    greedy = evidence.compare(evidence.scores(new), evidence.scores(old), paired)
    yield on_interval("greedy score", "non_inferiority", greedy, -gate.max_greedy_loss, evidence.unit("score", new))
    quantiles = evidence.seeded(gate, stats.quantile_difference)
    calls = evidence.compare(evidence.counts(new, "tool_calls"), evidence.counts(old, "tool_calls"), quantiles)
    yield on_interval("P95 tool calls", "non_inferiority", calls, gate.max_calls_p95_increase, "calls")
    yield _tokens(gate, new, old)
    yield hack_rate(gate, challenger.hack_source, new)
    for name in sorted({row.slice for row in new.sampled.rows}):
        gain = evidence.compare(evidence.rewards(new, name), evidence.rewards(old, name), paired)
        yield on_interval(
            f"slice {name}", "non_inferiority", gain, -gate.max_slice_loss, reward, evidence.size(new, name)
        )
    yield _unscored(gate, new, old)


def on_interval(
    name: str,
    kind: Literal["superiority", "non_inferiority"],
    found: Metric | None,
    margin: float,
    unit: str,
    detail: str = "",
    decides: bool = True,
) -> Check:
    """Pass an interval on the good side of its margin. One that ends exactly there is not worse,
    but not superior."""
    check = Check(name=name, kind=kind, passed=None, value=None, margin=margin, unit=unit, decides=decides)
    if found is None:
        return check.model_copy(update={"detail": "no example has a score in both arms"})
    assert found.low is not None
    assert found.high is not None
    if kind == "superiority":
        good, bad = found.low > margin, found.high < margin
    elif check.is_better_above:
        good, bad = found.low >= margin, found.high < margin
    else:
        good, bad = found.high <= margin, found.low > margin
    numbers = {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
    passed = good if good or bad else None
    return check.model_copy(update=numbers | {"passed": passed, "detectable": _detectable(found), "detail": detail})


def _detectable(found: Metric) -> float | None:
    """Return the detectable effect; None for an interval without width, which could hide any."""
    error = stats.standard_error(found)
    return stats.minimum_detectable(error) if error > 0 else None


def _tokens(gate: config.Gate, new: Arm, old: Arm) -> Check:
    before = evidence.counts(old, "tokens")
    if not any(any(x or 0 for x in row) for row in before.values()):
        return Check(
            name="tokens",
            kind="non_inferiority",
            passed=None,
            value=None,
            margin=gate.max_tokens_increase,
            decides=False,
            detail="this policy reports no tokens",
        )
    change = evidence.compare(evidence.counts(new, "tokens"), before, evidence.seeded(gate, stats.relative_difference))
    return on_interval("tokens", "non_inferiority", change, gate.max_tokens_increase, "relative")


def hack_rate(gate: config.Gate, source: reports.HackSource, new: Arm) -> Check:
    """Count an example once, however many of its rollouts hacked: rollouts of one example tend to
    hack together."""
    rows = [*new.sampled.rows, *new.greedy.rows]
    scored = {row.example_id for row in rows if evidence.any_score(row.rewards)}
    hacked = {row.example_id for row in rows if row.hacks}
    count, n = len(hacked), len(scored | hacked)
    if not source.is_measured:
        seen = f"; {count} examples were flagged all the same" if count else ""
        return Check(
            name=wording.HACK_RATE,
            kind="non_inferiority",
            passed=False if gate.require_hack_source else None,
            value=None,
            margin=gate.max_hack_rate,
            unit="share",
            decides=gate.require_hack_source,
            detail=("not measured: " if gate.require_hack_source else "") + source.words + seen,
        )
    rate = stats.exact_interval(count, n) if n else None
    check = on_interval(wording.HACK_RATE, "non_inferiority", rate, gate.max_hack_rate, "share")
    left_out = len({row.example_id for row in rows}) - n
    unseen = f", {left_out} without a score left out" if left_out else ""
    detail = f"{count} of {n} examples with a hacked rollout{unseen}; {source.words}"
    return check.model_copy(update={"detectable": None, "detail": detail})


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


def _unscored_share(arm: Arm) -> float:
    rewards = [reward for row in (*arm.sampled.rows, *arm.greedy.rows) for reward in row.rewards]
    return sum(reward is None for reward in rewards) / len(rewards) if rewards else 1.0


def latency(gate: config.Gate, timings: Timings, candidate: str) -> Check:
    """Compare P95 seconds per rollout. One number per arm, from a machine that had other things to
    do: no interval."""
    measured = timings.get("rollout_s", {})
    new, old = (measured.get(f"challenger/{arm}/sampled", {}).get("p95") for arm in (candidate, "champion"))
    known = bool(new is not None and old)
    value = new / old - 1 if known else None
    return Check(
        name="P95 latency",
        kind="non_inferiority",
        passed=value <= gate.max_latency_increase if value is not None else None,
        value=value,
        margin=gate.max_latency_increase,
        unit="relative",
        decides=gate.latency_decides,
        detail=f"{new:.2f} s per rollout, champion {old:.2f} s" if known else "no seconds are on record",
    )
