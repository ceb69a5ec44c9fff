"""Say what moved, in words and in bars, for people.

A number is summed up by its mean and quantiles, and shown in about ten ranges that hold equal
counts of both sides together. A category is shown by the values that moved most; the rest share one
bar.

Arrays: B = bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rft.drift import effects
from rft.reports import Bar, Feature

Names = Callable[[str], str]
"""Names a value for people."""
MOST_BARS = 12
NUMBER_BARS = 10


# -- words -----------------------------------------------------------------------------------------
def summary(feature: Feature, names: Names) -> str:
    """Summarize one side."""
    if feature.kind == "numeric" and sum(feature.counts):
        mean = "" if feature.mean is None else f"mean {feature.mean:.4g}, "
        return f"{mean}P50 {_quantile(feature, 0.5):.3g}, P95 {_quantile(feature, 0.95):.3g}"
    if feature.kind == "category" and sum(feature.counts):
        share = effects.shares(feature.counts)
        top = sorted(range(len(share)), key=lambda n: (-share[n], feature.values[n]))[:3]
        return ", ".join(f"{names(feature.values[n])} {share[n]:.0%}" for n in top if share[n])
    return f"{feature.n} conversations"


def moved(values: Sequence[str], reference_B: Any, current_B: Any, names: Names) -> str:
    """Name the three values that moved most."""
    before, now = effects.shares(reference_B), effects.shares(current_B)
    # A hash bucket is named by a word of this window, which does not say what the bucket lost.
    gap = np.abs(now - before) if names is str else now - before
    most = sorted(range(len(values)), key=lambda n: (-gap[n], values[n]))[:3]
    shares = ", ".join(f"{names(values[n])} {before[n]:.1%} -> {now[n]:.1%}" for n in most if now[n] != before[n])
    return shares or "the same shares on both sides"


def _quantile(feature: Feature, level: float) -> float:
    """Find a quantile of the histogram: the middle of the bin where it falls."""
    at = int(np.searchsorted(np.cumsum(feature.counts), level * sum(feature.counts)))
    return float(effects.positions(feature.edges)[at])


# -- bars ------------------------------------------------------------------------------------------
def number_bars(edges: Sequence[float], reference_B: Any, current_B: Any) -> list[Bar]:
    """Show a number in ranges with equal counts of both sides together."""
    reference, current = effects.shares(reference_B), effects.shares(current_B)
    met = np.flatnonzero(reference + current)
    if not len(met):
        return []
    # Both sides have equal weight, so that a short window is visible beside a long one.
    range_B = effects.equal_bins((reference + current) * 1e6, NUMBER_BARS)
    bars: list[Bar] = []
    for number in range(int(range_B.max()) + 1):
        inside = np.flatnonzero(range_B == number)
        shares = [round(float(side[inside].sum()), 6) for side in (reference, current)]
        if sum(shares):
            bars.append(Bar(label=_range(edges, inside[0], inside[-1]), reference=shares[0], current=shares[1]))
    return bars


def category_bars(values: Sequence[str], reference_B: Any, current_B: Any, names: Names) -> list[Bar]:
    """Show the values that moved most, most frequent first, and the rest together."""
    reference, current = effects.shares(reference_B), effects.shares(current_B)
    met = [n for n in range(len(values)) if reference[n] + current[n] > 0]
    most = sorted(met, key=lambda n: (-abs(current[n] - reference[n]), values[n]))
    kept = most if len(most) <= MOST_BARS else most[: MOST_BARS - 1]
    kept = sorted(kept, key=lambda n: (-max(reference[n], current[n]), values[n]))
    bars = [_bar(names(values[n]), reference[n], current[n]) for n in kept]
    if len(kept) < len(met):
        shares = [1 - sum(side[n] for n in kept) for side in (reference, current)]
        bars.append(_bar(f"{len(met) - len(kept)} others", *shares))
    return bars


def _bar(label: str, reference: float, current: float) -> Bar:
    return Bar(label=label, reference=round(float(reference), 6), current=round(float(current), 6))


def _range(edges: Sequence[float], first: int, last: int) -> str:
    """Name the range of bins `first` to `last`. Edges of counts lie halfway between whole
    numbers."""
    low = edges[first - 1] if first > 0 else None
    high = edges[last] if last < len(edges) else None
    if low is None and high is None:
        return "all"
    if len(edges) > 1 and edges[0] == 0.5 and edges[1] == 1.5:
        return _whole_range(low, high)
    if low is None or high is None:
        return f"up to {high:.3g}" if low is None else f"above {low:.3g}"
    return f"{low:.3g} to {high:.3g}"


def _whole_range(low: float | None, high: float | None) -> str:
    least = 0 if low is None else math.floor(low) + 1
    if high is None:
        return f"{least} or more"
    most = math.floor(high)
    return f"{most}" if least == most else f"{least} to {most}"
