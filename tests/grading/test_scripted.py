"""Targets that are reached by tool calls, and not by a text alone: `answer(target)` as a list of
messages, played by preflight and doctor, and found again in traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe

from rft import config, recipe
from rft.doctor import grader
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError, UserError
from rft.grading import preflight
from rft.reports import Conversation
from rft.windows import imitated
from tests.sick_agents import settings

STRICT = 'sample["output_text"].strip() == item["target"]'
LOOKED_UP = f'{STRICT} and [c["function"]["name"] for c in sample["output_tools"]] == ["lookup"]'
CALL = tiny_recipe.CALL % '"k0000"'
TERMINAL = {"traits": {"lookup": {"terminal": True}}}


def answering(folder: Path, grading: str, answer: str) -> Path:
    """The tiny recipe with a grader of its own, and `answer(target)` that returns `answer`."""
    made = tiny_recipe.make(folder)
    tools = made / "tools.py"
    tools.write_text(tools.read_text().replace(STRICT, grading))
    examples = made / "examples.py"
    examples.write_text(f"{examples.read_text()}\n\ndef answer(target):\n    return {answer}\n")
    return made


def play(made: Path, **tools: Any) -> preflight.Preflight:
    params = tiny_recipe.params(made, tools=tools)
    return preflight.preflight(params, recipe.load(params.recipe), 4)


# -- the preflight ---------------------------------------------------------------------------------
def test_a_grader_that_looks_at_calls_passes_targets_that_make_them(tmp_path: Path):
    assert not play(answering(tmp_path / "text", LOOKED_UP, "target")).targets_pass
    worked = play(answering(tmp_path / "list", LOOKED_UP, f"[{CALL!r}, target]"))
    assert (worked.target_score, worked.num_targets) == (1.0, 4)


def test_a_text_is_not_read_for_calls(tmp_path: Path):
    """Only a list is played: a text that looks like a call is the answer itself."""
    assert play(answering(tmp_path, f'sample["output_text"] == {CALL!r}', repr(CALL))).targets_pass


def test_an_answer_that_is_the_call_of_a_terminal_tool(tmp_path: Path):
    submitted = """sample["output_text"] == '{"key": "k0000"}'"""
    made = answering(tmp_path, submitted, f"[{CALL!r}]")
    assert play(made, **TERMINAL).targets_pass
    assert not play(made).targets_pass, "without the trait it is a call like any other"


def test_the_tools_settings_are_those_of_the_seed_prompt(tmp_path: Path):
    """As in a rollout."""
    spaced = 'sample["trajectory"][1]["content"].startswith("  ")'
    made = answering(tmp_path, spaced, f"[{CALL!r}, target]")
    assert not play(made).targets_pass
    seed = {"name": "seed", "system": "", "tool_defaults": {"lookup": {"spaces": 2}}}
    (made / "prompts.json").write_text(json.dumps({"seed": seed}))
    assert play(made).targets_pass


def test_what_stands_behind_the_answer_is_refused(tmp_path: Path):
    made = answering(tmp_path, STRICT, f"[target, {CALL!r}]")
    with pytest.raises(UserError, match=r"examples\.py: answer\(\) for n-\d+: turn 1 calls no tool"):
        play(made)


def test_a_tool_that_fails_leaves_nothing_measured(tmp_path: Path):
    made = answering(tmp_path, STRICT, f"[{CALL!r}, target]")
    tools = made / "tools.py"
    tools.write_text(tools.read_text().replace("    key = key.strip()\n", "    raise OSError\n"))
    (made / "exploits.jsonl").write_text("")
    with pytest.raises(InfrastructureError, match=r"answer\(\) for n-\d+: tool lookup failed"):
        play(made, retries=0)


# -- the doctor ------------------------------------------------------------------------------------
def test_the_doctor_plays_targets_and_says_so_before(tmp_path: Path):
    made = answering(tmp_path, LOOKED_UP, f"[{CALL!r}, target]")
    announced: list[str] = []
    found = grader.grader(Setup(lambda: settings(made), announced.append))
    assert found.status == "ok", found
    assert "targets score 1 or more" in found.words
    assert any("tool calls" in words and "grades, 50 of them at once" in words for words in announced), announced


def test_the_doctor_spares_a_tool_with_side_effects(tmp_path: Path):
    made = answering(tmp_path, LOOKED_UP, f"[{CALL!r}, target]")
    params = settings(made, tools={"traits": {"lookup": {"probe": False}}})
    found = grader.grader(Setup(lambda: params))
    assert found.status == "ok", found
    assert "targets: not measured here, because the right answer calls lookup (probe: false)" in found.words


# -- traffic ---------------------------------------------------------------------------------------
def conversation(*arguments: dict[str, Any], reply: bool = False) -> Conversation:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "lookup", "arguments": json.dumps(one)}}
        for n, one in enumerate(arguments)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "value of k0000"}]
    messages.append({"role": "assistant", "content": "", "tool_calls": calls})
    if reply:
        messages += [{"role": "tool", "tool_call_id": "call_0", "content": "1234"}]
    return Conversation(
        conversation_id=f"c{len(arguments)}{reply}{arguments}",
        time="2026-01-01T00:00:00Z",
        messages=messages,
        feedback="1234",
    )


def test_a_confirmed_terminal_call_is_imitated(tmp_path: Path):
    made = answering(tmp_path, STRICT, f"[{CALL!r}]")
    ours = recipe.load(config.Recipe(path=str(made)))
    right, wrong = conversation({"key": "k0000"}), conversation({"key": "k0001"})
    two, told = conversation({"key": "k0000"}, {"key": "k0000"}), conversation({"key": "k0000"}, reply=True)
    found, left_out = imitated.accepted([right, wrong, two, told], ours)
    assert [one.id for one in found] == [right.conversation_id]
    assert left_out == {"its answer was corrected": 1, "it does not end with an answer": 2}
