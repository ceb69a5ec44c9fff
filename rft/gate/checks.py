"""The gate's conditions. Each compares an interval, paired by example, with its margin; at which
level is in levels.py, and the slices' veto in slices.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from rft import config, reports, stats
from rft.gate import evidence, levels, slices
from rft.reports import Arm, Check, Metric, wording

Timings = dict[str, Any]
"""A timing.json: {"rollout_s": {"challenger/<arm>/sampled": {"p50", "p95", "n"}, ...}, ...}."""


def of_arms(
    gate: config.Gate, challenger: reports.ChallengerReport, new: Arm, old: Arm, level: float
) -> Iterator[Check]:
    """Compare a candidate with the champion: the question first, at its level, then the guards."""
    paired = evidence.paired(gate)
    yield _question(gate, new, old, level)
    greedy = evidence.compare(evidence.scores(new), evidence.scores(old), paired)
    yield on_interval("greedy score", "non_inferiority", greedy, -gate.max_greedy_loss, evidence.unit("score", new))
    quantiles = evidence.seeded(gate, stats.quantile_difference)
    calls = evidence.compare(evidence.counts(new, "tool_calls"), evidence.counts(old, "tool_calls"), quantiles)
    yield on_interval("P95 tool calls", "non_inferiority", calls, gate.max_calls_p95_increase, "calls")
    yield hack_rate(gate, challenger.hack_source, new)
    yield from slices.vetoes(gate, new, old)


def _question(gate: config.Gate, new: Arm, old: Arm, level: float) -> Check:
    """Ask for the gain at the level that this look has."""
    gain = evidence.compare(evidence.rewards(new), evidence.rewards(old), levels.interval(level))
    detail = f"{evidence.size(new)}{evidence.unserved(new)}; {wording.price(gate.alpha, gate.looks, level)}"
    unit = evidence.unit("reward", new)
    return on_interval("mean reward", "superiority", gain, gate.min_gain, unit, detail, level=level)


def on_interval(
    name: str,
    kind: Literal["superiority", "non_inferiority"],
    found: Metric | None,
    margin: float,
    unit: str,
    detail: str = "",
    decides: bool = True,
    level: float = levels.GUARD,
) -> Check:
    """Pass an interval on the good side of its margin. One that ends exactly there is not worse,
    but not superior. `level`: at which one-sided level each end was computed."""
    check = Check(name=name, kind=kind, passed=None, value=None, margin=margin, unit=unit, decides=decides, level=level)
    if found is None:
        return check.model_copy(update={"detail": "no example has a score in both arms"})
    if found.low is None or found.high is None:
        return check.model_copy(update={"detail": "a single example has a score in both arms", "n": found.n})
    if kind == "superiority":
        good, bad = found.low > margin, found.high < margin
    elif check.is_better_above:
        good, bad = found.low >= margin, found.high < margin
    else:
        good, bad = found.high <= margin, found.low > margin
    numbers = {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
    passed = good if good or bad else None
    return check.model_copy(
        update=numbers | {"passed": passed, "detectable": _detectable(found, level), "detail": detail}
    )


def _detectable(found: Metric, level: float) -> float | None:
    """Return the detectable effect; None for an interval without width, which could hide any."""
    error = stats.standard_error(found, 1 - 2 * level)
    return stats.minimum_detectable(error, confidence=1 - 2 * level) if error > 0 else None


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
