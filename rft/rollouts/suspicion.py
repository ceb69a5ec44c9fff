"""Find rollouts that show a misconfiguration, and say nothing about the agent.

A weak agent fails in different ways and is lucky now and then. Three patterns are suspicious: every
tool call fails, every rollout ends the same way without an answer, or every score is the same
number. Then the likely cause is an address, a limit, a key of the rows, or the grader. A verdict on
the agent would be wrong, and so would weights trained on these rollouts. A cause is reported before
its effects, and with its first example, so that a person can look there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rft.rollouts.log import LogRow
from rft.rollouts.transcript import dialogue, signature
from rft.scale import Scale, of_range
from rft.types import StopReason

NOISE = 1e-9
"""Scores that differ by less than this share of the range count as equal."""
LONGEST = 160  # characters of a quoted text
CALLING_SHARE = 0.5
"""The share of rollouts that must call a tool before failing calls point to the wiring."""
REFUSED_HERE = (
    "Error: invalid arguments for ",
    "Error: the arguments of ",
    "Error: unknown tool ",
    " this call was made before",
)
"""Beginnings of answers that we gave ourselves (rft/tools/arguments.py, rft/rollouts/loop.py)."""

_LIMITS = {
    StopReason.max_turns: "rollout.max_turns, and max_turns in the prompt's settings",
    StopReason.max_tool_calls: "rollout.max_tool_calls",
    StopReason.max_tokens: "rollout.max_turn_tokens, rollout.max_tokens and the chat template",
    StopReason.parse_error: "policy.tool_format and the chat template",
    StopReason.timeout: "rollout.deadline_s and rollout.turn_deadline_s",
}
_CANNOT = "if the agent really cannot do any of this, warm-start first"


def find(rows: Sequence[LogRow], scale: Scale, is_ready: bool = False) -> str | None:
    """Say what is suspicious about these rollouts, with the first example and what to check. None
    if nothing is, or if there are too few to tell.

    `is_ready`: there is something to learn. Then all rollouts may end alike if their scores differ,
    because some environments end every rollout at a limit.
    """
    scored = [row for row in rows if row.score is not None]
    if not _are_several(scored):
        return None
    same = _one_score(scored, scale)
    alike = None if is_ready and same is None else _none_completed(scored)
    return _every_call_failed(scored) or alike or same


def _are_several(rows: Sequence[LogRow]) -> bool:
    """Tell whether there is more than one example: a single example or rollout may be an
    exception."""
    return len({row.example_id for row in rows}) > 1


def _every_call_failed(scored: Sequence[LogRow]) -> str | None:
    """Report that every call failed. An agent that seldom calls is not judged, because a few bad
    calls are its own fault. Calls that were refused here and never sent do not count."""
    told = [(row, answers) for row in scored if (answers := _answered(row))]
    num_calls = sum(len(answers) for _, answers in told)
    is_rare = len(told) < CALLING_SHARE * len(scored) or not _are_several([row for row, _ in told])
    if is_rare or any(not failed for _, answers in told for _, _, failed in answers):
        return None
    first, answers = told[0]
    call, answer, _ = answers[0]
    return (
        f"all {num_calls} tool calls of {len(told)} rollouts failed. "
        f"{_first(first)} called {_quoted(signature(call))} and was told '{_quoted(answer)}'; {_grade(first)}. "
        f"Check the section tools, and what the tools expect, before training; {_CANNOT}"
    )


def _answered(row: LogRow) -> list[tuple[dict[str, Any], str, bool]]:
    """List the calls that were sent, each with its answer and whether the answer was an error."""
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
        f"all {len(rows)} rollouts ended with {reason}, none with an answer. "
        f"{_first(first)} {_last_turn(first)}; {_grade(first)}. "
        f"Check {_LIMITS.get(reason, 'the section rollout')} before training; {_CANNOT}"
    )


def _one_score(scored: Sequence[LogRow], scale: Scale) -> str | None:
    scores = [row.score for row in scored if row.score is not None]
    if max(scores) - min(scores) > NOISE * scale.width:
        return None
    score, first = scores[0], scored[0]
    remedy = "Check examples.keys, the grader and its range before training"
    if score - scale.low <= NOISE * scale.width:
        remedy += f"; {_CANNOT}"
    elif scale.high - score <= NOISE * scale.width:
        remedy += "; if the agent really can do all of this, there is nothing left to learn"
    elif abs(score - scale.chance) <= NOISE * scale.width:
        remedy += f"; {scale.chance:g} is the chance that grader.json declares for answers without any work"
    found = f"all {len(scores)} scores are {score:g}{of_range(scale.ends)}"
    return f"{found}. {_first(first)} {_last_turn(first)}; {_grade(first)}. {remedy}"


# -- the first example of it -----------------------------------------------------------------------
def _first(row: LogRow) -> str:
    return f"First: example {row.example_id} (rollout {row.rollout_id})"


def _last_turn(row: LogRow) -> str:
    turns = dialogue(row).turns
    if turns and turns[-1].calls:
        return f"called {_quoted(signature(turns[-1].calls[-1]))} last"
    text = str(turns[-1].message.get("content") or "") if turns else ""
    return f"answered '{_quoted(text)}'" if text.strip() else "answered nothing"


def _grade(row: LogRow) -> str:
    reason = f" and said '{_quoted(row.explanation)}'" if row.explanation else ", without a reason"
    return f"the grader gave {row.score:g}{reason}"


def _quoted(text: str) -> str:
    """Put the text on one line, cut to a length for a message."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


__all__ = ["find"]
