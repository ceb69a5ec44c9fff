"""Compute how many more test examples would settle what the gate left open.

`inconclusive` is not a verdict on the candidate: the interval of some check spans its margin.
Whether a larger set is worth another look depends on one number. It is computed here for each open
check, as if its true value were the observed one. The largest number is the decision's.

    means, differences   the interval narrows with the square root of the number of examples. Its
                         half on the margin's side must fit into the gap between value and margin
    P95 of calls, turns  the same. The ends of these intervals are whole numbers and move in steps,
                         so the first step may come earlier
    hack rate            exact: a search finds the smallest number at which the limit passes the
                         margin. Where no rollout hacked, the limit falls in proportion to the
                         number

Each number has a power of 80 %: with so many examples the check is settled in four of five cases.
It assumes that the new examples alone must show it; the ones already seen count again, which helps.
With several open checks the chance is smaller, because each must be settled. A value next to its
margin would need more examples than anybody has; then there is no number, and the advice is
different.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rft import stats
from rft.formatting import counted, rounded_up
from rft.reports import Check
from rft.reports.wording import HACK_RATE

POWER = 0.8
_MAX_FACTOR = 100  # if it takes more than this many times our examples, more examples are not the answer
_WORTH_ASKING_FOR = 1000
"""The most test examples that a user may be asked for, or four times as many as there are, if that
is more: four times as many halve an interval."""


def num_more(checks: Sequence[Check]) -> int | None:
    """Return how many more test examples would probably settle every open check. None where nothing
    is open, something was not measured, or no realistic number is enough."""
    open_ = [check for check in checks if check.is_unsettled]
    if not open_ or any(check.low is None for check in open_) or _hopeless(checks):
        return None
    return _needed(checks) - checks[0].n


def advice(checks: Sequence[Check]) -> str:
    """Say what to do about an inconclusive decision.

    It asks for more examples only where a realistic number of them settles every open check.
    """
    open_ = [check for check in checks if check.is_unsettled]
    if blind := [check for check in open_ if check.low is None]:
        why = "; ".join(f"{check.name} ({check.detail})" for check in blind)
        return f"First see why nothing was measured: {why}"
    num_now = checks[0].n
    if hopeless := _hopeless(checks):
        near = "the value lies so near the margin" if len(hopeless) == 1 else "the values lie so near their margins"
        return (
            f"Of {', '.join(hopeless)} {near} that more examples would hardly tell. What can settle it is a candidate "
            f"that lies further from it, or a margin that {counted(num_now, 'example')} can show, written down before "
            "the next run"
        )
    needed = _needed(checks)
    return (
        f"About {counted(needed - num_now, 'more test example')} would settle it: `rft runs extend RUN` adds blocks of "
        f"them to these; where the recipe offers none, raise examples.test from {num_now:,} to {needed:,}"
    )


def _hopeless(checks: Sequence[Check]) -> list[str]:
    num_now = checks[0].n
    most = max(_WORTH_ASKING_FOR, 4 * num_now)
    factors = {check.name: size_factor(check) for check in checks if check.is_unsettled}
    return [name for name, factor in factors.items() if factor is None or factor * num_now > most]


def _needed(checks: Sequence[Check]) -> int:
    factors = [size_factor(check) for check in checks if check.is_unsettled]
    num_now = checks[0].n
    return max(num_now + 1, rounded_up(max(factor for factor in factors if factor is not None) * num_now))


def size_factor(check: Check) -> float | None:
    """Compute by which factor to multiply the examples, so that they settle an open check at 80 %
    power if the true value is the observed one. None: no factor is enough, or a factor of a hundred
    is too small."""
    if check.passed is not None or check.margin is None:
        return None
    if check.value is None or check.low is None or check.high is None:
        return None
    if check.name == HACK_RATE and check.n:
        enough = _enough_of_a_rate(check.value, check.margin, check.n)
        return None if enough is None else enough / check.n
    gap = abs(check.value - check.margin)
    half = check.value - check.low if check.value > check.margin else check.high - check.value
    needed = (
        half
        * stats.minimum_detectable(1.0, POWER, check.confidence)
        / stats.minimum_detectable(1.0, 0.5, check.confidence)
    )
    return (needed / gap) ** 2 if gap * math.sqrt(_MAX_FACTOR) > needed else None


def _enough_of_a_rate(rate: float, margin: float, n: int) -> int | None:
    """Find the smallest number of examples that separates a share of this rate from the margin. Its
    exact limit must do so even on the unlucky count, which one set in five exceeds."""
    if rate == 0:
        return stats.enough_to_rule_out(margin)
    import numpy as np
    from scipy.stats import beta, binom  # takes a second to load, and most decisions do not need it

    sizes = np.arange(n + 1, _MAX_FACTOR * n + 1)
    if rate <= margin:
        unlucky = binom.ppf(POWER, sizes, rate)
        settled = beta.ppf(0.975, unlucky + 1, sizes - unlucky) <= margin
    else:
        unlucky = binom.ppf(1 - POWER, sizes, rate)
        settled = beta.ppf(0.025, unlucky, sizes - unlucky + 1) > margin
    return int(sizes[settled.argmax()]) if settled.any() else None
