"""What tool calls beyond the budget cost.

    over       = max(0, num_tool_calls - tool_calls) / tool_calls, at most 1; with tool_calls = 0, any call is 1
    multiplied = score * (1 - weight * over)      for a score above 0, else the score
    added      = score - weight * over            not clamped: may fall below 0

The multiplied form is the default: it scales what was earned, so a rollout that earned nothing loses nothing, a group in which all
failed stays all equal, and there is no advantage to learn from. The added form invents one there: among failures it rewards the
one that tried least, and can teach a policy to stop calling tools (a measured collapse; the figure compares both).
"""

from __future__ import annotations

from rft import config
from rft.types import Grade


def reward(grade: Grade, num_tool_calls: int, budget: config.Budget) -> float | None:
    """None exactly when the grade has no score; never above the score."""
    if grade.score is None or budget.tool_calls is None:
        return grade.score
    over = min(1.0, max(0, num_tool_calls - budget.tool_calls) / max(1, budget.tool_calls))
    if budget.form == "added":
        return grade.score - budget.weight * over
    if grade.score <= 0:  # the wire allows negative scores; scaling one would raise it
        return grade.score
    return grade.score * (1 - budget.weight * over)
