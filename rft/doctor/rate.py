"""Find learning rates that will collapse the policy, or teach it nothing.

`rates` knows the rate that suits a policy of a given width. This module says what a very different
rate will do, before any compute is spent. The limits come from `make figure NAME=collapse`. At ten
times the default, most trainings collapse and are stopped, and at thirty times nearly all.
"""

from __future__ import annotations

from collections.abc import Iterator

from rft import config
from rft.doctor.finding import Finding, fail, warn
from rft.trainer import rates


def of_training(section: config.Train, width: int) -> Iterator[Finding]:
    """Judge `train.lr` for a policy of this width."""
    if section.lr is not None:
        yield from _judged("train.lr", section.lr, rates.default(section.weights, width), section.steps)


def of_warm_start(warm: config.WarmStart) -> Iterator[Finding]:
    """Judge `policy.warm_start.lr` of the embedded policy."""
    yield from _judged("policy.warm_start.lr", warm.lr, config.WarmStart().lr, warm.steps)


def _judged(key: str, lr: float, usual: float, steps: int) -> Iterator[Finding]:
    times = lr / usual
    what, remedy = f"{key} = {lr:g}", f"Leave {key} out, or set it near {usual:g}."
    far = f"{what} is {times:,.0f} times what suits a policy of this width ({usual:g})"
    if times >= rates.TOO_HIGH:
        yield fail(f"{far}: the first steps will turn the policy into noise", remedy)
    elif times >= rates.HIGH:
        yield warn(f"{far}: the policy is likely to collapse, which ends a training before the look", remedy)
    elif times <= rates.LOW:
        moved = f"{what}: in {steps:,} steps no weight moves by more than {lr * steps:.1g}"
        if times <= rates.TOO_LOW:
            yield fail(f"{moved}, so nothing will be learned", remedy)
        else:
            yield warn(f"{moved}, so hardly anything will be learned", remedy)
