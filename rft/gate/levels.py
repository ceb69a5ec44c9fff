"""At which level the gate asks, so that asking again does not turn noise into a promotion.

A frozen test set can be looked at again with the next candidate, and the one after. Each look that
may promote noise in 2.5 % makes that one in five after ten. So `gate.alpha` is the chance for a
whole history of `gate.looks` looks. Each gets its share of what is left of alpha (terms.py), and a
look is at two candidates (the new prompt, and the trained weights with it), each with half of that.

Only the question is priced, whether the mean reward rose: every promotion must pass it. The guards,
the slices and the hack rate keep a one-sided level of 2.5 % at every look, because a promotion must
pass all of them; asking again makes none of them easier.

The ends of an interval are rare events where the level is small, and 2,000 bootstrap draws hold few
of them: at 0.5 % ten. Below 1 % the interval is Student's on the example means.

What neither interval sees is a rare disaster that the test set does not hold: of candidates that
earn 0.06 more on every example but lose everything on 1 in 106, for a true gain of 0.05, 6.5 % pass
with 288 examples at 0.5 % (400,000 test sets). With 1 in 24 and 0.1 more it is 2.2 %.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rft import config, stats
from rft.gate import evidence, terms
from rft.reports import Metric

GUARD = 0.025
"""One-sided, of everything but the question."""
_BOOTSTRAP_FROM = 0.01


def question(gate: config.Gate, registered: float | None = None) -> float:
    """Return the one-sided level of the question, for one candidate in one look: that of the
    registration, or what the first look of a history gets."""
    return terms.level(gate.alpha, gate.looks, 1, 0.0) if registered is None else registered


def interval(gate: config.Gate, level: float) -> Callable[..., Metric]:
    """Choose the interval of the mean reward at that level."""
    confidence = 1 - 2 * level
    if level < _BOOTSTRAP_FROM:
        return partial(stats.t_gain, confidence=confidence)
    return partial(evidence.paired(gate), confidence=confidence)
