"""Check that a score is within the grader's range, without clipping it.

Clipping would hide a wrong declaration. Only rounding noise, as in a sum of parts, is accepted. If
grader.json declares a range, a score further out is not a verdict. If it declares none, which means
0 to 1, such a score is a mistake in the file. The stage then stops before anything is learned from
such scores.
"""

from __future__ import annotations

from rft.errors import ConfigError
from rft.scale import Scale, from_to
from rft.wire.contract import Malformed

ROUNDING = 1e-9
"""The share of the range by which a score may lie beyond an end: floating-point noise."""


def within(score: float, scale: Scale, declares_range: bool) -> float:
    """Return the score without noise. Raises Malformed for a score outside of the declared range,
    and ConfigError if no range is declared."""
    beyond = max(scale.low - score, score - scale.high)
    if beyond <= 0:
        return score
    if beyond <= ROUNDING * scale.width:
        return scale.low if score < scale.low else scale.high
    if declares_range:
        raise Malformed(
            f"'score' is {score:.12g}, outside of the range {from_to(scale.ends)} that grader.json declares"
        )
    raise ConfigError(
        f"grader.json: declares no range, which means 0 to 1, and the grader gave the score {score:.12g}. Declare "
        'the lowest and the highest score, "range": [low, high], and "pass_threshold" if a lower score passes.'
    )
