"""Misconfiguration has a name: rollouts that say something about the wiring, and nothing about the
agent.

An agent that is weak fails in its own ways and is lucky now and then. When instead every tool call
fails, every rollout ends the same way without an answer, or every score is the same number, the
likely cause is an address, a limit, a key of the rows, or the grader. A verdict on the agent would
then be wrong, and so would weights that were trained on it. The causes are looked for in the order
in which one explains the next, and each is told with the first example of it, so that a person can
look there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rft.rollouts.log import LogRow
from rft.rollouts.transcript import dialogue, signature
from rft.scale import Scale, of_range
from rft.types import StopReason

NOISE = 1e-9
"""Share of the range within which scores are the same."""
LONGEST = 160  # characters of what is quoted
CALLING_SHARE = 0.5
"""Of the rollouts; with fewer that call a tool, failing calls are no sign of the wiring."""
REFUSED_HERE = (
    "Error: invalid arguments for ",
    "Error: the arguments of ",
    "Error: unknown tool ",
    " this call was made before",
)
"""How answers begin that no tool gave (rft/tools/arguments.py, rft/rollouts/loop.py)."""

_LIMITS = {
    StopReason.max_turns: "rollout.max_turns, and max_turns in the prompt's settings",
    StopReason.max_tool_calls: "rollout.max_tool_calls",
    StopReason.max_tokens: "rollout.max_turn_tokens, rollout.max_tokens and the chat template",
    StopReason.parse_error: "policy.tool_format and the chat template",
    StopReason.timeout: "rollout.deadline_s and rollout.turn_deadline_s",
}
_CANNOT = "if the agent really cannot do any of this, warm-start first"


def find(rows: Sequence[LogRow], scale: Scale, is_ready: bool = False) -> str | None:
    """What is suspicious about all of these rollouts, with the first example and what to check.
    None: nothing, or too few to tell.

    `is_ready`: there is something to learn. Then, as long as scores differ, that all rollouts end
    alike is no sign: some environments end every rollout at a limit.
    """
    scored = [row for row in rows if row.score is not None]
    if not _are_several(scored):
        return None
    same = _one_score(scored, scale)
    alike = None if is_ready and same is None else _none_completed(scored)
    return _every_call_failed(scored) or alike or same


def _are_several(rows: Sequence[LogRow]) -> bool:
    """One example, or one rollout, may be an odd one."""
    return len({row.example_id for row in rows}) > 1


def _every_call_failed(scored: Sequence[LogRow]) -> str | None:
    """Nothing is said of an agent that seldom calls: a few bad calls are its own. Nor of calls that
    were refused here and never left."""
    told = [(row, answers) for row in scored if (answers := _answered(row))]
    num_calls = sum(len(answers) for _, answers in told)
    is_rare = len(told) < CALLING_SHARE * len(scored) or not _are_several([row for row, _ in told])
    if is_rare or any(not failed for _, answers in told for _, _, failed in answers):
        return None
    first, answers = told[0]
    call, answer, _ = answers[0]
    return (
        f"all {num_calls} tool calls of {len(told)} rollouts failed. {_first(first)} called "
        f"{_quoted(signature(call))} and was told "
        f"'{_quoted(answer)}'; {_grade(first)}. Check the section tools, and what the tools expect, before training; "
        f"{_CANNOT}"
    )


def _answered(row: LogRow) -> list[tuple[dict[str, Any], str, bool]]:
    """Calls with what the tools answered, and whether that was an error; without those that were
    never sent."""
    found: list[tuple[dict[str, Any], str, bool]] = []
    for turn in dialogue(row).turns if row.num_tool_calls else ():
        results = {one["tool_call_id"]: one for one in turn.results}
        for call in turn.calls:
            result = results.get(call["id"])
            if result is not None and not str(result["content"]).startswith(REFUSED_HERE):
                found.append((call, str(result["content"]), bool(result.get("is_error"))))
    return found


def _none_completed(rows: Sequence[LogRow]) -> str | None:
    reason = StopReason(rows[0].stop_reason)
    if reason is StopReason.completed or any(row.stop_reason != reason for row in rows):
        return None
    first = next(row for row in rows if row.score is not None)
    return (
        f"all {len(rows)} rollouts ended with {reason}, none with an answer. {_first(first)} {_said(first)}; "
        f"{_grade(first)}. "
        f"Check {_LIMITS.get(reason, 'the section rollout')} before training; {_CANNOT}"
    )


def _one_score(scored: Sequence[LogRow], scale: Scale) -> str | None:
    scores = [row.score for row in scored if row.score is not None]
    if max(scores) - min(scores) > NOISE * scale.width:
        return None
    score = scores[0]
    remedy = "Check examples.keys, the grader and its range before training"
    if score - scale.low <= NOISE * scale.width:
        remedy += f"; {_CANNOT}"
    elif scale.high - score <= NOISE * scale.width:
        remedy += "; if the agent really can do all of this, there is nothing left to learn"
    elif abs(score - scale.chance) <= NOISE * scale.width:
        remedy += f"; {scale.chance:g} is the chance that grader.json declares for answers without any work"
    return (
        f"all {len(scores)} scores are {score:g}{of_range(scale.ends)}. {_first(scored[0])} {_said(scored[0])}; "
        f"{_grade(scored[0])}. {remedy}"
    )


# -- the first example of it -----------------------------------------------------------------------
def _first(row: LogRow) -> str:
    return f"First: example {row.example_id} (rollout {row.rollout_id})"


def _said(row: LogRow) -> str:
    turns = dialogue(row).turns
    if turns and turns[-1].calls:
        return f"called {_quoted(signature(turns[-1].calls[-1]))} last"
    text = str(turns[-1].message.get("content") or "") if turns else ""
    return f"answered '{_quoted(text)}'" if text.strip() else "answered nothing"


def _grade(row: LogRow) -> str:
    return (
        f"the grader gave {row.score:g} and said '{_quoted(row.explanation)}'"
        if row.explanation
        else f"the grader gave {row.score:g}, without a reason"
    )


def _quoted(text: str) -> str:
    """On one line, and not longer than a message can bear."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


__all__ = ["find"]
