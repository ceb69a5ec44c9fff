"""`rft play` (N17): one conversation with an agent, its real tools at work, and nothing left
behind."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from rft.chat.renderer import Chat
from rft.errors import InfrastructureError
from rft.recipe import load
from rft.reports import PromptSettings
from rft.rollouts.play import Table
from rft.rollouts.policy import PolicyFailed
from rft.rollouts.runner import rollout_runner
from rft.types import Example, Opening
from tasks.ledger import book
from tasks.promotion import agents
from tasks.runs import records
from tasks.runs.clone import Clone
from tests import families, scripted_policy, tiny_recipe
from tests.scripted_policy import CALL, ScriptedTurn


@pytest.fixture
def here(agent_clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    clone = Clone(Path(shutil.copytree(agent_clone, tmp_path / "clone", symlinks=True)))
    monkeypatch.chdir(clone.root)
    return clone


def name_of(clone: Clone) -> str:
    return records.load_all(clone)[-1].name


def left(clone: Clone) -> set[Path]:
    """All files of the clone, but for MLflow's and locks."""
    return {
        path
        for path in clone.root.rglob("*")
        if path.is_file() and "mlruns" not in path.parts and path.suffix != ".lock"
    }


# -- at the terminal -------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_conversation_shows_the_tools_at_work_and_leaves_nothing(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(here)
    monkeypatch.setattr(sys, "stdin", io.StringIO("value of k0012\n\nvalue of k0017\n/quit\nvalue of k0003\n"))
    assert cli.main(["play", name_of(here), "--temperature", "0", "--show-tools"]) == 0
    output = capsys.readouterr().out
    assert f"run {name_of(here)} (it waits for approval), prompt 'seed', temperature 0" in output
    assert "  lookup(key, spaces)  The value of a key." in output
    assert output.count("  → lookup(key=") >= 1
    assert output.count("  → ") == output.count("  ← ") <= 4
    assert "k0003" not in output, "nothing is heard behind /quit"
    assert left(here) == before


@pytest.mark.slow
def test_once_is_for_scripts_and_repeats_itself(here: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    """With the champion, which is the beginning; and, by its seed, in the same words again."""
    told = []
    for seed in ("1", "1"):
        assert cli.main(["play", "--once", "value of k0017", "--seed", seed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""
    assert "temperature" not in told[0], "nothing but the exchange"


@pytest.mark.slow
def test_champion_version_and_run_are_who_they_say(
    approved_clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(approved_clone)
    clone = Clone(approved_clone)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli.main(["play", "--params", "params.yaml"]) == 0
    number = book.read(clone).state.champion("tiny")
    assert f"tiny champion {number} (champion; approved by ada" in capsys.readouterr().out
    for which in ("champion", str(number), name_of(clone)):
        assert agents.find(clone, which).description == f"tiny champion {number}"
    assert agents.find(clone, "previous").description == "tiny the beginning"


@pytest.mark.slow
def test_an_example_comes_with_its_grade_and_never_from_test(
    here: Clone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {
        split: json.loads((here.root.parent / f"{split}.jsonl").read_text().splitlines()[0])["id"]
        for split in splits(here)
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli.main(["play", name_of(here), "--example", ids["validation"], "--temperature", "0"]) == 0
    output = capsys.readouterr().out
    assert f"user> value of k{ids['validation'][2:]}" in output
    assert "grade> " in output
    assert "expected " in output or "exact" in output
    for split, why in (("test", "a look at the frozen test set"), ("train", "says nothing about the agent")):
        assert cli.main(["play", name_of(here), "--example", ids[split]]) == 2
        assert f"--example {ids[split]} is a {split} example" in (output := capsys.readouterr().err)
        assert why in output
    assert cli.main(["play", "--example", "n-x"]) == 2
    assert "there is no such example. Name one of validation, such as n-" in capsys.readouterr().err


def splits(clone: Clone) -> Iterator[str]:
    from tasks.runs.artifacts import Revision

    at = Revision(clone, records.load_all(clone)[-1].revision or "")
    for split in ("validation", "test", "train"):
        at.lay(f"data/examples/{split}.jsonl", clone.root.parent / f"{split}.jsonl")
        yield split


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "--temperature -1: write 0 (greedy) or a larger number"),
        (["--temperature", "nan"], "--temperature nan"),
        (["nobody"], "no run named 'nobody'"),
        (["9"], "tiny has no champion 9"),
        (["--params", "missing.yaml"], "missing.yaml: missing"),
        (["{run}", "--params", "params.yaml"], "RUN has its own settings"),
        (["--set", "rollout.max_turnz=1"], "unknown key 'rollout.max_turnz'"),
        (["--once", "value " * 300], "its opening alone has"),
    ],
)
def test_wrong_input_is_one_message(
    here: Clone, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["play", *(one.replace("{run}", name_of(here)) for one in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err


# -- turn after turn -------------------------------------------------------------------------------
@dataclass
class Listening(scripted_policy.Scripted):
    """Remembers what each opening said."""

    openings: list[Opening] = field(default_factory=list)

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> Any:
        self.openings += openings
        return super().open(openings, seeds, temperature, max_context_tokens)


def table(tmp_path: Path, policy: Listening, stack: list[Any], **sections: Any) -> Table:
    params = tiny_recipe.params(tiny_recipe.make(tmp_path), **sections)
    runner = rollout_runner(params, load(params.recipe))
    stack.append(runner)
    return Table(runner.__enter__(), policy, PromptSettings(name="p", system="Be brief."), 1.0, 0)


@pytest.fixture
def stack() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for one in opened:
        one.__exit__(None, None, None)


def test_the_conversation_goes_on_with_all_that_was_said(tmp_path: Path, stack: list[Any]) -> None:
    policy = Listening((CALL % "{key}", "it is known"))
    talk = table(tmp_path, policy, stack)
    first, second = talk.send("value of k0001"), talk.send("and k0002")
    assert [one.trajectory.final_text for one in (first, second)] == ["it is known", "it is known"]
    assert [result.output for turn in second.trajectory.turns for result in turn.results] == [policy.results[1][0]]
    assert [message["role"] for message in policy.openings[1].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    call, result = policy.openings[1].messages[2]["tool_calls"][0], policy.openings[1].messages[3]
    assert json.loads(call["function"]["arguments"]) == {"key": "k0001"}
    assert (result["tool_call_id"], result["content"]) == (call["id"], policy.results[0][0])
    assert call["id"] not in [one.call_id for turn in second.trajectory.turns for one in turn.calls], (
        "no id is used twice"
    )
    assert not first.is_graded


def test_an_exchange_without_an_answer_is_not_part_of_what_follows(tmp_path: Path, stack: list[Any]) -> None:
    """Cut, unreadable, or lost to an outage: the messages before it stand."""
    turns = {
        0: ("yes",),
        1: (ScriptedTurn("and so on", ended=False),),
        2: ("<tool_call>oops",),
        3: (ScriptedTurn("", fails=PolicyFailed("it is gone")),),
        4: ("no",),
    }
    policy = Listening((), choose=turns.__getitem__)
    talk = table(tmp_path, policy, stack)
    assert talk.send("one").is_kept
    kept = list(talk.messages)
    for stop in ("max_tokens", "parse_error"):
        lost = talk.send("two")
        assert (lost.is_kept, lost.trajectory.stop_reason, talk.messages) == (False, stop, kept)
    with pytest.raises(InfrastructureError, match="sampler_error: it is gone"):
        talk.send("three")
    assert talk.messages == kept
    talk.send("four")
    assert [message["content"] for message in policy.openings[-1].messages] == ["Be brief.", "one", "yes", "four"]


@pytest.mark.slow
def test_an_example_is_graded_and_a_question_is_not(tmp_path: Path, stack: list[Any]) -> None:
    """An outage of the grader is no matter for who only asks."""
    policy = Listening(("0000",))
    talk = table(tmp_path, policy, stack)
    graded = talk.begin(Example("n-1", ({"role": "user", "content": "value of k0001"},), "0000"))
    assert (graded.is_graded, graded.trajectory.grade.score) == (True, 1.0)
    asked = talk.send("sure?")
    assert (asked.is_graded, asked.trajectory.grade.score) == (False, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", families.FAMILIES)
def test_every_familys_template_takes_what_was_said(tmp_path: Path, stack: list[Any], name: str) -> None:
    """Calls, results under ids of their own, an answer, and a next question."""
    talk = table(tmp_path, Listening((CALL % "{key}", "it is known")), stack)
    talk.send("value of k0001")
    tools = [
        {
            "type": "function",
            "function": {"name": "lookup", "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    text = Chat(families.tokenizer(name), tools).render([*talk.messages, {"role": "user", "content": "and k0002"}])
    for part in ("value of k0001", "lookup", "it is known", "and k0002"):
        assert part in text
