"""The gate's rule for thousands of test sets at a time, and worlds in which to try it.

`decide` takes a second, because it draws its intervals. Here the intervals of means are normal,
with the variance of the bootstrap. All else is the same rule written a second time, so that each
checks the other: in bench/gate_null.py both decide 50 cases. `Rule` can leave out what protects the
gate, to see that the figure would notice.

A world has examples of differing difficulty. A policy has its own probability to solve an example,
drawn around the difficulty. Most are solved nearly always or nearly never, so that rollouts of one
example agree. The mean over all examples that could be drawn is exact: a gain of 0.05 is exactly
0.05. Calls are the same in all arms, and everything is scored.

Shapes: H histories, E examples of a test set, K rollouts, S slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_Z = NormalDist().inv_cdf(0.975)
_FIRM = 2.0
"""How little a policy varies on one example. At 2 it solves most examples always or never."""
PROMOTE, INCONCLUSIVE, REJECT = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Rule:
    """Which protections count. `Rule(count_looks=False)` treats each look as the only one;
    `Rule(holm=False)` lets each slice veto at 2.5 %."""

    count_looks: bool = True
    holm: bool = True

    def level(self, gate: Any) -> float:
        return gate.alpha / (gate.looks if self.count_looks else 1) / 2


OURS = Rule()


@dataclass(frozen=True, slots=True)
class Arm:
    """What one policy did on the test sets of many histories."""

    rewards_HEK: Floats
    greedy_HE: Floats
    tokens_HEK: Floats
    hacked_HE: Bools

    def means_HE(self) -> Floats:
        return self.rewards_HEK.mean(axis=2)


@dataclass(frozen=True, slots=True)
class Habit:
    """How a candidate differs from the champion, as true means over all examples."""

    gain: float = 0.0
    slice_gain: float | None = None
    """The gain in the first slice. None: as elsewhere."""
    greedy: float | None = None
    """The gain of greedy decoding. None: as `gain`."""
    tokens: float = 1.0
    hacks: float = 0.0


CHAMPION = Habit()


class World:
    """The test sets of `num` histories. `slices`: test examples of each slice, in order."""

    def __init__(self, rng: np.random.Generator, num: int, slices: Sequence[int], k: int) -> None:
        self.rng, self.k, self.slices = rng, k, tuple(slices)
        self.shape = (num, sum(slices))
        self.first_E = np.arange(sum(slices)) < slices[0]
        self.ease_HE = 0.2 + 0.45 * rng.beta(0.5, 0.5, size=self.shape)
        self.length_HE = np.exp(rng.normal(4.6, 0.4, size=self.shape))
        self.champion_HE = self._skill(0.0)

    def champion(self) -> Arm:
        """Let the champion play again: the same policy with other luck."""
        return self._arm(CHAMPION, self.champion_HE, self.champion_HE)

    def candidate(self, habit: Habit) -> Arm:
        """Make a new policy."""
        gain_E = np.where(self.first_E, habit.gain if habit.slice_gain is None else habit.slice_gain, habit.gain)
        skill_HE = self._skill(gain_E)
        greedy_HE = skill_HE if habit.greedy is None else self._skill(habit.greedy)
        return self._arm(habit, skill_HE, greedy_HE)

    def _skill(self, gain: float | Floats) -> Floats:
        mean_HE = np.clip(self.ease_HE + gain, 0.0, 1.0)
        return self.rng.beta(np.maximum(_FIRM * mean_HE, 1e-9), np.maximum(_FIRM * (1 - mean_HE), 1e-9))

    def _arm(self, habit: Habit, skill_HE: Floats, greedy_HE: Floats) -> Arm:
        rng, shape = self.rng, (*self.shape, self.k)
        tokens_HEK = self.length_HE[:, :, None] * habit.tokens * np.exp(rng.normal(0.0, 0.2, size=shape))
        return Arm(
            rewards_HEK=(rng.random(shape) < skill_HE[:, :, None]).astype(np.float64),
            greedy_HE=(rng.random(self.shape) < greedy_HE).astype(np.float64),
            tokens_HEK=np.ceil(tokens_HEK),
            hacked_HE=rng.random(self.shape) < habit.hacks,
        )


# -- the rule --------------------------------------------------------------------------------------
def decisions(
    gate: Any, slices: Sequence[int], champion: Arm, prompted: Arm, trained: Arm, rule: Rule = OURS
) -> tuple[NDArray[np.int64], Bools]:
    """Decide each history, and say in which ones the trained candidate was judged."""
    change_HE = trained.means_HE() - prompted.means_HE()
    trained_H = _ends(change_HE)[0] > gate.prompt_only_margin
    judged = np.where(
        trained_H, _judge(gate, slices, champion, trained, rule), _judge(gate, slices, champion, prompted, rule)
    )
    return judged, trained_H


def _judge(gate: Any, slices: Sequence[int], old: Arm, new: Arm, rule: Rule) -> NDArray[np.int64]:
    gain_HE = new.means_HE() - old.means_HE()
    low_H, high_H = _question(gain_HE, rule.level(gate))
    verdicts = [
        _verdict(low_H > gate.min_gain, high_H < gate.min_gain),
        _guard(*_ends(new.greedy_HE - old.greedy_HE), -gate.max_greedy_loss, better_above=True),
        _guard(*_relative(new.tokens_HEK, old.tokens_HEK), gate.max_tokens_increase, better_above=False),
        _hacks(new.hacked_HE, gate.max_hack_rate),
    ]
    worst = np.min(verdicts, axis=0)
    vetoed_H = vetoes(gate, slices, gain_HE, rule).any(axis=1)
    return np.where(vetoed_H, REJECT, worst)


def vetoes(gate: Any, slices: Sequence[int], gain_HE: Floats, rule: Rule = OURS) -> Bools:
    """Return which slices reject (H, S). Those under gate.min_slice are one slice at the end."""
    from scipy.special import stdtr

    edges = np.cumsum([0, *slices])
    parts = [np.arange(start, end) for start, end in pairwise(edges.tolist())]
    small = [part for part in parts if len(part) < gate.min_slice]
    groups = [part for part in parts if len(part) >= gate.min_slice] + ([np.concatenate(small)] if small else [])
    p_HS = np.ones((len(gain_HE), len(groups)))
    for s, group in enumerate(groups):
        values = np.concatenate([gain_HE[:, group], np.ones((len(gain_HE), 1))], axis=1)
        mean_H, error_H = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
        p_HS[:, s] = stdtr(len(group), (mean_H + gate.max_slice_loss) / np.maximum(error_H, 1e-300))
    if not rule.holm:
        return p_HS <= 0.025
    order = np.argsort(p_HS, axis=1)
    steps = np.take_along_axis(p_HS, order, axis=1) <= 0.025 / (len(groups) - np.arange(len(groups)))
    rejected = np.logical_and.accumulate(steps, axis=1)
    found = np.zeros_like(rejected)
    np.put_along_axis(found, order, rejected, axis=1)
    return found


def _question(gain_HE: Floats, level: float) -> tuple[Floats, Floats]:
    from scipy.special import stdtrit

    n = gain_HE.shape[1]
    far = -float(stdtrit(n - 1, level)) if level < 0.01 else -NormalDist().inv_cdf(level)
    return _ends(gain_HE, far)


def _ends(values_HE: Floats, far: float = _Z) -> tuple[Floats, Floats]:
    mean_H = values_HE.mean(axis=1)
    error_H = values_HE.std(axis=1, ddof=1) / np.sqrt(values_HE.shape[1])
    return mean_H - far * error_H, mean_H + far * error_H


def _relative(new_HEK: Floats, old_HEK: Floats) -> tuple[Floats, Floats]:
    """Return the interval of a ratio, by the delta method."""
    new_HE, old_HE = new_HEK.mean(axis=2), old_HEK.mean(axis=2)
    ratio_H = new_HE.mean(axis=1) / old_HE.mean(axis=1)
    rest_HE = (new_HE - ratio_H[:, None] * old_HE) / old_HE.mean(axis=1)[:, None]
    error_H = rest_HE.std(axis=1) / np.sqrt(rest_HE.shape[1])
    return ratio_H - 1 - _Z * error_H, ratio_H - 1 + _Z * error_H


def _hacks(hacked_HE: Bools, margin: float) -> NDArray[np.int64]:
    from rft import stats

    count_H = hacked_HE.sum(axis=1)
    ends = [stats.exact_interval(count, hacked_HE.shape[1]) for count in range(int(count_H.max()) + 1)]
    high, low = (np.array([getattr(one, end) for one in ends])[count_H] for end in ("high", "low"))
    return _verdict(high <= margin, low > margin)


def _guard(low_H: Floats, high_H: Floats, margin: float, better_above: bool) -> NDArray[np.int64]:
    if better_above:
        return _verdict(low_H >= margin, high_H < margin)
    return _verdict(high_H <= margin, low_H > margin)


def _verdict(good_H: Bools, bad_H: Bools) -> NDArray[np.int64]:
    return np.where(good_H, PROMOTE, np.where(bad_H, REJECT, INCONCLUSIVE))
