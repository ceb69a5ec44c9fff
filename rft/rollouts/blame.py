"""Tell a grader that cannot judge what the policy wrote from one that is down.

Both look alike: grades without a score, often HTTP 500. Waiting helps against an outage. A grader
that raises on an answer in a wrong form raises again, however long we wait. So before a batch
pauses, the grader is asked twice more. It grades another answer (the target, or a worthless one),
and again a rollout whose grade is missing. If the first has a score and the second fails in the
same words, waiting does not help.
"""

from __future__ import annotations

from collections.abc import Sequence

from rft.grading.grader import FORM_REMEDY, Grader
from rft.recipe import Recipe
from rft.tools.client import ToolClient
from rft.types import INFRASTRUCTURE, Example, Grade, GradeStatus, RolloutContext, StopReason, Trajectory, Turn
from rft.wire.contract import clip
from rft.wire.trace import Traces

WORTHLESS = ("Done.", "")


async def unjudgeable(
    recipe: Recipe,
    grader: Grader,
    client: ToolClient,
    traces: Traces,
    played: Sequence[tuple[Example, Trajectory]],
    max_share: float,
) -> str:
    """Say why waiting does not help; empty if it may help, or if the grader left too few rollouts
    without a score."""
    silent = [(example, one) for example, one in played if _is_silent(one)]
    if len(silent) <= max_share * len(played):
        return ""
    example, one = silent[-1]

    async def graded(turns: Sequence[Turn], stop: StopReason, word: str) -> Grade:
        context = RolloutContext(traces.trace_id(f"blame {word}", 0), example)
        try:
            return await grader.grade(example, turns, stop, context)
        finally:
            await client.release(context)

    target = recipe.turns(example, example.target) if example.target is not None else None
    for text in (*(target or [])[-1:], *WORTHLESS):
        if (await graded([Turn(text)], StopReason.completed, f"answer {text}")).score is not None:
            break
    else:
        return ""
    again = await graded(one.turns, one.stop_reason, f"again {one.rollout_id}")
    if again.score is not None or again.explanation != one.grade.explanation:
        return ""
    answer = clip((one.turns[-1].text if one.turns else "").encode())
    return (
        f"The grader answers, and has no score for what the policy wrote, such as {answer!r} (example {example.id}, "
        f"rollout {one.rollout_id}). {FORM_REMEDY}"
    )


def _is_silent(one: Trajectory) -> bool:
    """Tell whether the grader answered without a score. A grader that takes too long does not
    count: asking it again would take as long."""
    answered = one.stop_reason not in INFRASTRUCTURE and one.grade.status is not GradeStatus.grader_timeout
    return one.reward is None and answered


__all__ = ["unjudgeable"]
