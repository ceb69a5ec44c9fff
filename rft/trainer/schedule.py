"""The learning rate of a step: a function of how far the run is, and of nothing else. A run that
goes on from a checkpoint needs no state for it.

    constant   train.lr throughout
    linear     down in a straight line
    cosine     down slowly, fast, slowly

The last two end at a hundredth of it. Not at zero: the learner takes an update that changes no
weight for a mistake.
"""

from __future__ import annotations

import math

from rft import config

LAST = 0.01
_LEFT = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""The share of the way from the last rate to train.lr, `done` of the run (0 to 1) behind it."""


def rate(section: config.Train, step: int) -> float:
    """Of optimizer step `step`, which counts from 1. Over the first `warmup_steps` it rises in a
    straight line besides."""
    done = (step - 1) / max(1, section.steps - 1)
    rising = min(1.0, step / (section.warmup_steps + 1))
    return section.lr * rising * (LAST + (1.0 - LAST) * _LEFT[section.schedule](done))
