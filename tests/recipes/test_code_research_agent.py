"""recipes/code_research: its questions and splits, the scripted researcher, demonstrations and
simulated traffic."""

from __future__ import annotations

import functools
import json
import random
import statistics
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Example, Recipe
from rft.stages import examples
from rft.tools import signatures
from rft.types import Message

SMALL = {"packages": ["fsspec"], "worlds": 2}
SPLITS = [("train", 0), ("validation", 0), ("test", 0), ("test", 1), ("test", 2)]


def load(**options: Any) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/code_research/recipe", options={**SMALL, **options}))


@pytest.fixture(scope="module")
def code() -> Recipe:
    return load()


@pytest.fixture(scope="module")
def workspace(code: Recipe) -> ModuleType:
    return code._module("workspace")


@pytest.fixture(scope="module")
def dialogues(code: Recipe) -> list[list[Message]]:
    return list(code.demonstrations(800, 0))


def facts_of(workspace: ModuleType, found: list[Example]) -> dict[tuple[str, str, str], Any]:
    """Fact -> its row, over all workspaces that the examples ask about."""
    known: dict[tuple[str, str, str], Any] = {}
    for example in found:
        rows = rows_of(workspace.of_item(example.row()))
        known |= {(key := (f["symbol"], f["path"], f["value"])): rows[key] for f in example.target}
    return known


@functools.cache
def rows_of(about: Any) -> dict[tuple[str, str, str], Any]:
    return {(row.symbol, row.path, row.value): row for row in about.rows if row.is_fact}


# -- splits ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_splits_and_blocks_share_no_module_no_name_and_no_fact(code: Recipe, workspace: ModuleType) -> None:
    """A tested module was never trained on under any of its names."""
    modules: list[set[tuple[str, str]]] = []
    facts: list[set[Any]] = []
    worlds: list[set[int]] = []
    for split, block in SPLITS:
        found = code.examples(split, 200, 0, block)  # type: ignore[arg-type]
        rows = facts_of(workspace, found)
        packages = {example.metadata["package"] for example in found}
        assert packages <= set(SMALL["packages"])
        modules.append({row.true_path for row in rows.values()})
        facts.append(set(rows))
        worlds.append({example.metadata["world"] for example in found})
    for n in range(len(SPLITS)):
        for other in range(n):
            assert not facts[n] & facts[other]
            assert not worlds[n] & worlds[other]
    split_of = code._module("packages").split_of
    for (split, block), found in zip(SPLITS, modules, strict=True):
        assert found, (split, block)
    for package in SMALL["packages"]:
        for path in code._module("packages").source(package).files:
            assert split_of(package, path) in ("train", "validation", "test")


@pytest.mark.slow
def test_modules_of_a_split_are_its_own(code: Recipe, workspace: ModuleType) -> None:
    tenth = code._module("packages").tenth
    allowed = {("train", 0): range(6), ("validation", 0): {6}, ("test", 0): {7}, ("test", 1): {8}, ("test", 2): {9}}
    for (split, block), tenths in allowed.items():
        for example in code.examples(split, 100, 0, block):  # type: ignore[arg-type]
            for row in facts_of(workspace, [example]).values():
                assert tenth(example.metadata["package"], row.true_path) in tenths


def test_blocks_are_what_the_engine_expects(code: Recipe) -> None:
    assert code.offers_blocks
    blocks = examples.tested(code, config.Examples(test=60, blocks=3))
    assert set(examples.check_blocks(blocks, disjoint_targets=True).values()) == {0}
    with pytest.raises(UserError, match=r"no block 3 of test examples: the modules make blocks 0 to 2"):
        code.examples("test", 4, 0, 3)


# -- questions -------------------------------------------------------------------------------------
def test_form_of_an_example(code: Recipe, workspace: ModuleType) -> None:
    found = code.examples("train", 300, 0)
    assert [example.id for example in found[:2]] == ["train-00000", "train-00001"]
    for example in found:
        question = example.messages[0]["content"]
        assert question == f" {' '.join(question.split())}"
        assert all(phrase in question for phrase in example.metadata["phrases"])
        assert example.slice == str(len(example.metadata["phrases"])) == str(len(example.target))
        assert not any(fact["path"] in question or fact["value"] in question.split() for fact in example.target)
    assert {example.slice for example in found} == {"2", "3"}
    kinds = Counter(phrase.split()[0] for example in found for phrase in example.metadata["phrases"])
    assert set(kinds) == {"default", "constant", "base", "raises"}
    assert min(kinds.values()) > 20


def test_same_seed_same_bytes(code: Recipe) -> None:
    first, again, other = (json.dumps([e.row() for e in code.examples("validation", 50, seed)]) for seed in (3, 3, 4))
    assert first == again != other
    assert code.examples("validation", 20, 3) == code.examples("validation", 50, 3)[:20]


def mean(code: Recipe, way: str, found: list[Example]) -> float:
    return statistics.fmean(code._module("baseline").score(way, code.options, example) for example in found)


def test_questions_with_several_facts(code: Recipe, workspace: ModuleType) -> None:
    several = load(min_facts=2, max_facts=6)
    found = several.examples("train", 40, 0)
    assert all(len(example.target) >= 2 * len(example.metadata["phrases"]) for example in found)
    assert mean(several, "honest", found) == 1.0


def test_all_callers_of_a_function(code: Recipe, workspace: ModuleType) -> None:
    calls = load(kinds=["calls"], max_facts=6)
    found = calls.examples("train", 60, 0)
    assert {row.kind for row in facts_of(workspace, found).values()} == {"calls"}
    assert max(len({fact["path"] for fact in example.target}) for example in found) > 1
    assert mean(calls, "honest", found) >= 0.8


def test_a_function_that_is_described_is_not_named(code: Recipe) -> None:
    described = load(describe=True, max_facts=4, min_subjects=1, max_subjects=1)
    found = described.examples("train", 60, 0)
    for example in found:
        question = example.messages[0]["content"]
        assert described._module("questions").phrases_in(question) == example.metadata["phrases"]
        assert not any(name in question.split() for fact in example.target for name in fact["symbol"].split("."))
    assert mean(described, "honest", found) >= 0.95


def test_values_that_search_does_not_show_must_be_read(code: Recipe) -> None:
    hidden = load(snippets=False)
    found = hidden.examples("train", 60, 0)
    assert found[0].metadata["snippets"] is False
    assert mean(hidden, "honest", found) >= 0.95
    assert mean(hidden, "first_hit", found) == 0.0
    for messages in hidden.demonstrations(60, 0):
        replies = {message["content"] for message in messages if message["role"] == "tool"}
        assert not any(
            line.split(" | ")[2].count(" ") for reply in replies for line in reply.splitlines() if " | " in line
        )


@pytest.mark.parametrize("options", [{"describe": True}, {"max_facts": 2}, {"kinds": ["base", "calls"]}])
def test_no_demonstrations_of_what_the_researcher_cannot_do(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"recipe\.options\.\w+ = .*: there are no demonstrations .* Set policy\.model"):
        next(iter(load(**options).demonstrations(1, 0)))


# -- agents ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", range(3))
def test_an_honest_agent_and_shortcuts(code: Recipe, block: int) -> None:
    """Over the recipe's own tools and grade."""
    found = code.examples("test", 60, 0, block)
    ways = {way: mean(code, way, found) for way in code._module("baseline").WAYS}
    assert ways.pop("honest") >= 0.95
    assert ways.pop("closed_book") == 0.0
    assert max(ways.values()) <= 0.5, ways


def test_a_way_reads_the_question_and_never_the_target(code: Recipe) -> None:
    baseline = code._module("baseline")
    for example in code.examples("test", 10, 0):
        blind = replace(example, target=None, metadata={**example.metadata, "phrases": None, "one_value": None})
        for way in set(baseline.WAYS) - {"closed_book"}:
            desks = [baseline.Desk(e, random.Random(0)) for e in (example, blind)]
            assert len({json.dumps(baseline.WAYS[way](desk)) for desk in desks}) == 1
            assert len(desks[1].replies) <= 15


def test_habits_leave_room_for_improvement(code: Recipe, dialogues: list[list[Message]]) -> None:
    """Mediocre on purpose: old habits are worth half of what working at once is, and have a tail of
    calls that must go."""
    questions, researcher = code._module("questions"), code._module("researcher")
    rng = random.Random(0)
    asked = questions.write(code.options, questions.pools(code.options, "train"), rng)
    scores: dict[bool, list[float]] = {True: [], False: []}
    calls: list[int] = []
    for _ in range(800):
        question = next(asked)
        episode = researcher.Episode(question, researcher.View(), [])
        at_once = rng.random() < 0.25
        if at_once:
            researcher.work_at_once(episode)
            assert episode.calls == len(question.subjects)
        else:
            researcher.follow_old_habits(episode, researcher.Habits(), rng)
        example = code._module("examples").example("x", question, code.options)
        text = episode.messages[-1]["content"]
        assert code.grade is not None
        found = code.grade({"output_text": text, "num_tool_calls": episode.calls}, example.row())
        scores[at_once].append(found["score"])
        calls.append(episode.calls)
    calls.sort()
    assert statistics.fmean(scores[True]) >= 0.98
    assert 0.4 < statistics.fmean(scores[False]) < 0.6
    assert calls[int(0.95 * len(calls))] >= 15
    assert 0.03 < sum(number > 15 for number in calls) / len(calls) < 0.12


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], code: Recipe) -> None:
    facts = code._module("facts")
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        assert facts.read(messages[-1]["content"])[0]
        asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert len(set(asked)) == len(asked) <= 19
        turns = sum(message["role"] == "assistant" for message in messages)
        assert turns <= (code.prompts.seed.max_turns or 0)
    seen = {messages[0]["content"] for messages in dialogues}
    assert seen == set(code.prompts.instructions.values())
    assert code.prompts.seed.system in seen


def test_demonstrations_ask_about_training_modules_only(
    dialogues: list[list[Message]], code: Recipe, workspace: ModuleType
) -> None:
    questions = code._module("questions")
    allowed = {subject.phrase for _, asked in questions.pools(code.options, "train") for subject in asked}
    for messages in dialogues:
        phrases = questions.phrases_in(messages[1]["content"])
        assert len(phrases) in (2, 3)
        assert set(phrases) <= allowed


def test_demonstrations_are_repeatable(dialogues: list[list[Message]], code: Recipe) -> None:
    assert list(code.demonstrations(100, 0)) == dialogues[:100]
    assert list(code.demonstrations(100, 1)) != dialogues[:100]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], code: Recipe) -> None:
    """A demonstration shows what the served tools would have answered, for one of the settings that
    may be served."""
    tools = {tool.__name__: tool for tool in code.tools}
    pools = code._module("questions").pools(code.options, "train")
    for messages in dialogues[:150]:
        phrases = set(code._module("questions").phrases_in(messages[1]["content"]))
        about = next(known for known, asked in pools if phrases <= {subject.phrase for subject in asked})
        item = {"metadata": {"package": about.package, "world": about.world, "workspace": about.key}}
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages:
            for call in message.get("tool_calls", []):
                arguments, name = json.loads(call["function"]["arguments"]), call["function"]["name"]
                settings = [{}, {"k": 1}, {"k": 3}] if name == "search" else [{}]
                assert replies[call["id"]] in [tools[name](**arguments, **extra, item=item) for extra in settings]


def test_settings_of_the_prompt_search_fit_the_schema(code: Recipe) -> None:
    schema = signatures.schema(code.tools[0])["function"]["parameters"]["properties"]
    assert "item" not in schema
    assert all(schema["k"]["minimum"] <= k <= schema["k"]["maximum"] for k in code.prompts.tool_defaults["search"]["k"])
    assert code.prompts.seed.tool_defaults["search"] == {"k": schema["k"]["default"]}


def test_the_vocabulary_cuts_names_into_two(code: Recipe) -> None:
    pieces = code.vocabulary()
    names = code._module("names")
    assert len(pieces) == len(set(pieces))
    inventor = names.Inventor("seed")
    drawn = [inventor.like(name) for name in ("timeout", "_Client", "MAX", "__x", "get_") * 200]
    assert len(set(drawn)) == len(drawn)
    assert all(name.strip("_")[:3] in pieces and name.strip("_")[3:5] in pieces for name in drawn)
