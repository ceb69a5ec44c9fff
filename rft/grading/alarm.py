"""Raise an alarm when failures depend on what the policy does: it could learn to fail on purpose.

A rollout whose tool or grader failed is unscored. That is right for an outage, which the policy did
not cause. But a tool may fail only for some arguments: a long query, one code, five calls at once.
Then a policy can make such a call to get out of a bad rollout. Rewards do not show that, but a
comparison of failed calls with the others does. `find` compares them, feature by feature:

    the tool itself         against other tools
    an argument is given
    an argument's value     if it occurs at least MIN_COUNT times
    an argument's size      at least 2, 4, 8, ... characters or items, or a number's value
    calls in the turn       at least 2, 4, 8, ...
    the grader's answer     value and size, as if it were a tool

There is one table per feature: turns with it and without it, failed and not. The p-value is from
Fisher's exact one-sided test, stratified by the turn's number. The strata are needed because a
rollout ends with its first failure: in any outage first turns fail more than later ones, whatever
tool they call. A turn counts once, by its first call with the feature, because the calls of one
turn fail together when their rollout's environment is gone. The method of Benjamini and Hochberg
limits false alarms over all features to ALPHA, and the difference must be large enough to matter.
The strongest alarm is kept and its turns are removed. Then the other turns are tested again, so
that one cause gives one alarm.

Random failures, by call or by rollout, raise no alarm (tests/grading/test_alarm.py simulates both).
A short outage that hits the calls of a single example can raise one; `examples` shows that.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rft.types import INFRASTRUCTURE, Trajectory

ALPHA = 0.01
MIN_COUNT = 4
"""At least so many turns with the feature, and at least so many without it."""
MIN_FAILED = 3
"""At least so many failed turns with the feature."""
MIN_EFFECT = 0.2
"""The smallest difference of the failure shares that counts."""
MAX_ALARMS = 8
MAX_VALUE_CHARS = 60
GRADER = "grader"
_AT_THE_END = -1  # the stratum of all grades


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that was sent, or a grade that was asked for. `failed`: it still failed after all
    retries, and the server was to blame."""

    rollout_id: str
    example_id: str
    turn: int
    tool: str
    arguments: str  # JSON
    failed: bool
    num_in_turn: int = 1


@dataclass(frozen=True, slots=True)
class Alarm:
    """A feature whose turns fail more often. `p` is adjusted for the number of features. The counts
    are of turns, in strata that have turns with the feature and turns without it."""

    tool: str  # '' for calls of any tool
    feature: str
    num_with: int
    failed_with: int
    num_without: int
    failed_without: int
    p: float
    examples: int
    """How many examples the failures with the feature belong to."""

    @property
    def text(self) -> str:
        where = "1 example" if self.examples == 1 else f"{self.examples} examples"
        tool = f"{self.tool}: " if self.tool else ""
        return (
            f"{tool}{self.feature} fails {self.failed_with} of {self.num_with}, "
            f"without it {self.failed_without} of {self.num_without} (p = {self.p:.1g}, in {where})"
        )


def calls_of(trajectories: Sequence[Trajectory]) -> list[CallRecord]:
    """Return the calls that were sent. A call that we answered ourselves (bad arguments, a
    repetition) took no time and says nothing about the servers."""
    found: list[CallRecord] = []
    for trajectory in trajectories:
        rollout = trajectory.rollout_id, trajectory.example_id
        for number, turn in enumerate(trajectory.turns):
            pairs = zip(turn.calls, turn.results, strict=False)
            sent = [(call, result) for call, result in pairs if not result.is_error or result.latency_s != 0]
            found += [
                CallRecord(*rollout, number, call.name, call.arguments, result.failed, len(sent))
                for call, result in sent
            ]
        if trajectory.stop_reason not in INFRASTRUCTURE:
            failed = trajectory.grade.score is None
            answer = json.dumps({"answer": trajectory.final_text})
            found.append(CallRecord(*rollout, _AT_THE_END, GRADER, answer, failed))
    return found


def find(calls: Sequence[CallRecord]) -> list[Alarm]:
    """Return the alarms, strongest first. The order of rollouts in `calls` does not matter."""
    turns = _turns(calls)
    alarms: list[Alarm] = []
    while len(alarms) < MAX_ALARMS and any(call.failed for turn in turns for call, _ in turn):
        tables = _tables(turns)
        best = _strongest(tables)
        if best is None:
            break
        alarms.append(best[1])
        turns = [turn for n, turn in enumerate(turns) if n not in tables[best[0]].having]
    return alarms


# -- features --------------------------------------------------------------------------------------
Feature = tuple[str, str, str, str]
"""Kind, tool, argument, value. Sorting puts the most specific feature first among those of the same
turns."""
_Turn = list[tuple[CallRecord, frozenset[Feature]]]


def _turns(calls: Sequence[CallRecord]) -> list[_Turn]:
    """Group the calls and their features by turn, in order of rollouts."""
    grouped: defaultdict[tuple[str, int], _Turn] = defaultdict(list)
    for call in calls:
        grouped[call.rollout_id, call.turn].append((call, frozenset(_features(call))))
    return [grouped[key] for key in sorted(grouped)]


def _features(call: CallRecord) -> Iterator[Feature]:
    yield "4 tool", "", "", call.tool
    for power in _powers(call.num_in_turn):
        yield "5 calls", "", "", power
    arguments = _object(call.arguments)
    for power in _powers(len(call.arguments)) if arguments else ():
        yield "3 size", call.tool, "", power
    for name, value in arguments.items():
        yield "1 value", call.tool, name, json.dumps(value, sort_keys=True, ensure_ascii=False)
        yield "2 given", call.tool, name, ""
        for power in _powers(_size(value)):
            yield "3 size", call.tool, name, power


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _size(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        return 0
    return abs(value) if isinstance(value, int | float) else len(value)


def _powers(size: float) -> list[str]:
    """Return the powers of two from 2 up to the size."""
    return [str(2**n) for n in range(1, min(64, math.frexp(size)[1]))] if math.isfinite(size) else []


def _describe(feature: Feature) -> str:
    kind, _, argument, value = feature
    clipped = value if len(value) <= MAX_VALUE_CHARS else value[:MAX_VALUE_CHARS] + "..."
    return {
        "1 value": f"{argument} = {clipped}",
        "2 given": f"{argument} is given",
        "3 size": f"{argument or 'the arguments'} of at least {value}" + ("" if argument else " characters"),
        "4 tool": f"the tool {value}",
        "5 calls": f"{value} calls or more in a turn",
    }[kind]


# -- one table per feature -------------------------------------------------------------------------
@dataclass(slots=True)
class _Table:
    """The turns that have the feature, by their place. `strata`: turn number -> four counts of
    turns: with the feature, failed with it, all, failed of all."""

    having: frozenset[int]
    strata: dict[int, list[int]]
    examples: int

    @property
    def informative(self) -> list[list[int]]:
        """Return the strata with turns of both kinds, failed and not."""
        return [row for row in self.strata.values() if 0 < row[0] < row[2] and 0 < row[3] < row[2]]


def _tables(turns: Sequence[_Turn]) -> dict[Feature, _Table]:
    """Make a table per feature. If several features occur in the same turns, only the first gets
    one. This choice must not look at failures, or the p-values would be wrong."""
    counts = Counter(feature for turn in turns for feature in frozenset().union(*(features for _, features in turn)))
    tables: dict[Feature, _Table] = {}
    seen: set[tuple[str, frozenset[int]]] = set()
    for feature in sorted(feature for feature, count in counts.items() if count >= MIN_COUNT):
        table, total = _table(turns, feature)
        if total - len(table.having) >= MIN_COUNT and (feature[1], table.having) not in seen:
            seen.add((feature[1], table.having))
            tables[feature] = table
    return tables


def _table(turns: Sequence[_Turn], feature: Feature) -> tuple[_Table, int]:
    """Return the feature's table, and the number of turns that could have the feature: those with a
    call of its tool."""
    having: set[int] = set()
    examples: set[str] = set()
    strata: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    total = 0
    for place, turn in enumerate(turns):
        asked = [(call, feature in features) for call, features in turn if feature[1] in ("", call.tool)]
        if not asked:
            continue
        total += 1
        call, has = next((pair for pair in asked if pair[1]), asked[0])
        row = strata[call.turn]
        row[2] += 1
        row[3] += call.failed
        if has:
            having.add(place)
            row[0] += 1
            row[1] += call.failed
            if call.failed:
                examples.add(call.example_id)
    return _Table(frozenset(having), dict(strata), len(examples)), total


# -- the test --------------------------------------------------------------------------------------
def _strongest(tables: dict[Feature, _Table]) -> tuple[Feature, Alarm] | None:
    from scipy.stats import false_discovery_control  # half a second to load, and most batches have no failure

    tested = [(feature, table.informative, table.examples) for feature, table in tables.items() if table.informative]
    if not tested:
        return None
    adjusted = false_discovery_control(_p_values([rows for _, rows, _ in tested]))
    found: list[tuple[float, float, Feature, Alarm]] = []
    for (feature, rows, examples), p in zip(tested, adjusted, strict=True):
        num, failed, total, failures = (sum(column) for column in zip(*rows, strict=True))
        effect = _difference(rows)
        if p <= ALPHA and effect >= MIN_EFFECT and failed >= MIN_FAILED:
            alarm = Alarm(
                feature[1], _describe(feature), num, failed, total - num, failures - failed, float(p), examples
            )
            found.append((float(p), -effect, feature, alarm))
    return min(found)[2:] if found else None


def _p_values(tables: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """Compute the probability that chance alone gives as many failures or more. The number of
    failures is hypergeometric in each stratum, and summed over strata."""
    import numpy as np
    from scipy.stats import hypergeom

    nothing = [0, 0, 1, 0]  # a stratum in which nothing can happen
    width = max(len(rows) for rows in tables)
    counts_FS4 = np.array([[*rows, *[nothing] * (width - len(rows))] for rows in tables])
    masses = [np.ones(1)] * len(tables)
    for stratum in range(width):
        num_F1, _, total_F1, failures_F1 = counts_FS4[:, stratum, :, None].transpose(1, 0, 2)
        pmf_FK = hypergeom.pmf(np.arange(failures_F1.max() + 1), total_F1, failures_F1, num_F1)
        masses = [np.convolve(mass, pmf) for mass, pmf in zip(masses, pmf_FK, strict=True)]
    return [min(1.0, float(mass[seen:].sum())) for mass, seen in zip(masses, counts_FS4[:, :, 1].sum(1), strict=True)]


def _difference(rows: Sequence[Sequence[int]]) -> float:
    """Compute Mantel and Haenszel's difference of two shares over strata."""
    weights = [num * (total - num) / total for num, _, total, _ in rows]
    gaps = [failed / num - (failures - failed) / (total - num) for num, failed, total, failures in rows]
    return sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) / sum(weights)


__all__ = ["Alarm", "CallRecord", "calls_of", "find"]
