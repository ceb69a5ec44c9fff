"""The default of `train.lr`: what suits a policy of this width, and how far from it a rate may be.

    LoRA          2e-3 x (128 / width)^1.5       width 128: 2e-3    576: 2.1e-4    4,096: 1.1e-5
    all weights   4e-4 x (128 / width)^2         width 128: 4e-4    576: 2.0e-5    4,096: 3.9e-7

A wider policy needs a lower rate, because Adam's step moves every weight by about the rate, however
many weights there are. The values at width 128 (the embedded policy) were chosen for their margin
over seeds: docs/params.md says how. From there the exponents lead to rates that are usual for
pretrained models, through what was measured at width 576 (`make figure NAME=real_parcels`).
"""

from __future__ import annotations

from typing import Any

from rft import config

WIDTH = 128
AT_WIDTH = {"lora": (2e-3, 1.5), "full": (4e-4, 2.0)}
"""For each kind of trained weights: the rate at WIDTH, and the exponent."""
HIGH, TOO_HIGH = 5.0, 100.0
"""Multiples of the default: from the first a collapse is to be expected, from the second it is
certain."""
LOW, TOO_LOW = 1e-2, 1e-4
"""Multiples of the default: at the first hardly anything is learned, at the second nothing."""


def default(weights: str, width: int) -> float:
    """Return the rate for a policy of this width, to two digits."""
    rate, exponent = AT_WIDTH[weights]
    return float(f"{rate * (WIDTH / width) ** exponent:.1e}")


def resolved(section: config.Train, width: int) -> config.Train:
    """Fill in the learning rate where the settings leave it out."""
    return section if section.lr is not None else section.model_copy(update={"lr": default(section.weights, width)})


def width_of(description: Any) -> int:
    """Read a model's width from transformers' configuration of it."""
    return description.get_text_config().hidden_size
