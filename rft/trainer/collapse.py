"""Notices that training destroys its policy, before this costs the run a look at the test set.

Too high a learning rate turns a policy into noise within a few steps. A newcomer saw a mean reward
of 0.618 fall to 0.066 in six steps; the run went on, and spent a look on what was left.

**The rule.** For k = 1 to 10, take the mean of the last k steps. It has fallen if it is more than
2.33 of its standard errors below half of a reference:

    mean + 2.33 x spread / sqrt(n) < reference / 2

    watched       n counts   the reference, and its spread
    reward        groups     the baseline, or the best five steps so far if they earned more
    ended         groups     the baseline's share of rollouts that the policy ended by itself. It
                             counts only while the reward is below the baseline's too, because a
                             policy may learn to play longer
    validation    examples   the baseline's greedy reward, and the best validation so far

Rewards are counted from the low end of the grader's range. A group counts only if its example was
chosen without regard to how hard it is (`Batch.typical`). A slow start is not a collapse: a policy
that earns what it earned before training counts as collapsed only if it is 4.7 standard errors
unlucky. Fewer than eight groups, or examples, say nothing: a hard example may fail in all its
rollouts.

The baseline is the reference if it measured the weights from which training starts, at the
temperature of training. Otherwise the first eight groups are the reference. The very last update is
judged by the validation alone; with train.validation_examples: 0 there is none.

**What follows** is in rft/trainer/loop.py. The first time, training goes back to the best
checkpoint and continues with a tenth of the learning rate. The second time it ends and leaves no
weights: stage `challenger` refuses to open the test set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Any

from rft import config, reports
from rft.trainer.collect import Group
from rft.trainer.journal import Numbers
from rft.types import StopReason

REMEMBERED, BEST_OF = 10, 5
"""Numbers of steps in a row: the most over which a fall is looked for, and those that are compared
for the best."""
FEWEST = 8
LEFT = 0.5
"""A mean below this share of the reference is far below it."""
ERRORS = 2.33
LOWER = 0.1
"""The factor for the learning rate. The rate is lowered only once, so a rate that is ten times too
high must be low enough afterwards."""
RATED = 3
"""A checkpoint is rated by the rewards of this many steps: the next ones that its weights
sampled."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a policy earns: a mean, and the standard deviation between examples."""

    mean: float
    spread: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Level:
        return cls(fmean(values), pstdev(values))

    def is_lost(self, values: Sequence[float]) -> bool:
        """Tell whether these values are far below this level."""
        return fmean(values) + ERRORS * self.spread / math.sqrt(len(values)) < LEFT * self.mean


@dataclass(frozen=True, slots=True)
class Start:
    """What the policy was before training."""

    reward: Level
    ended: Level
    greedy: Level | None


def measured(baseline: reports.BaselineReport) -> Start | None:
    """Read what the baseline says about the policy. None if it has no score."""
    low = baseline.sampled.range[0]
    sampled, greedy = (
        [fmean(known) - low for row in one.rows if (known := [each for each in row.rewards if each is not None])]
        for one in (baseline.sampled, baseline.greedy)
    )
    reasons = baseline.sampled.stop_reasons
    share = reasons.get(str(StopReason.completed), 0) / max(1, sum(reasons.values()))
    if not sampled:
        return None
    ended = Level(share, math.sqrt(share * (1 - share)))
    return Start(Level.from_values(sampled), ended, Level.from_values(greedy) if greedy else None)


@dataclass(frozen=True, slots=True)
class Seen:
    """A step's groups: their mean rewards, and which share of each ended by itself."""

    rewards: list[float]
    ended: list[float]


@dataclass(slots=True)
class Guard:
    """Watches a training. Its state is part of the checkpoint."""

    low: float
    """The low end of the grader's range."""
    start: Start | None
    """None: the first groups will tell it."""
    steps: list[Seen] = field(default_factory=list)
    """The last few, newest last."""
    best: Level | None = None
    """The best level of five steps in a row."""
    validated: Level | None = None
    """The best validation."""
    falls: list[reports.Fall] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """The factor for the learning rate, after the falls so far."""
        return LOWER ** len(self.falls)

    def saw(self, groups: Sequence[Group], policy_version: int) -> str:
        """Note a step's groups. Say what has fallen; empty if nothing has."""
        known = [group for group in groups if group.scored]
        if not known or (self.falls and policy_version < self.falls[-1].step):
            return ""  # with a lag, some were still sampled by the weights that were given up
        rewards = [fmean(one.reward or 0.0 for one in group.scored) - self.low for group in known]
        ended = [fmean(one.stop_reason == StopReason.completed for one in group.scored) for group in known]
        self.steps = [*self.steps, Seen(rewards, ended)][-REMEMBERED:]
        if self.start is None:
            rewards, ended = self._last(len(self.steps))
            if len(rewards) < FEWEST:
                return ""
            self.start = Start(Level.from_values(rewards), Level.from_values(ended), None)
        if fell := self.fallen():
            return fell
        if len(self.steps) >= BEST_OF:
            now = Level.from_values([reward for step in self.steps[-BEST_OF:] for reward in step.rewards])
            self.best = now if self.best is None or now.mean > self.best.mean else self.best
        return ""

    def fallen(self) -> str:
        """Say what is far below its reference now; empty if nothing is."""
        start = self.start
        assert start is not None
        reference, when = start.reward, "before training"
        if self.best is not None and self.best.mean > reference.mean:
            # a few groups that all succeed have no spread, and the next one may be hard
            reference, when = Level(self.best.mean, max(self.best.spread, reference.spread)), "at its best"
        for count in range(1, len(self.steps) + 1):
            rewards, ended = self._last(count)
            if len(rewards) < FEWEST:
                continue
            over = "the last step" if count == 1 else f"the last {count} steps"
            if reference.is_lost(rewards):
                now, then = fmean(rewards) + self.low, reference.mean + self.low
                return f"the mean reward of {over} is {now:.3f}; {when} it was {then:.3f}"
            if start.ended.is_lost(ended) and fmean(rewards) < start.reward.mean:
                return (
                    f"the policy ended {fmean(ended):.0%} of the rollouts of {over} by itself; before training, "
                    f"{start.ended.mean:.0%}"
                )
        return ""

    def _last(self, count: int) -> tuple[list[float], list[float]]:
        """Return the rewards and shares of the last steps' groups."""
        last = self.steps[-count:]
        return [each for step in last for each in step.rewards], [each for step in last for each in step.ended]

    def checked(self, rewards: Sequence[float]) -> str:
        """Note a validation. Say what has fallen; empty if nothing has."""
        if len(rewards) < FEWEST:
            return ""
        now = Level.from_values([reward - self.low for reward in rewards])
        levels = [level for level in (self.start and self.start.greedy, self.validated) if level is not None]
        for level in levels:
            if level.is_lost([reward - self.low for reward in rewards]):
                return f"the validation reward is {now.mean + self.low:.3f}; it was {level.mean + self.low:.3f}"
        self.validated = max([now, *([self.validated] if self.validated else [])], key=lambda level: level.mean)
        return ""

    def fall(self, fall: reports.Fall) -> None:
        """Note that training went back. The best steps so far are still the reference."""
        self.falls.append(fall)
        self.steps = []

    def state(self) -> dict[str, Any]:
        return asdict(self) | {"falls": [fall.model_dump() for fall in self.falls]}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state. A state of an earlier version is empty."""
        if not state:
            return
        start = state["start"]
        self.start = start and Start(
            Level(**start["reward"]), Level(**start["ended"]), start["greedy"] and Level(**start["greedy"])
        )
        self.steps = [Seen(**step) for step in state["steps"]]
        self.best, self.validated = (state[name] and Level(**state[name]) for name in ("best", "validated"))
        self.falls = [reports.Fall(**fall) for fall in state["falls"]]


def best(rows: Sequence[Numbers], steps: Sequence[int]) -> int:
    """Choose the step whose weights earned most in what they sampled next, the earliest of equals.
    Step 0 is the start."""

    def earned(step: int) -> float:
        mine = [row["reward/mean"] for row in rows if "reward/mean" in row and row["step"] - 1 - row["lag"] >= step]
        return fmean(mine[:RATED]) if mine else -math.inf

    return max([0, *steps], key=earned)


def describe(section: config.Train, step: int, fell: str, falls: Sequence[reports.Fall]) -> str:
    """Say that training collapsed, and which settings are likely to blame, the likeliest first."""
    lr = section.peak_lr
    again = f"for the second time, with train.lr lowered from {lr:g} to {falls[-1].lr:g}" if falls else "at its end"
    lower = (falls[-1].lr if falls else lr) * LOWER
    other = [
        f"more rollouts in a step (train.examples_per_step is {section.examples_per_step}, group_size {section.group})",
        f"a lower train.clip_grad ({section.clip_grad:g})",
    ]
    other += ["train.kl.beta above 0, such as 0.05"] if not section.kl.beta else []
    return (
        f"training collapsed at step {step}, {again}: {fell}. Nothing of it is kept, and no look at the test set is "
        f"taken. Lower train.lr: --set train.lr={lower:.2g}. If that does not help, try {', '.join(other)}"
    )


__all__ = ["LOWER", "Guard", "Start", "best", "describe", "measured"]
