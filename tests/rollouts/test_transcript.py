"""One rollout as text: everything that was said is in it, and how it ended; the tokens behind it;
rollouts side by side."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.errors import UserError
from rft.reports import PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from rft.types import Example, GradeStatus, Scored, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored

PROMPT = PromptSettings(name="seed", system="Look it up.")
PLAIN = PromptSettings(name="plain", system="")
EXAMPLE = Example("n-0001", ({"role": "user", "content": "value of k0001"},), "9153", {"slice": "odd"})
TURNS = (
    Turn(
        "markup",
        (ToolCall("c-1", "lookup", '{"key": "k0001", "spaces": 2}'), ToolCall("c-2", "lookup", "{not json")),
        (ToolResult("c-1", "9153\nsecond line"),),
        (1, 2, 3),
        (4, 5),
        (-0.1, -3.0),
        content="",
        reasoning="I should look.",
    ),
    Turn("9153", (), (), (6, 7), (8,), (-0.2,)),
)
DONE = Trajectory(
    "trace_7", "n-0001", TURNS, StopReason.completed, Scored(0.5, components={"style": 0.25}, explanation="half"), 0.4
)


def row(
    trajectory: Trajectory = DONE, example: Example = EXAMPLE, prompt: PromptSettings = PROMPT
) -> rollout_log.LogRow:
    found = rollout_log.row(trajectory, example, 3, prompt, "train", "challenger", 12)
    return replace(found, left_out="no variance")


def text(lines: object) -> str:
    return "\n".join(line.text for line in lines)  # type: ignore[attr-defined]


def test_everything_is_in_it():
    assert text(transcript.lines(row())) == "\n".join(
        [
            "trace_7  train/challenger, step 12, example n-0001, sample 3",
            "opening of 3 tokens, with the tools' schemas",
            "system",
            "  Look it up.",
            "user",
            "  value of k0001",
            "assistant, turn 1",
            "  I should look.",
            '  → lookup(key="k0001", spaces=2)',
            "  ← 9153",
            "    second line",
            "  → lookup({not json)",
            "  ← never sent",
            "assistant, turn 2",
            "  9153",
            "end",
            "  stopped     completed after 2 turns, 2 calls, 3 tokens",
            "  grade       0.5, not solved",
            "  components  style 0.25",
            "  explanation half",
            "  reward      0.400",
            "  training    left out: no variance",
        ]
    )


def test_what_was_read_is_said_where_it_was_counted():
    counted = replace(row(), num_context_tokens=1310, num_cached_tokens=902)
    assert "  cost        1,310 tokens read, 902 of them cached\n" in text(transcript.lines(counted))


def test_what_went_wrong_is_marked():
    failed = replace(
        DONE,
        stop_reason=StopReason.tool_error,
        grade=Unscored(GradeStatus.infra_error, "HTTP 500"),
        reward=None,
        attempt=2,
    )
    shown = text(transcript.lines(row(failed)))
    assert "sample 3, refill 2" in shown
    assert "stopped     tool_error after" in shown
    assert "grade       unscored (infra_error)" in shown
    assert "reward      none" in shown
    hack = replace(DONE, grade=Scored(0.0, GradeStatus.hack), reward=0.0)
    assert "grade       0, not solved (hack)" in text(transcript.lines(row(hack)))
    caught = Scored(0.0, GradeStatus.hack, evidence=("cat tests.py", "two\nlines"), flags=("other_error",))
    shown = text(transcript.lines(row(replace(DONE, grade=caught, reward=0.0))))
    assert "  evidence    cat tests.py\n  evidence    two lines\n  flags       other_error\n" in shown
    assert "training    trained on" in text(transcript.lines(replace(row(), trained=True, left_out="")))
    nothing = replace(DONE, turns=(), stop_reason=StopReason.sampler_error)
    assert "assistant" not in text(transcript.lines(row(nothing)))


FEW_SHOT = replace(
    EXAMPLE,
    messages=(
        {"role": "system", "content": "The row's own."},
        {"role": "user", "content": "value of k0000"},
        {"role": "assistant", "content": "1234"},
        {"role": "user", "content": "value of k0001"},
    ),
)


@pytest.mark.parametrize("prompt", [PROMPT, PLAIN])
@pytest.mark.parametrize("turns", [(), TURNS[1:], TURNS])
def test_a_dialogue_is_taken_apart_where_the_policy_began(prompt: PromptSettings, turns: tuple[Turn, ...]):
    """Also when the example holds assistant messages of its own."""
    parts = transcript.dialogue(row(replace(DONE, turns=turns), FEW_SHOT, prompt))
    assert [message["content"] for message in parts.opening][1:] == ["value of k0000", "1234", "value of k0001"]
    assert parts.opening[0]["content"] == (prompt.system or "The row's own.")
    assert len(parts.turns) == len(turns)
    assert [[result["content"] for result in turn.results] for turn in parts.turns] == [
        [one.output for one in turn.results] for turn in turns
    ]


def test_a_row_without_its_turns_is_said():
    with pytest.raises(UserError, match=r"rollout trace_7 of train counts 3 turns, but its messages hold fewer"):
        transcript.dialogue(replace(row(), num_turns=3))


ODD = st.text('a "{}[]\\\n\r\x0b\u2028ü[/b]', max_size=12)


@given(arguments=ODD, name=ODD, content=ODD, result=ODD)
def test_whatever_was_said_can_be_shown(arguments: str, name: str, content: str, result: str):
    turn = Turn(content, (ToolCall("c", name, arguments),), (ToolResult("c", result),), content=content)
    shown = list(transcript.lines(row(replace(DONE, turns=(turn,)))))
    assert shown[-1].text.startswith("  training")
    assert all("\n" not in line.text for line in shown if line.kind in ("role", "result"))


# -- tokens ----------------------------------------------------------------------------------------
def test_tokens_with_their_probabilities():
    pieces = {1: "<s>", 4: "call", 5: "ing", 6: "tool", 8: "9153"}
    lines = list(transcript.token_lines(row(), lambda ids: " ".join(pieces.get(one, "?") for one in ids)))
    assert [line.kind for line in lines] == ["dim", "text", "bad", "dim", "text", "head"]
    assert lines[0].text == '    0  3 tokens given  "<s> ? ?"'
    assert lines[1].text.split() == ["3", "4", '"call"', "-0.100"]
    assert lines[2].text.split() == ["4", "5", '"ing"', "-3.000", "◀", "5.0%"]
    assert lines[3].text == '    5  2 tokens given  "tool ?"'
    assert lines[5].text == f"3 completion tokens of 8, 1 below 10%; geometric mean probability {math.exp(-1.1):.1%}"
    assert '"' not in text(transcript.token_lines(row()))


def test_a_policy_that_speaks_text_only():
    spoken = replace(DONE, turns=tuple(replace(turn, prompt_ids=(), token_ids=(), logprobs=()) for turn in TURNS))
    assert "no tokens were recorded" in text(transcript.token_lines(row(spoken)))


# -- side by side ----------------------------------------------------------------------------------
def test_facts_to_compare():
    found = transcript.facts(row())
    assert found["turn 1"] == 'lookup(key="k0001", spaces=2)\nlookup({not json)'
    assert found["turn 2"] == "9153"
    assert (found["stopped"], found["score"], found["reward"], found["training"]) == (
        "completed",
        "0.500",
        "0.400",
        "left out: no variance",
    )
    assert next(iter(found)) == "sample"
    assert json.dumps(found)
