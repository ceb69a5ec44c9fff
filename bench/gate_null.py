"""The figure of the gate under its null: how often does it promote what gains exactly `min_gain`?

The owner asks again and again. A history is one test set and up to `gate.looks` looks at it. At
each look the champion plays again beside two new candidates whose true gain is exactly `min_gain`.
The history counts if any look ends in a promotion: at most `gate.alpha` may. For comparison, the
same is shown without counting looks, each at alpha. Then two more rates are measured. One is how
often a real gain is promoted at a single look. The other is how often a regression of twice the
margin slips through although the mean reward rose.

A slice is judged by a veto, which needs examples. The gate prints how many: `needed_for_veto`. A
slice of that size that loses twice its margin must be rejected in 80 %; smaller ones are shown. The
vetoes themselves must not be noise: if all ten slices lose exactly their margin, any of them may
veto in 2.5 %.

bench/gate_rule.py, which is the rule written a second time, simulates all this. The gate's own
`decide` must come to the same decision in each of 50 cases (bench/gate_cases.py). Each rate has its
exact interval, and holds unless the lower 95 % limit lies above the promise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.gate_rule import OURS, PROMOTE, Habit, Rule, World, decisions, vetoes
from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
HISTORIES, CASES = 2000, 50
SMALL_HISTORIES, SMALL_CASES = 200, 4
SLICES = 10
POWER = (0.05, 0.10)
MISSED, SLIPPED = 0.20, 0.05
SMALLER = (10, 20, 30, 60, 100, 200, 400)
WIDE = (100,) * SLICES
"""Slices so wide that a veto's imaginary example no longer protects, and Holm alone must."""
_AT_A_TIME = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """A gate, a test set's size, and rollouts per example."""

    name: str
    gate: Any
    size: int
    k: int

    @property
    def slices(self) -> tuple[int, ...]:
        """Return ten slices, as equal as they can be."""
        return tuple(len(part) for part in np.array_split(np.arange(self.size), SLICES))


def gate_null(args: list[str]) -> Figure:
    """Histories of candidates without a gain in which the gate promotes one: at most gate.alpha."""
    small = "--small" in args
    num = SMALL_HISTORIES if small else HISTORIES
    parts = [*_null(num), *_power(num), *_guards(num), *_slices(num, small), _same(SMALL_CASES if small else CASES)]
    return Figure(tuple(parts))


FIGURES = {"gate_null": gate_null}


def shipped() -> Iterator[Setting]:
    from rft import config

    for name, file in (("ICD-10", "recipes/icd10/params.yaml"), ("the template", "flows/template/params.yaml")):
        params = config.load(ROOT / file)
        yield Setting(name, params.gate, params.examples.test, params.challenger.k)


# -- what is measured ------------------------------------------------------------------------------
def promoted(setting: Setting, habit: Habit, num: int, rule: Rule = OURS, looks: int = 1, seed: int = 0) -> int:
    """Count the histories in which at least one of the looks promotes one of two such
    candidates."""
    rng, count = np.random.default_rng([seed, setting.size]), 0
    for start in range(0, num, _AT_A_TIME):
        world = World(rng, min(_AT_A_TIME, num - start), setting.slices, setting.k)
        any_H = np.zeros(world.shape[0], dtype=bool)
        for _ in range(looks):
            arms = world.champion(), world.candidate(habit), world.candidate(habit)
            found_H, _ = decisions(setting.gate, setting.slices, *arms, rule)
            any_H |= found_H == PROMOTE
        count += int(any_H.sum())
    return count


def vetoed(
    gate: Any, slices: tuple[int, ...], k: int, habit: Habit, num: int, rule: Rule = OURS, seed: int = 0
) -> tuple[int, int]:
    """Count the candidates that the first slice rejects, and those that any slice rejects."""
    rng, first, any_ = np.random.default_rng([seed, *slices]), 0, 0
    at_a_time = max(1, _AT_A_TIME * 300 // sum(slices))
    for start in range(0, num, at_a_time):
        world = World(rng, min(at_a_time, num - start), slices, k)
        gain_HE = world.candidate(habit).means_HE() - world.champion().means_HE()
        found_HS = vetoes(gate, slices, gain_HE, rule)
        first, any_ = first + int(found_HS[:, 0].sum()), any_ + int(found_HS.any(axis=1).sum())
    return first, any_


def enough(setting: Setting, num: int) -> int:
    """Return the size that the gate itself prints for a slice: the median over ten slices of
    several candidates."""
    from bench.gate_cases import Case, decided

    printed: list[int] = []
    for seed in range(num):
        world = World(np.random.default_rng([seed, 7]), 1, setting.slices, setting.k)
        better = Habit(gain=setting.gate.min_gain + 0.1)
        case = Case(setting.gate, setting.slices, world.champion(), world.candidate(better), world.candidate(better))
        printed += [check.needed_for_veto for check in decided(case).checks if check.kind == "veto"]
    return round(median(printed))


# -- the parts -------------------------------------------------------------------------------------
def _null(num: int) -> Iterator[Part]:
    found = list[Part]()
    for setting in shipped():
        gate, looks = setting.gate, setting.gate.looks
        null = Habit(gain=gate.min_gain)
        what = f"{setting.name}, {setting.size} examples, {SLICES} slices, {looks} looks: histories with a promotion"
        found += _rate(what, promoted(setting, null, num, looks=looks), num, gate.alpha)
        loose = promoted(setting, null, num, Rule(count_looks=False), looks=looks)
        found += _rate(f"{what}, without counting looks", loose, num)
    worst = max(part.value or 0 for part in found if part.at_most is not None)
    bound = min(part.at_most for part in found if part.at_most is not None)
    name = "lower 95 % limit of the share of histories with a promotion at a true gain of min_gain, the larger"
    yield Part(name, worst, "share", at_most=bound, n=num)
    yield from found


def _power(num: int) -> Iterator[Part]:
    for setting in shipped():
        for more in POWER:
            habit = Habit(gain=setting.gate.min_gain + more)
            what = f"{setting.name}, {setting.size} examples: promoted at one look, true gain min_gain + {more:g}"
            yield from _rate(what, promoted(setting, habit, num), num)


def _guards(num: int) -> Iterator[Part]:
    """Measure a candidate that gains, and crosses one guard by its whole margin."""
    setting = next(shipped())
    gate = setting.gate
    better = Habit(gain=gate.min_gain + 0.1)
    habits = {
        "greedy score": replace(better, greedy=-2 * gate.max_greedy_loss),
        "tokens": replace(better, tokens=1 + 2 * gate.max_tokens_increase),
        "hack rate": replace(better, hacks=2 * gate.max_hack_rate),
    }
    for name, habit in habits.items():
        what = f"{setting.name}: promoted although the {name} regressed by twice its margin"
        yield from _rate(what, promoted(setting, habit, num), num, SLIPPED)


def _slices(num: int, small: bool) -> Iterator[Part]:
    setting = next(shipped())
    gate, k = setting.gate, setting.k
    edge = Habit(gain=-gate.max_slice_loss)
    for slices in (setting.slices, WIDE):
        what = f"any of {SLICES} slices of {slices[0]} examples vetoes, each losing exactly its margin"
        yield from _rate(what, vetoed(gate, slices, k, edge, num)[1], num, 0.025)
    size = enough(setting, 1 if small else 10)
    yield Part("needed_for_veto, as the gate prints it: median", size, "examples", n=1 if small else 10)
    for part in (*SMALLER, size):
        worse = _one_loses(gate, part)
        first, _ = vetoed(gate.model_copy(update={"min_slice": 2}), (part,) * SLICES, k, worse, num // 4)
        what = f"a slice of {part} examples that loses twice its margin"
        if part == size:
            yield from _rate(f"{what}: missed", num // 4 - first, num // 4, MISSED)
        yield from _rate(f"{what}: rejected", first, num // 4)


def _one_loses(gate: Any, size: int) -> Habit:
    """Make the first slice lose twice its margin, and the mean of all gain min_gain + 0.1."""
    lost = -2 * gate.max_slice_loss
    return Habit(gain=(SLICES * (gate.min_gain + 0.1) - lost) / (SLICES - 1), slice_gain=lost)


def _same(num: int) -> Part:
    from bench import gate_cases

    gate = next(shipped()).gate
    same = sum(gate_cases.agree(case) for case in gate_cases.cases(gate, num))
    print(f"{same:5} of {num} cases are decided alike by the gate", file=sys.stderr)
    return Part(
        "cases that the gate's own decide and the simulation decide alike", same / num, "share", at_least=1, n=num
    )


def _rate(what: str, count: int, num: int, nominal: float | None = None) -> Iterator[Part]:
    """Yield a share with its exact interval and, if one is promised, its bound."""
    from rft import stats

    print(f"{count:5} of {num}  {what}", file=sys.stderr)
    share = stats.exact_interval(count, num)
    yield Part(what, share.value, "share", low=share.low, high=share.high, n=num)
    if nominal is not None:
        low = stats.exact_interval(count, num, confidence=0.9).low
        yield Part(f"{what}: lower 95 % limit", low, "share", at_most=nominal, n=num)
