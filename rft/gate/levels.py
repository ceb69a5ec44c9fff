"""Set the level of the gate's question, so that asking again does not promote noise.

A frozen test set can be looked at again with the next candidate, and the one after. If each look
may promote noise in 2.5 %, one history in five does so after ten looks. So `gate.alpha` is the
chance for a whole history of `gate.looks` looks. Each look gets its share of what is left of alpha
(terms.py). A look covers two candidates (the new prompt, and the trained weights with it), and each
gets half of the share.

Only the question whether the mean reward rose has a price, because every promotion must pass it.
The guards, the slices and the hack rate keep a one-sided level of 2.5 % at every look. A promotion
must pass all of them, so asking again makes none of them easier.

The question's interval is Student's on the example means. The ends of an interval are rare events,
and bootstrap draws hold few of them: at 0.5 %, ten of 2,000. With 64 examples and 200 draws, noise
passed a level of 2.5 % in 3.3 % of looks. So owners with one look promoted noise in 6.6 % of
histories, where alpha was 5 % (`make figure NAME=looks_history`). Student's interval gives 2.6 %.

No interval sees a rare disaster that the test set does not hold. Take candidates that earn 0.06
more on every example but lose everything on 1 in 106, for a true gain of 0.05. With 288 examples at
a level of 0.5 %, 6.5 % of them pass (400,000 test sets). With 1 in 24 and 0.1 more it is 2.2 %.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rft import config, stats
from rft.gate import terms
from rft.reports import Metric

GUARD = 0.025
"""The one-sided level of everything but the question."""


def question(gate: config.Gate, registered: float | None = None) -> float:
    """Return the one-sided level of the question, for one candidate in one look: the registered
    level, or else that of the first look of a history."""
    return terms.level(gate.alpha, gate.looks, 1, 0.0) if registered is None else registered


def interval(level: float) -> Callable[..., Metric]:
    """Return the interval of the mean reward at that level."""
    return partial(stats.t_gain, confidence=1 - 2 * level)
