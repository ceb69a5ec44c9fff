"""recipes/code_research: its questions and splits, the scripted researcher, demonstrations and
simulated traffic."""

from __future__ import annotations

import datetime
import json
import random
import statistics
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Example, Recipe
from rft.reports import Conversation
from rft.snapshots import ingest, reading
from rft.stages import drift, examples
from rft.tools import signatures
from rft.types import Message
from rft.windows import comparison, feedback, profile
from rft.windows.features import plan_of, plan_of_inputs

SMALL = {"packages": ["fsspec", "jinja2"], "worlds": 2}
SPLITS = [("train", 0), ("validation", 0), ("test", 0), ("test", 1), ("test", 2)]


def load(**options: Any) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/code_research", options={**SMALL, **options}))


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
        about = workspace.of_item(example.row())
        rows = {(row.symbol, row.path, row.value): row for row in about.rows if row.is_fact}
        known |= {(key := (f["symbol"], f["path"], f["value"])): rows[key] for f in example.target}
    return known


def score(code: Recipe, example: Example, claims: list[dict[str, str]], calls: int = 0) -> float:
    assert code.grade is not None
    text = code.answer(claims) if claims else ""
    return code.grade({"output_text": text, "num_tool_calls": calls}, example.row())["score"]


# -- splits ----------------------------------------------------------------------------------------
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


def test_harder_options(code: Recipe, workspace: ModuleType) -> None:
    several = load(min_facts=2, max_facts=6).examples("train", 40, 0)
    assert all(len(example.target) >= 2 * len(example.metadata["phrases"]) for example in several)
    calls = load(kinds=["calls"], max_facts=6).examples("train", 60, 0)
    assert {row.kind for row in facts_of(workspace, calls).values()} == {"calls"}
    honest = code._module("baseline").scripted_answer
    assert statistics.fmean(score(code, example, *honest(code.options, example)) for example in calls) >= 0.8
    described = load(describe=True, max_facts=4, min_subjects=1, max_subjects=1)
    for example in described.examples("train", 60, 0):
        question = example.messages[0]["content"]
        assert not any(name in question.split() for fact in example.target for name in fact["symbol"].split("."))
    assert load(snippets=False).examples("train", 1, 0)[0].metadata["snippets"] is False


# -- agents ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("split", "block"), SPLITS)
def test_an_honest_agent_and_shortcuts(code: Recipe, split: Any, block: int) -> None:
    """Over the recipe's own tools. The honest one asks for each subject; a shortcut does not."""
    baseline, found = code._module("baseline"), code.examples(split, 100, 0, block)

    def mean(agent: Any) -> float:
        return statistics.fmean(score(code, example, *agent(code.options, example)) for example in found)

    def closed_book(options: Any, example: Example) -> Any:
        return code.exploit_values(example)["truth"], 0

    assert mean(baseline.scripted_answer) >= 0.95
    assert mean(baseline.first_hit) <= 0.5
    assert mean(closed_book) == 0.0


def test_the_most_frequent_values_earn_nothing(code: Recipe) -> None:
    found = code.examples("train", 100, 0)
    frequent = [value for value, _ in Counter(f["value"] for e in found for f in e.target).most_common(3)]
    for example in code.examples("test", 50, 0):
        fact = example.target[0]
        for value in frequent:
            claims = [{"symbol": fact["symbol"], "path": "__init__.py", "value": value}]
            assert score(code, example, claims) == 0.0


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
        phrases = code._module("examples")._SUBJECT.findall(messages[1]["content"])
        assert len(phrases) in (2, 3)
        assert {f"{kind} {symbol}" for kind, symbol in phrases} <= allowed


def test_demonstrations_are_repeatable(dialogues: list[list[Message]], code: Recipe) -> None:
    assert list(code.demonstrations(100, 0)) == dialogues[:100]
    assert list(code.demonstrations(100, 1)) != dialogues[:100]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], code: Recipe) -> None:
    """A demonstration shows what the served tools would have answered, for one of the settings that
    may be served."""
    tools = {tool.__name__: tool for tool in code.tools}
    pools = code._module("questions").pools(code.options, "train")
    for messages in dialogues[:150]:
        about = next(known for known, asked in pools for subject in asked if subject.phrase in messages[1]["content"])
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


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(code: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    code.simulate(path, start=MONDAY, days=7, conversations=300, drifted=drifted, seed=seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(code: Recipe, tmp_path: Path) -> None:
    rows = window(code, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 300
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert conversations[-1].time.startswith("2026-01-11T")
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 300 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


def test_equal_arguments_give_equal_bytes(code: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(code, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_graded_traffic_becomes_examples_that_can_be_played(code: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded = [row for row in window(code, tmp_path / "w", drifted) if row["feedback"]]
    found = [code.from_traffic(Conversation.model_validate(row)) for row in graded]
    assert all(example is not None for example in found)
    baseline = code._module("baseline")
    for row, example in zip(graded, found, strict=True):
        assert example is not None
        assert example.target == row["feedback"]
        assert example.messages[0] == row["messages"][1]
        assert score(code, example, *baseline.scripted_answer(code.options, example)) == 1.0


def test_traffic_that_could_leak_or_is_no_grade(code: Recipe) -> None:
    ours, held_out, validation = (
        code.examples(split, 1, 0)[0]
        for split in ("train", "test", "validation")  # type: ignore[arg-type]
    )
    other = next(e for e in code.examples("train", 50, 0) if e.metadata["workspace"] != ours.metadata["workspace"])

    def conversation(feedback: Any, question: str = " find base X") -> Conversation:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "[]"}]
        return Conversation(
            conversation_id="c", time="2026-01-05T08:00:00Z", messages=messages, latency_s=1.0, tool_errors=0,
            feedback=feedback,
        )  # fmt: skip

    assert code.from_traffic(conversation(ours.target)) is not None
    for claims in (
        None, [], "x", [1], [{}], [{"symbol": 1, "path": 2, "value": 3}], held_out.target, validation.target,
        [*ours.target, *held_out.target], [*ours.target, *other.target], [ours.target[0] | {"value": "1"}],
    ):  # fmt: skip
        assert code.from_traffic(conversation(claims)) is None, claims
    assert code.from_traffic(conversation(ours.target, question=" ")) is None


def mix(code: Recipe, openings: list[list[Message]]) -> Counter[str]:
    found = Counter(kind for messages in openings for kind in code.features(messages)["kind"])
    return Counter({kind: count / found.total() for kind, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[kind] - other[kind]) for kind in one | other) / 2


def test_a_drifted_window_differs_where_it_says(code: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(code, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = mix(code, [list(example.messages) for example in code.examples("train", 600, 0)])
    assert distance(trained_on, mix(code, [row["messages"] for row in like])) < 0.1
    assert distance(trained_on, mix(code, [row["messages"] for row in drifted])) > 0.2
    for measure, factor in (
        (lambda row: len(row["messages"][1]["content"].split()), 1.2),
        (lambda row: row["latency_s"], 1.4),
        (lambda row: row["tool_errors"], 1.4),
    ):
        assert statistics.fmean(map(measure, drifted)) > factor * statistics.fmean(map(measure, like))


def test_drift_between_two_windows_is_found(code: Recipe, tmp_path: Path) -> None:
    """By the stage itself: a like window goes on, a drifted one asks for a refresh."""
    params = config.load("recipes/code_research/params.yaml")
    plan = plan_of(params, code)
    trained_on = profile.of_examples(code.examples("train", 800, 0), plan_of_inputs(params, code), "examples")

    def look(drifted: bool) -> tuple[str, set[str]]:
        log = tmp_path / f"{drifted}.jsonl"
        code.simulate(log, start=MONDAY, days=7, conversations=400, drifted=drifted, seed=2)
        snapshot = ingest.ingest(str(log), config.Traffic(), tmp_path, tmp_path / "snapshots")
        now = profile.of_parts(reading.parts(snapshot), plan, "window")
        rows = comparison.control(comparison.compare(trained_on, now, params.drift), params.drift)
        usable = sum(1 for _ in feedback.usable(reading.conversations(snapshot), code))
        seen = drift.Facts(rows, [], 800, 400, drift.tool_error_share(reading.parts(snapshot)), usable)
        return drift.decide(params.drift, seen)[0], {row.feature for row in rows if row.drifted}

    assert look(False) == ("continue", set())
    verdict, features = look(True)
    assert verdict == "refresh"
    assert features >= {"input_words", "kind", "opening"}


def test_features_come_from_the_question(code: Recipe) -> None:
    question = {"role": "user", "content": " find default Kavel.besin.ronak , base Mudok"}
    found = {"kind": ["default", "base"], "opening": "find"}
    assert code.features([question]) == found
    assert code.features([question, {"role": "assistant", "content": "raises X"}]) == found
    assert code.features([]) == {"kind": [], "opening": ""}
