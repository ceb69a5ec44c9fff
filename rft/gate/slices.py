"""Give each slice a veto: a candidate that is better on average must not be worse for some.

A guard that must show "no loss" in each of ten slices would block almost every good candidate. A
slice is small: at 30 examples an interval is as wide as 0.3. A guard that rejects anything that
looks like a loss would reject one in four by chance. So a slice has a veto instead. It rejects a
loss that is *shown* to be beyond `gate.max_slice_loss`; otherwise it stays open, which blocks
nothing. The check also says what it cannot see.

*The test.* H0 for each slice: the mean reward falls by at most the margin. The test is a one-sided
t test on the differences of example means. Holm's step-down over the slices keeps the chance that
any of them vetoes falsely at 2.5 %.

*Few examples.* Two examples that got worse by the same amount have no spread, and a t test is then
sure of anything. So one imaginary example is added to the slice, which contradicts the result most:
for a loss, one that gained the whole range; for a pass, one that lost it. It outweighs a handful of
examples and hardly counts beside a hundred. The table has the share that is rejected falsely, of
200,000 slices of each kind and at the worst size (margin 0.05). The first number is at 2.5 %, the
level of a single slice; the second at 0.25 %, that of Holm's first step over ten.

                                                             plain t test       with the imaginary
    2 to 30 examples, equal policies, binary rewards,
    solved in 2, 50 or 98 %, 1 and 4 rollouts each           6.24 %, 6.24 %     0.38 %, 0.02 %
    5 to 200, the loss on the margin, lost or unchanged      0.59 %, 0.02 %     0.26 %, 0.00 %
    the same, each example lost or gained                    4.84 %, 3.95 %     2.30 %, 0.24 %
    the same, a loss of 0.1 that 1 in 22 makes up for        79.2 %, 79.2 %     1.83 %, 0.94 %

So only the last kind remains: at Holm's first step it is rejected more often than the level says.

`needed_for_veto` is the size of a slice in which a loss of twice the margin is rejected in 80 %, at
the level of Holm's first step. That is the strictest level, which a slice meets if it alone loses.
The size takes the spread of the slice's own differences or of the whole test's, whichever is
larger, because a few examples may look alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rft import config, stats
from rft.gate import evidence, pool
from rft.reports import Arm, Check
from rft.stats import Floats

LEVEL = 0.025
"""The chance that any slice vetoes a candidate that loses no more than the margin in each."""
POWER = 0.8
_MOST = 10_000_000
"""More examples than anybody has."""
_HALVINGS = 20
"""Halvings of the range: they find a loss to a millionth of it."""


@dataclass(frozen=True, slots=True)
class Tested:
    """The result for one slice: both ends of its interval, and the p-value of a loss beyond the
    margin."""

    low: float
    high: float
    p: float


def vetoes(gate: config.Gate, new: Arm, old: Arm) -> Iterator[Check]:
    """Judge each large slice, and the small ones together."""
    counts = Counter(row.slice for row in new.sampled.rows)
    groups = pool.judged(counts, gate.min_slice)
    gains = [_gains(new, old, {*group.slices}) for group in groups]
    tested = {i: test(gain, gate.max_slice_loss) for i, gain in enumerate(gains) if len(gain) > 1}
    adjusted = dict(zip(tested, stats.holm([found.p for found in tested.values()]), strict=True))
    overall = _spread(_gains(new, old, {*counts}))
    for i, (group, gain) in enumerate(zip(groups, gains, strict=True)):
        size = evidence.size(new, {*group.slices})
        check = Check(
            name=group.name,
            kind="veto",
            passed=None,
            value=None,
            margin=-gate.max_slice_loss,
            unit=evidence.unit("reward", new),
            level=LEVEL,
        )
        if i not in tested:
            seen = "no example has" if not len(gain) else "a single example has"
            yield check.model_copy(update={"detail": f"{seen} a score in both arms; {group.what or size}"})
            continue
        found, p = tested[i], adjusted[i]
        spread, strictest = max(_spread(gain), overall), LEVEL / len(tested)
        passed = False if p <= LEVEL else True if found.low >= -gate.max_slice_loss else None
        description = f"{size}; loss beyond the margin: p {p:.2g}" + (
            f", Holm over {len(tested)}" if len(tested) > 1 else ""
        )
        yield check.model_copy(
            update={
                "passed": passed,
                "value": math.fsum(gain) / len(gain),
                "low": found.low,
                "high": found.high,
                "n": len(gain),
                "detectable": detectable(len(gain), spread, gate.max_slice_loss, strictest),
                "needed_for_veto": needed(spread, gate.max_slice_loss, strictest),
                "detail": f"{group.what}; {description}" if group.what else description,
            }
        )


def test(gains: Floats, margin: float) -> Tested:
    """Test at least two examples for a loss beyond the margin."""
    falsely_better, falsely_worse = np.append(gains, 1.0), np.append(gains, -1.0)
    low, high = stats.t_interval(falsely_worse)[0], stats.t_interval(falsely_better)[1]
    value = math.fsum(gains) / len(gains)
    return Tested(min(low, value), max(high, value), stats.t_below(falsely_better, -margin))


def needed(spread: float, margin: float, level: float) -> int | None:
    """Find the smallest slice in which a loss of twice the margin is rejected with a power of 80 %;
    None where no size is enough, as for a margin of zero."""
    loss = 2 * margin
    if not _shows(_MOST, loss, spread, margin, level):
        return None
    low, high = 1, 2
    while not _shows(high, loss, spread, margin, level):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _shows(middle, loss, spread, margin, level) else (middle, high)
    return high


def detectable(n: int, spread: float, margin: float, level: float) -> float | None:
    """Find how far beyond the margin a loss must lie to be rejected with a power of 80 %; None
    where not even a loss of the whole range would be."""
    low, high = margin, 1.0
    if low >= high or not _shows(n, high, spread, margin, level):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _shows(n, middle, spread, margin, level) else (middle, high)
    return high - margin


def _shows(n: int, loss: float, spread: float, margin: float, level: float) -> bool:
    """Return whether n examples, and the imaginary one, reject a loss."""
    beyond = (n * (loss - margin) - 1 - margin) / (n + 1)
    error = math.sqrt((spread**2 + (1 + loss) ** 2 / (n + 1)) / (n + 1))
    luck = NormalDist().inv_cdf(POWER) * spread * math.sqrt(n) / (n + 1)
    return beyond - luck >= stats.t_quantile(level, n) * error


def _gains(new: Arm, old: Arm, slices: set[str]) -> Floats:
    return stats.paired_differences(evidence.rewards(new, slices), evidence.rewards(old, slices))


def _spread(gains: Floats) -> float:
    return float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
