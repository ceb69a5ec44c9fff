"""The figure of drift under its null: how often is a window called drifted that has not changed?

Both windows of a pair are drawn from the same population (bench/drift_worlds.py). They are compared
as in a run: 16 features, their q-values and thresholds, with the settings that ship. A pair counts
if any feature is called drifted. At most a share `drift.alpha` of the pairs may count. The worlds
differ in how conversations depend on each other: not at all, through users, or in bursts. Users
have 5, 10 and 30 conversations, and 30 % and 50 % of a conversation's traits belong to its user.
Worlds also differ in how unlike the windows are in size and users. Each rate has its exact
interval. It holds unless its lower 95 % limit lies above the promise: 1 %, and 2 false alarms a
year with weekly windows.

Real traffic also differs from day to day. So there are also worlds where a share of a
conversation's traits belongs to its day. They show the rate with and without a look at days.

Beside each rate stands what the q-values alone would have called, whatever the effect. On fewer
pairs it is also shown what they would have called if every conversation were independent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.drift_worlds import Window, World, pair
from bench.measure import Figure, Part
from rft import stats
from rft.config import Drift
from rft.drift import comparison
from rft.reports import FeatureDrift, Profile

PAIRS, NAIVE_PAIRS, DAY_PAIRS = 500, 50, 100
SMALL_PAIRS, SMALL_NAIVE_PAIRS = 5, 3
WEEKLY = Drift(false_alarms_per_year=2, looks_per_year=52)
SHIPPED = Drift()
_USERS = tuple((per_user, icc) for per_user in (5, 10, 30) for icc in (0.3, 0.5))
WORLDS = (
    World("independent conversations"),
    *(World(f"users of {per_user}, ICC {icc}", per_user=per_user, icc=icc) for per_user, icc in _USERS),
    World("bursts of calls", bursty=True),
    World("10,000 against 300", reference=10_000, current=300),
    World("10,000 of users of 1 against 300 of users of 3, ICC 0.5", 10_000, 300, 3, 1, 0.5),
)
DAYS = (
    World("days differ by 2 %, 7 against 7", of_day=0.02),
    World("days differ by 2 %, 28 against 7", 4000, 1000, reference_days=28, of_day=0.02),
    World("days differ by 5 %, 14 against 7", 2000, 1000, reference_days=14, of_day=0.05),
    World("days differ by 5 %, 28 against 1", 4000, 300, reference_days=28, days=1, of_day=0.05),
)


@dataclass(slots=True)
class Tally:
    """Counts the pairs of a world in which anything was called."""

    pairs: int = 0
    drifted: int = 0
    weekly: int = 0
    by_q: int = 0
    naive: int = 0
    features: dict[str, int] = field(default_factory=dict)


def drift_false_alarms(args: list[str]) -> Figure:
    """Windows without a change that are called drifted: at most drift.alpha."""
    small = "--small" in args
    num, num_naive = (SMALL_PAIRS, SMALL_NAIVE_PAIRS) if small else (PAIRS, NAIVE_PAIRS)
    chosen = [world for world in WORLDS if not small or world.per_user == 30]
    tallies = {world.name: measured(world, number, num, num_naive) for number, world in enumerate(chosen)}
    parts = [part for name, tally in tallies.items() for part in _parts(name, tally, num_naive)]
    worst = max(part.value or 0 for part in parts if part.at_most == SHIPPED.level)
    headline = "lower 95 % limit of the share of unchanged windows that are called drifted, the largest of all worlds"
    first = Part(headline, worst, "share", at_most=SHIPPED.level, n=num)
    if not small:
        parts += [part for number, world in enumerate(DAYS) for part in _between_days(world, number)]
    return Figure((first, *parts), {name: tally.features for name, tally in tallies.items()})


FIGURES = {"drift_false_alarms": drift_false_alarms}


def measured(world: World, number: int, num: int, num_naive: int, seed: int = 0) -> Tally:
    """Compare `num` pairs of a world, a few of them also as if conversations were independent."""
    tally = Tally()
    for n in range(num):
        reference, current = pair(world, (seed, number, n))
        loose = compared(reference, current, WEEKLY)
        rows = comparison.control(loose, SHIPPED)
        tally.pairs += 1
        tally.drifted += any(row.drifted for row in rows)
        tally.by_q += any((row.q_value or 0) < SHIPPED.level for row in rows if row.q_value is not None)
        tally.weekly += any(row.drifted for row in comparison.control(loose, WEEKLY))
        for row in rows:
            if row.drifted:
                tally.features[row.feature] = tally.features.get(row.feature, 0) + 1
        if n < num_naive:
            naive = compared(without(reference, cells=[], days=[]), without(current, cells=[], days=[]), WEEKLY)
            tally.naive += any(row.drifted for row in comparison.control(naive, SHIPPED))
    summary = (
        f"{tally.drifted} drifted, {tally.weekly} at the weekly level, {tally.by_q} by q alone, {tally.naive} naive"
    )
    print(f"{world.name}: {num} pairs: {summary}; {tally.features}", file=sys.stderr, flush=True)
    return tally


def _between_days(world: World, number: int) -> Iterator[Part]:
    """Compare windows whose days differ, once as a run does and once without a look at days."""
    seeing = blind = 0
    for n in range(DAY_PAIRS):
        reference, current = pair(world, (1, number, n))
        rows = compared(reference, current, SHIPPED)
        seeing += any(row.drifted for row in comparison.control(rows, SHIPPED))
        rows = compared(without(reference, days=[]), without(current, days=[]), SHIPPED)
        blind += any(row.drifted for row in comparison.control(rows, SHIPPED))
    summary = f"{seeing} drifted, {blind} without a look at days"
    print(f"{world.name}: {DAY_PAIRS} pairs: {summary}", file=sys.stderr, flush=True)
    yield from _rate(f"{world.name}: called drifted", seeing, DAY_PAIRS)
    yield from _rate(f"{world.name}: called drifted without a look at days", blind, DAY_PAIRS)


def compared(reference: Window, current: Window, settings: Drift) -> list[FeatureDrift]:
    """Compare at the looser level: what is called at a stricter one exceeds its noise too."""
    return comparison.compare(reference.profile, current.profile, settings, "window")


def without(window: Window, **update: list[list[int]]) -> Window:
    """Forget who said what, or when. Without `cells` every count is a unit, as in a chi-square
    test."""
    bare = {name: feature.model_copy(update=update) for name, feature in window.profile.features.items()}
    held = window.profile
    return Window(Profile(source=held.source, num_conversations=held.num_conversations, features=bare))


def _parts(name: str, tally: Tally, num_naive: int) -> Iterator[Part]:
    yield from _rate(f"{name}: called drifted", tally.drifted, tally.pairs, SHIPPED.level)
    yield from _rate(f"{name}: called drifted at 2 false alarms a year", tally.weekly, tally.pairs, WEEKLY.level)
    yield from _rate(f"{name}: q below alpha, whatever the effect", tally.by_q, tally.pairs)
    yield from _rate(f"{name}: called drifted if every count were independent", tally.naive, num_naive)


def _rate(what: str, count: int, num: int, nominal: float | None = None) -> Iterator[Part]:
    """Yield a share with its exact interval and, if one is promised, its bound."""
    share = stats.exact_interval(count, num)
    yield Part(what, share.value, "share", low=share.low, high=share.high, n=num)
    if nominal is not None:
        low = stats.exact_interval(count, num, confidence=0.9).low
        yield Part(f"{what}: lower 95 % limit", low, "share", at_most=nominal, n=num)
