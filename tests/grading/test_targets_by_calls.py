"""Targets that are reached by tool calls, and not by a text alone: a recipe's `turns`, as preflight
and doctor play it, and as it is found again in traffic."""

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
from rft.traffic import imitated
from tests.sick_agents import settings

pytestmark = pytest.mark.usefixtures("ready_server")

STRICT = 'sample["output_text"].strip() == item["target"]'
LOOKED_UP = f'{STRICT} and [c["function"]["name"] for c in sample["output_tools"]] == ["lookup"]'
CALL = tiny_recipe.CALL % '"k0000"'
TERMINAL = {"traits": {"lookup": {"terminal": True}}}


def reached(folder: Path, grading: str, turns: str) -> Path:
    """The tiny recipe with a grader of its own, and `turns` that returns this expression."""
    made = tiny_recipe.make(folder)
    tools = made / "tools.py"
    tools.write_text(tools.read_text().replace(STRICT, grading))
    examples = made / "examples.py"
    examples.write_text(f"{examples.read_text()}\n\ndef turns(options, example, target):\n    return {turns}\n")
    return made


def play(made: Path, **tools: Any) -> preflight.Preflight:
    params = tiny_recipe.params(made, tools=tools)
    return preflight.preflight(params, recipe.load(params.recipe), 4)


@pytest.mark.slow
def test_a_target_that_is_the_call_of_a_terminal_tool(tmp_path: Path):
    submitted = """sample["output_text"] == '{"key": "k0000"}'"""
    made = reached(tmp_path, submitted, f"[{CALL!r}]")
    assert play(made, **TERMINAL).targets_pass
    assert not play(made).targets_pass, "without the trait it is a call like any other"


@pytest.mark.slow
def test_what_stands_behind_the_answer_is_refused(tmp_path: Path):
    made = reached(tmp_path, STRICT, f"[target, {CALL!r}]")
    with pytest.raises(UserError, match=r"examples\.py: turns\(\), for hit alone: turn 1 calls no tool"):
        play(made)


@pytest.mark.slow
def test_a_tool_that_fails_leaves_nothing_measured(tmp_path: Path):
    made = reached(tmp_path, STRICT, f"[{CALL!r}, target]")
    tools = made / "tools.py"
    tools.write_text(tools.read_text().replace("    key = key.strip()\n", "    raise OSError\n"))
    (made / "exploits.jsonl").write_text("")
    with pytest.raises(InfrastructureError, match=r"turns\(\), for targets: tool lookup failed"):
        play(made, retries=0)


@pytest.mark.slow
def test_the_doctor_plays_targets_and_counts_their_calls_before(tmp_path: Path):
    made = reached(tmp_path, LOOKED_UP, f"[{CALL!r}, target]")
    announced: list[str] = []
    found = grader.grader(Setup(lambda: settings(made), announced.append))
    assert found.status == "ok", found
    assert "targets are reached by calls, and played with the exploits" in found.words
    (line,) = (text for text in announced if "plays 5 exploits" in text)
    assert "up to 96 tool calls" in line, "2 exploits on 24 examples call a tool, and targets and hits 24 each"


@pytest.mark.slow
def test_the_doctor_refuses_targets_that_do_not_pass(tmp_path: Path):
    found = grader.grader(Setup(lambda: settings(reached(tmp_path, LOOKED_UP, "[target]"))))
    assert (found.status, "itself scores 0" in found.words) == ("fail", True), found


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
    made = reached(tmp_path, STRICT, f"[{CALL!r}]")
    ours = recipe.load(config.Recipe(path=str(made)))
    right, wrong = conversation({"key": "k0000"}), conversation({"key": "k0001"})
    two, told = conversation({"key": "k0000"}, {"key": "k0000"}), conversation({"key": "k0000"}, reply=True)
    found, left_out = imitated.accepted([right, wrong, two, told], ours)
    assert [one.id for one in found] == [right.conversation_id]
    assert left_out == {"its answer was corrected": 1, "it does not end with an answer": 2}
