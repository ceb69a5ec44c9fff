"""recipes/filings: the scripted analyst, its demonstrations and simulated traffic, the tools, and
the cheats that must be refused."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rft import config, recipe
from rft.grading import preflight
from rft.recipe import Example, Recipe, ToolError
from rft.reports import Conversation
from rft.tools import signatures
from rft.types import Message

pytestmark = pytest.mark.usefixtures("ready_server")


@pytest.fixture(scope="module")
def filings() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/filings/recipe"))


@pytest.fixture(scope="module")
def dialogues(filings: Recipe) -> list[list[Message]]:
    return list(filings.demonstrations(400, 0))


def worth(ours: Recipe, example: Example, text: str) -> float:
    """The published reward, abstention included."""
    assert ours.grade is not None
    if example.metadata["unanswerable"]:
        return 1.0 if text == "not in filings" else -0.5
    return 0.0 if text == "not in filings" else ours.grade({"output_text": text}, example.row())["score"]


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], filings: Recipe) -> None:
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        assert messages[-1]["content"] == "not in filings" or set(json.loads(messages[-1]["content"])) == {
            "citations", "value", "unit",
        }  # fmt: skip
        asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert 1 <= len(asked) <= 7, "prompts.json allows 8 turns"
        assert all(message["content"].startswith(" ") for message in messages[:2])


def test_every_instruction_is_seen_and_shifts_the_habits(dialogues: list[list[Message]], filings: Recipe) -> None:
    texts = filings.prompts.instructions
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(texts.values())
    assert min(seen.values()) > 40
    quoted = {
        name: np.mean([_is_quoted(messages) for messages in dialogues if messages[0]["content"] == text])
        for name, text in texts.items()
    }
    assert quoted["quote"] > quoted["seed"] > quoted["check"]


def _is_quoted(messages: list[Message]) -> bool:
    """Whether every citation is a line that a tool has shown."""
    lines = {line for message in messages if message["role"] == "tool" for line in message["content"].split("\n")}
    if messages[-1]["content"] == "not in filings":
        return False
    citations = json.loads(messages[-1]["content"])["citations"]
    return bool(citations) and all(citation["quote"] in lines for citation in citations)


def test_a_mediocre_teacher(filings: Recipe) -> None:
    """A mean reward of about 0.4 is what the warm start is to begin from; with care it is 1."""
    analyst, asking, data = filings._module("analyst"), filings._module("asking"), filings._module("examples")
    known, rng = filings._module("corpora").corpus(filings.options), random.Random(0)
    writer = asking.Writer(filings.options, known, known.companies("train"), rng)
    scores: dict[bool, list[float]] = {True: [], False: []}
    for _, asked in zip(range(400), writer.write(), strict=False):
        example = data.example("x", asked, known, filings.options)
        episode = analyst.Episode([], example.row())
        with_care = rng.random() < 0.3
        if with_care:
            text = analyst.work_with_care(asked.question, episode)
        else:
            text = analyst.follow_old_habits(asked.question, episode, analyst.Habits(), rng)
        scores[with_care].append(worth(filings, example, text))
    assert np.mean(scores[True]) == 1.0
    assert 0.3 < np.mean([*scores[True], *scores[False]]) < 0.5
    assert 0.05 < np.mean(scores[False]) < 0.2


def test_demonstrations_are_about_training_companies_and_repeatable(
    dialogues: list[list[Message]], filings: Recipe
) -> None:
    known, parse = filings._module("corpora").corpus(filings.options), filings._module("questions").parse
    for messages in dialogues:
        assert known.split_of(parse(messages[1]["content"], known).company) == "train"
    assert list(filings.demonstrations(50, 0)) == dialogues[:50]
    assert list(filings.demonstrations(50, 1)) != dialogues[:50]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], filings: Recipe) -> None:
    tools = {tool.__name__: tool for tool in filings.tools}
    for messages in dialogues[:100]:
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages:
            for call in message.get("tool_calls", []):
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                settings = [{"k": k} for k in (1, 3, 5)] if name == "find_documents" else [{}]
                shown = [tools[name](**arguments, **more) for more in settings]
                assert replies[call["id"]] in shown


# -- tools -----------------------------------------------------------------------------------------
def test_tools(filings: Recipe) -> None:
    find, read, _ = filings.tools
    entry = filings._module("corpora").corpus(filings.options).entries[0]
    line = find(query=f" {entry.company} {entry.period}")
    assert line.startswith(f" {entry.company} {entry.period} {entry.doc} : ")
    assert "\n" not in line
    page = line.rpartition(" page ")[2]
    assert read(doc=f" {entry.doc}", page=int(page)).startswith(f" {entry.company} {entry.period} ")
    assert len(find(query=entry.company.split()[0], k=5).split("\n")) == 5
    assert find(query=f"{entry.company} FY1999").startswith(" no such document . nearest :\n")
    assert find(query="qqqq") == " no such document"
    for refused in (
        lambda: find(query="x" * 201), lambda: read(doc="nonsense", page=1), lambda: read(doc=entry.doc, page=99)
    ):  # fmt: skip
        with pytest.raises(ToolError):
            refused()


def test_schemas_hide_the_row_and_fit_the_prompt_search(filings: Recipe) -> None:
    known = {schema["function"]["name"]: schema["function"]["parameters"] for schema in signatures.schemas(filings)}
    assert {name: list(found["properties"]) for name, found in known.items()} == {
        "find_documents": ["query", "k"], "read_page": ["doc", "page"], "calculate": ["expression"],
    }  # fmt: skip
    number = known["find_documents"]["properties"]["k"]
    assert all(
        number["minimum"] <= k <= number["maximum"] for k in filings.prompts.tool_defaults["find_documents"]["k"]
    )
    assert filings.prompts.seed.system in filings.prompts.instructions.values()


# -- scripted agents -------------------------------------------------------------------------------
HARDER: dict[str, Any] = {
    "statements": "full", "mixed_order": True, "layout": "table", "comparatives": True, "notes": True,
    "restated_share": 0.5, "unit_switch_share": 0.5, "near_duplicate_share": 0.3, "lookup_share": 0.3,
    "programs": ["difference", "ratio", "growth"], "companies": 500,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, HARDER])
def test_an_honest_agent_solves_it_and_shortcuts_do_not(options: dict[str, Any]) -> None:
    ours = recipe.load(config.Recipe(path="recipes/filings/recipe", options=options))
    baseline, found = ours._module("baseline"), ours.examples("test", 128, 0)
    means = {name: np.mean([baseline.score(name, ours.options, each) for each in found]) for name in baseline.WAYS}
    assert means.pop("honest") == 1.0
    assert means.pop("most_frequent") == 0.125
    assert means.pop("closed_book") < 0
    assert set(means) == {"first_hit", "longest_document", "random"}
    assert max(means.values()) < 0.4, "one filing in three is the right one"


# -- exploits --------------------------------------------------------------------------------------
FLAGGED = {
    "every_number_of_the_page", "value_in_a_list", "every_page", "every_line", "value_twice", "note_to_grader",
    "injection_as_quote", "own_grade", "grade_beside_answer", "fake_tool_reply", "fake_grader_reply", "escaped_key",
}  # fmt: skip


@pytest.mark.slow
def test_no_exploit_is_accepted(filings: Recipe) -> None:
    """Over real HTTP tools and the real grader."""
    params = config.load("recipes/filings/params.yaml")
    result = preflight.preflight(params, filings, num_examples=16)
    assert [row.name for row in result.accepted] == []
    assert result.targets_pass
    assert result.target_score == 1.0
    assert len(filings.exploits) >= 60
    assert len({exploit.kind for exploit in filings.exploits}) >= 18
    assert {row.name for row in result.exploits if row.hacks} == FLAGGED == set(result.hack_source.flagged)
    assert max(row.mean_score for row in result.exploits if row.honest is None) == pytest.approx(0.125)
    honest = {row.honest for row in result.exploits if row.honest is not None}
    assert list(honest) == pytest.approx([(14 * 0.6 - 2 * 0.5) / 16])


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(ours: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    ours._module("simulator").write_window(ours.options, path, MONDAY, 7, 250, drifted, seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(filings: Recipe, tmp_path: Path) -> None:
    rows = window(filings, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 250
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert conversations[-1].time.startswith("2026-01-11T")
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 250 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(filings: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(filings, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_every_graded_conversation_becomes_an_example(filings: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded = [row for row in window(filings, tmp_path / "w", drifted) if row["feedback"]]
    found = [filings.from_traffic(Conversation.model_validate(row)) for row in graded]
    for row, example in zip(graded, found, strict=True):
        assert example is not None
        right = row["feedback"] if isinstance(row["feedback"], str) else json.dumps(row["feedback"])
        assert worth(filings, example, right) == 1.0


def mix(ours: Recipe, openings: list[list[Message]], name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for messages in openings:
        value = ours.features(messages)[name]
        found.update(value if isinstance(value, list) else [value])
    return Counter({key: count / found.total() for key, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[key] - other[key]) for key in one | other) / 2


def test_a_drifted_window_differs_where_it_says(filings: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(filings, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = [list(example.messages) for example in filings.examples("train", 600, 0)]
    for name in ("statement", "opening"):
        expected = mix(filings, trained_on, name)
        assert distance(expected, mix(filings, [row["messages"] for row in like], name)) < 0.1
        assert distance(expected, mix(filings, [row["messages"] for row in drifted], name)) > 0.2
    for measure in (lambda row: row["latency_s"], lambda row: row["tool_errors"]):
        assert np.mean([measure(row) for row in drifted]) > 1.4 * np.mean([measure(row) for row in like])
