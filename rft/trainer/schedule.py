"""The learning rate of a step, a function of the run's progress alone.

So it needs no state in a checkpoint.

    constant   train.lr throughout
    linear     down in a straight line
    cosine     down slowly, fast, slowly

The last two end at a hundredth of it, not at zero: an update that changes no weight is an error for
the learner.
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
"""A share of the run -> the part of the way from train.lr down to the last rate that is left."""


def rate(section: config.Train, step: int) -> float:
    """Return the rate of a step, which counts from 1. Over the first `warmup_steps` it rises in a
    straight line."""
    done = (step - 1) / max(1, section.steps - 1)
    rising = min(1.0, step / (section.warmup_steps + 1))
    return section.peak_lr * rising * (LAST + (1.0 - LAST) * _LEFT[section.schedule](done))
