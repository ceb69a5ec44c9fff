"""recipes/mail_search: scripted agents, demonstrations and simulated traffic."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import changelog_folder
import numpy as np
import pytest

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Example, Recipe
from rft.reports import Conversation
from rft.tools import signatures
from rft.types import Message


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFT_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changelog_folder.make(tmp_path_factory.mktemp("doc"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe", options={"mailbox": str(folder)}))


@pytest.fixture(scope="module")
def dialogues(ours: Recipe) -> list[list[Message]]:
    return list(ours.demonstrations(1200, 0))


# -- scripted agents -------------------------------------------------------------------------------
def test_an_honest_agent_and_the_shortcuts(ours: Recipe) -> None:
    baseline = ours._module("baseline")
    rows = ours.examples("test", 60, 0)
    means = {name: np.mean([baseline.score(name, ours.options, row) for row in rows]) for name in baseline.WAYS}
    assert means.pop("honest") > 0.95
    assert means.pop("closed_book") == 0.0
    assert means.pop("unknown") == pytest.approx(0.235)
    assert set(means) == {"most_frequent", "first_hit", "longest_document", "random"}
    assert max(means.values()) < 0.35, means


@pytest.mark.parametrize("options", [{}, {"by_month": True, "whole_mails": True}])
def test_the_scripts_understand_each_question_by_its_words(folder: Path, options: dict[str, Any]) -> None:
    """They search for what the makers of the question meant, and do not see the target."""
    made = recipe.load(config.Recipe(path="recipes/mail_search/recipe", options={"mailbox": str(folder), **options}))
    baseline = made._module("baseline")
    for row in made.examples("train", 200, 0):
        asked = baseline.understood(row.messages[0]["content"])
        assert (asked.kind, asked.thread, asked.keywords) == (
            row.metadata["kind"],
            row.metadata["named"],
            row.target["search"],
        )
        assert asked.month == row.metadata.get("month", "")
        assert (asked.answer, asked.mail) == (None, None)
    with pytest.raises(UserError, match="questions about changelogs only"):
        baseline.understood("What does the boat cost?")


def test_a_mediocre_teacher(ours: Recipe) -> None:
    """What the warm start is to begin from: right in about half of the episodes, over a seventh of
    them longer than a search, a mail and an answer."""
    assert ours.grade is not None
    clerk, questions, data = ours._module("clerk"), ours._module("questions"), ours._module("examples")
    baseline, inbox = ours._module("baseline"), data.inbox_of(ours.options)
    rng = random.Random(0)
    stream = questions.write(inbox, data.style(ours.options), "train", rng, repeat=True)
    scores: dict[str, list[float]] = {"old": [], "exact": []}
    turns: dict[str, list[int]] = {"old": [], "exact": []}
    for asked in (next(stream) for _ in range(600)):
        row = data._example("n", asked, inbox, ours.options).row()
        for way in scores:
            episode = clerk.Episode(inbox, clerk.View(), [])
            if way == "old":
                clerk.follow_old_habits(asked, episode, clerk.Habits(), rng)
            else:
                clerk.work_exactly(asked, episode)
            scores[way].append(ours.grade(baseline.sample_of(episode.messages), row)["score"])
            turns[way].append(episode.turn)
    assert 0.2 < np.mean(scores["old"]) < 0.45
    assert np.mean(scores["exact"]) > 0.95
    assert np.mean(turns["old"]) > 1.15 * np.mean(turns["exact"])
    assert max(turns["exact"]) == 3
    assert 5 <= max(turns["old"]) <= clerk.MAX_LOOKS + 1


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], ours: Recipe) -> None:
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        (last,) = messages[-1]["tool_calls"]
        assert last["function"]["name"] == "return_final_answer"
        assert set(json.loads(last["function"]["arguments"])) == {"answer", "sources"}
        asked = [call["id"] for message in messages[:-1] for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert sum("tool_calls" in message for message in messages) <= (ours.prompts.seed.max_turns or 0)
        assert all(message["content"].startswith(" ") for message in messages[:2])


def test_every_instruction_is_seen_and_shifts_the_habits(dialogues: list[list[Message]], ours: Recipe) -> None:
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(ours.prompts.instructions.values())
    assert ours.prompts.seed.system in seen
    assert min(seen.values()) > 100
    long_ones = {
        name: np.mean([len(messages) > 7 for messages in dialogues if messages[0]["content"] == text])
        for name, text in ours.prompts.instructions.items()
    }
    assert long_ones["exact"] < long_ones["seed"] < long_ones["browse"]


def test_demonstrations_ask_for_training_packages_only(dialogues: list[list[Message]], ours: Recipe) -> None:
    split_of = ours._module("questions").split_of
    for messages in dialogues:
        named = [word for word in messages[1]["content"].split() if word.startswith("pack")]
        assert [split_of(package) for package in named] == ["train"]
    assert list(ours.demonstrations(50, 0)) == dialogues[:50]
    assert list(ours.demonstrations(50, 1)) != dialogues[:50]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], ours: Recipe) -> None:
    tools = {tool.__name__: tool for tool in ours.tools}
    item = ours.examples("train", 1, 0)[0].row()
    views = [{}, {"max_results": 1}, {"max_results": 5}, {"show": "subject, sender, date"}]
    for messages in dialogues[:200]:
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages[2:-1]:
            for call in message.get("tool_calls", []):
                arguments, name = json.loads(call["function"]["arguments"]), call["function"]["name"]
                shown = [
                    tools[name](**arguments, **extra, item=item)
                    for extra in (views if name == "search_emails" else [{}])
                ]
                assert replies[call["id"]] in shown


def test_settings_of_the_prompt_search_fit_the_schema(ours: Recipe) -> None:
    schema = signatures.schema(ours.tools[0])["function"]["parameters"]["properties"]
    offered = ours.prompts.tool_defaults["search_emails"]
    assert offered["show"] == schema["show"]["enum"]
    assert all(
        schema["max_results"]["minimum"] <= k <= schema["max_results"]["maximum"] for k in offered["max_results"]
    )
    assert ours.prompts.seed.tool_defaults["search_emails"] == {
        name: schema[name]["default"] for name in ("max_results", "show")
    }


def test_template_is_a_whole_configuration() -> None:
    loaded = config.load("recipes/mail_search/params.yaml")
    assert loaded.recipe.path == "recipe"
    assert loaded.tools.traits["return_final_answer"].terminal
    assert loaded.gate.max_abstention_increase is not None


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(ours: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    ours.simulate(path, start=MONDAY, days=7, conversations=400, drifted=drifted, seed=seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(ours: Recipe, tmp_path: Path) -> None:
    rows = window(ours, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 400
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 400 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(ours: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(ours, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_graded_traffic_becomes_examples(ours: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded = [row for row in window(ours, tmp_path / "w", drifted) if row["feedback"]]
    found = [ours.from_traffic(Conversation.model_validate(row)) for row in graded]
    assert all(found)
    for example, row in zip(found, graded, strict=True):
        assert isinstance(example, Example)
        assert {name: example.target[name] for name in ("answer", "message_id")} == row["feedback"]
        if not drifted:  # in words that the honest script knows
            assert ours._module("baseline").score("honest", ours.options, example) == 1.0


@pytest.mark.parametrize(
    "feedback",
    [
        "929273",
        {"answer": "1"},
        {"answer": "1", "message_id": None},
        {"answer": "1", "message_id": "m000000"},
        {"answer": 1, "message_id": "m000000"},
    ],
)
def test_feedback_that_makes_no_example(ours: Recipe, tmp_path: Path, feedback: Any) -> None:
    row = window(ours, tmp_path / "w", False)[0]
    assert ours.from_traffic(Conversation.model_validate({**row, "feedback": feedback})) is None


def test_feedback_about_a_tested_package_makes_no_example(ours: Recipe, tmp_path: Path) -> None:
    row = window(ours, tmp_path / "w", False)[0]
    tested = ours.examples("test", 30, 0)
    for example in tested:
        row["messages"][1] = example.messages[0]
        row["feedback"] = {name: example.target[name] for name in ("answer", "message_id")}
        assert ours.from_traffic(Conversation.model_validate(row)) is None


def mix(ours: Recipe, openings: list[list[Message]], feature: str) -> Counter[str]:
    found = Counter(str(ours.features(messages)[feature]) for messages in openings)
    return Counter({name: count / found.total() for name, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[name] - other[name]) for name in one | other) / 2


@pytest.mark.slow
def test_a_drifted_window_differs_where_it_says(ours: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(ours, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = [list(example.messages) for example in ours.examples("train", 400, 0)]
    for feature in ("asks", "opening"):
        reference = mix(ours, trained_on, feature)
        assert distance(reference, mix(ours, [row["messages"] for row in like], feature)) < 0.2
        assert distance(reference, mix(ours, [row["messages"] for row in drifted], feature)) > 0.3
    for measure in ("latency_s", "tool_errors"):
        assert np.mean([row[measure] for row in drifted]) > 1.4 * np.mean([row[measure] for row in like])
