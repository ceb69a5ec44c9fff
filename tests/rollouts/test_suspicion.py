"""Each misconfiguration that looks like a weak or a perfect agent is named, with its first example;
an agent that is merely weak is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rft.reports import PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts import suspicion
from rft.rollouts.log import LogRow
from rft.scale import UNIT, Scale
from rft.types import Example, GradeStatus, Scored, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored

PROMPT = PromptSettings(name="seed", system="Look it up.")
ENDED = StopReason.completed


def row(
    number: int, score: float | None, turns: Sequence[Turn] = (Turn("0042"),), stop: StopReason = ENDED, why: str = ""
) -> LogRow:
    """The rollout `number`, two of each example."""
    example = Example(f"n-{number // 2}", ({"role": "user", "content": f"value of k{number // 2}"},), "9153")
    grade = Unscored(GradeStatus.infra_error, why) if score is None else Scored(score, explanation=why)
    one = Trajectory(f"trace_{number}", example.id, tuple(turns), stop, grade, score)
    return rollout_log.row(one, example, number % 2, PROMPT, "baseline", "champion")


def rows(scores: Sequence[float | None], *more: Any, **named: Any) -> list[LogRow]:
    return [row(number, score, *more, **named) for number, score in enumerate(scores)]


def calling(*answers: ToolResult, text: str = "0042") -> tuple[Turn, ...]:
    """One call a turn, and an answer."""
    called = [Turn("", (ToolCall(one.call_id, "lookup", '{"key": "k0001"}'),), (one,), content="") for one in answers]
    return (*called, Turn(text))


REFUSED, FOUND = ToolResult("c-0", "HTTP 404: no such path", is_error=True), ToolResult("c-1", "9153")


# -- every call fails ------------------------------------------------------------------------------
def test_when_every_call_fails_the_first_is_shown_whatever_the_scores():
    text = suspicion.find(rows([0.0, 1.0, 0.5, 0.0], calling(REFUSED, REFUSED), why="not the value"), UNIT)
    assert text is not None
    assert text.startswith(
        'all 8 tool calls of 4 rollouts failed. First: example n-0 (rollout trace_0) called lookup(key="k0001") and '
        "was told "
        "'HTTP 404: no such path'; the grader gave 0 and said 'not the value'. Check the section tools"
    )
    assert text.endswith("if the agent really cannot do any of this, warm-start first")


def test_one_call_that_works_clears_the_tools():
    failing = rows([0.0, 1.0, 0.5], calling(REFUSED))
    assert suspicion.find(failing, UNIT) is not None
    assert suspicion.find([*failing, row(3, 1.0, calling(REFUSED, FOUND))], UNIT) is None


def test_calls_of_one_example_say_nothing_about_the_others():
    assert suspicion.find([*rows([0.0, 1.0], calling(REFUSED)), row(2, 1.0), row(3, 0.0)], UNIT) is None


def test_a_few_bad_calls_of_an_agent_that_seldom_calls_are_its_own():
    healthy = [row(number, float(number % 3 > 0)) for number in range(200)]
    assert suspicion.find([*healthy, row(200, 0.0, calling(REFUSED)), row(202, 0.0, calling(REFUSED))], UNIT) is None


@pytest.mark.parametrize(
    "message",
    ["Error: invalid arguments for lookup: key: 3 is not a text", "Error: the arguments of lookup are not JSON"],
)
def test_calls_that_we_refused_say_nothing_of_the_wiring(message: str):
    assert suspicion.find(rows([0.0, 1.0, 0.5, 0.0], calling(ToolResult("c-0", message, is_error=True))), UNIT) is None


def test_one_unscored_rollout_does_not_hide_how_the_others_ended():
    alike = rows([0.0, 0.2, 0.0, 0.1], (Turn("The value is"),), StopReason.max_tokens)
    assert suspicion.find([*alike, row(9, None, stop=StopReason.tool_error)], UNIT) is not None


def test_rollouts_that_all_end_at_a_limit_may_be_how_an_environment_is():
    alike = rows([0.0, 0.9, 0.3, 0.6], (Turn("on and on"),), StopReason.max_turns)
    assert suspicion.find(alike, UNIT, is_ready=True) is None
    assert suspicion.find(alike, UNIT) is not None


def test_calls_that_were_never_sent_are_not_in_the_count():
    cut = (*calling(REFUSED)[:1], Turn("", (ToolCall("c-9", "lookup", "{}"),)))
    text = suspicion.find([row(0, 0.0, cut, StopReason.max_tool_calls), row(2, 1.0, calling(REFUSED))], UNIT)
    assert text is not None
    assert text.startswith("all 2 tool calls of 2 rollouts failed")


# -- every rollout ends alike ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stop", "key"),
    [
        (StopReason.max_tokens, "rollout.max_tokens"),
        (StopReason.max_turns, "rollout.max_turns"),
        (StopReason.max_tool_calls, "rollout.max_tool_calls"),
        (StopReason.parse_error, "policy.tool_format"),
        (StopReason.timeout, "rollout.deadline_s"),
    ],
)
def test_when_no_rollout_completes_the_limit_is_named(stop: StopReason, key: str):
    text = suspicion.find(rows([0.0, 0.2, 0.0, 0.1], (Turn("The value is"),), stop), UNIT)
    assert text is not None
    assert text.startswith(
        f"all 4 rollouts ended with {stop}, none with an answer. First: example n-0 (rollout trace_0) answered 'The "
        "value is'; "
        "the grader gave 0, without a reason. Check "
    )
    assert key in text


def test_a_rollout_that_ends_in_a_call_shows_it():
    turns = calling(FOUND)[:1]
    text = suspicion.find(rows([0.0, 0.2, 0.0, 0.1], turns, StopReason.max_turns), UNIT)
    assert text is not None
    assert 'called lookup(key="k0001") last' in text


def test_rollouts_that_end_in_several_ways_are_a_weak_agent():
    mixed = [
        *rows([0.0, 0.2], stop=StopReason.max_tokens),
        row(2, 0.1, stop=StopReason.parse_error),
        row(3, 0.0, stop=StopReason.max_tokens),
    ]
    assert suspicion.find(mixed, UNIT) is None
    assert suspicion.find(rows([0.0, 0.2, 0.1, 0.0]), UNIT) is None


# -- every score is the same -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("score", "scale", "message", "remedy"),
    [
        (0.0, UNIT, "all 4 scores are 0.", "; if the agent really cannot do any of this, warm-start first"),
        (1.0, UNIT, "all 4 scores are 1.", "; if the agent really can do all of this, there is nothing left to learn"),
        (0.25, UNIT, "all 4 scores are 0.25.", "its range before training"),
        (
            -2.0,
            Scale(-2, 2, 2, -2),
            "all 4 scores are -2 of -2 to 2.",
            "; if the agent really cannot do any of this, warm-start first",
        ),
        (
            5.0,
            Scale(0, 5, 4, 0),
            "all 4 scores are 5 of 0 to 5.",
            "; if the agent really can do all of this, there is nothing left to learn",
        ),
        (1.0, Scale(0, 5, 4, 0), "all 4 scores are 1 of 0 to 5.", "its range before training"),
        (
            0.25,
            Scale(0, 1, 1, 0.25),
            "all 4 scores are 0.25.",
            "; 0.25 is the chance that grader.json declares for answers without any work",
        ),
    ],
)
def test_when_every_score_is_the_same_the_first_is_shown(score: float, scale: Scale, message: str, remedy: str):
    text = suspicion.find(rows([score] * 4, why="expected 9153"), scale)
    assert text is not None
    assert text.startswith(
        f"{message} First: example n-0 (rollout trace_0) answered '0042'; the grader gave {score:g} and said 'expected "
        "9153'. Check examples.keys"
    )
    assert text.endswith(remedy)


def test_one_score_that_differs_is_enough():
    assert suspicion.find(rows([0.0, 0.0, 0.0, 0.01]), UNIT) is None
    assert suspicion.find(rows([0.0, 0.0, 0.0, 1e-12]), UNIT) is not None


def test_the_unscored_are_no_scores():
    text = suspicion.find(rows([None, 0.0, 0.0, None]), UNIT)
    assert text is not None
    assert text.startswith("all 2 scores are 0. First: example n-0 (rollout trace_1)")


@pytest.mark.parametrize("scores", [[], [None] * 4, [0.0, 0.0], [0.0, None, None, None], [0.0]])
def test_too_few_to_tell(scores: list[float | None]):
    assert suspicion.find(rows(scores), UNIT) is None


def test_what_is_quoted_is_one_short_line():
    text = suspicion.find(rows([0.0] * 4, (Turn("word\n" * 200),)), UNIT)
    assert text is not None
    assert "answered 'word word word" in text
    assert "\n" not in text
    assert len(text) < 600
