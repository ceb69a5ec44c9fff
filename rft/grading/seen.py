"""What a grader as data looks at: the row (`item`) and the graded view of the rollout (`sample`).

Both are taken from the same body that a grader behind an address would get. So moving a grader from
one form to the other changes no score.

A template may name a place that does not exist. The score depends on who is to blame. The policy's
answer may lack it, such as `sample.output_json.price` where the answer is not JSON. Then the answer
has the lowest score, or a policy could avoid its grade by writing what cannot be read. If the row
lacks it, there is no score, because that says nothing about the policy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rft.config.graders import Grader
from rft.config.templates import Missing, Scope
from rft.types import Grade, GradeStatus, RolloutContext, Scored, StopReason, Turn, Unscored
from rft.wire.contract import Envelope, grader_payload

INVALID_VARIABLE = "invalid_variable_error"
SAMPLE_UNREADABLE = "sample_parse_error"


def scope_of(turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext) -> Scope:
    """Make the data from which templates are filled."""
    return json.loads(grader_payload(turns, stop_reason, Envelope(context)))


def passed(settings: Grader, score: float, explanation: str) -> Scored:
    """Make the grade of a rollout that could be judged."""
    return Scored(score, solved=score >= settings.scale.pass_threshold, explanation=explanation)


def without(settings: Grader, missing: Missing) -> Grade:
    """Make the grade for a template that names a place which the rollout or the row lacks."""
    problem = f"{settings.name}: {missing}"
    if missing.in_sample:
        flags = (INVALID_VARIABLE, SAMPLE_UNREADABLE)
        return Scored(settings.scale.low, GradeStatus.unjudgeable_answer, explanation=problem, flags=flags)
    return Unscored(GradeStatus.grader_bad_reply, f"grader: {problem}", flags=(INVALID_VARIABLE,))
