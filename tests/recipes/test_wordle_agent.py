"""recipes/wordle: examples, tools, scripted players and their demonstrations."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rft import config, recipe
from rft.recipe import Recipe, Rollout, ToolError
from rft.tools import signatures
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Example, Message, RolloutContext, ToolCall

pytestmark = pytest.mark.usefixtures("ready_server")


@pytest.fixture(scope="module")
def wordle() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/wordle/recipe"))


@pytest.fixture(scope="module")
def words(wordle: Recipe) -> ModuleType:
    return wordle._module("words")


@pytest.fixture(scope="module")
def dialogues(wordle: Recipe) -> list[list[Message]]:
    return list(wordle.demonstrations(400, 0))


def calls(messages: list[Message]) -> list[dict[str, Any]]:
    return [call["function"] for message in messages for call in message.get("tool_calls", [])]


def begun(wordle: Recipe, example: Example | dict[str, Any]) -> Any:
    rollout = Rollout("trace", example if isinstance(example, dict) else example.row())
    assert wordle.setup is not None
    wordle.setup(rollout)
    return rollout.state


# -- examples --------------------------------------------------------------------------------------
def test_no_word_of_an_example_is_in_two_splits(wordle: Recipe, words: ModuleType) -> None:
    texts: list[str] = []
    for split in ("train", "validation", "test"):
        found = wordle.examples(split, 300, 0)
        for example in found:
            assert {words.split_of(word) for word in (example.target, *example.metadata["given"])} == {split}
        texts += {example.messages[0]["content"] for example in found}
    assert len(texts) == len(set(texts))


def test_every_secret_is_asked_for_once_before_any_comes_again(wordle: Recipe, words: ModuleType) -> None:
    secrets = words.dictionary().of_split["test"]
    found = [example.target for example in wordle.examples("test", 2 * len(secrets), 0)]
    assert sorted(found[: len(secrets)]) == sorted(found[len(secrets) :]) == sorted(secrets)


def test_form_of_an_example(wordle: Recipe, words: ModuleType) -> None:
    for example in wordle.examples("train", 200, 0):
        (given,) = example.metadata["given"]
        marks = words.marks(given, example.target)
        assert example.messages[0]["content"].endswith(f" {given} {marks} , 5 left")
        assert example.messages[0]["content"].startswith(" ")
        assert given != example.target
        assert example.target not in example.messages[0]["content"].split()
        assert example.tools is None


def test_same_seed_same_bytes(wordle: Recipe) -> None:
    first, again, other = ([e.line for e in wordle.examples("validation", 50, seed)] for seed in (3, 3, 4))
    assert first == again != other
    assert wordle.examples("validation", 20, 3) == wordle.examples("validation", 50, 3)[:20]


def test_harder_options_travel_with_the_example() -> None:
    options = {"given": 2, "find": False, "spelled": True}
    harder = recipe.load(config.Recipe(path="recipes/wordle/recipe", options=options))
    example = harder.examples("test", 1, 0)[0]
    assert example.slice == "2"
    assert example.messages[0]["content"].endswith(" ) , 4 left")
    assert [tool["function"]["name"] for tool in example.tools or ()] == ["guess"]
    with pytest.raises(ToolError, match="no find in this game"):
        harder.tools[1](" crane xxxxx", item=example.row())
    reply = begun(harder, example).guess(example.target, "call_0_0")
    assert reply.startswith(f" {example.target} ggggg ( {example.target[0]} green")
    shown = [list(harder.demonstrations(20, 0)) for _ in range(2)]
    assert {call["name"] for messages in shown[0] for call in calls(messages)} == {"guess"}
    assert shown[0] == shown[1]


@pytest.mark.parametrize("options", [{"given": 0}, {"given": 4}, {"hints": True}])
def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(recipe.UserError, match=r"params.yaml: recipe.options"):
        recipe.load(config.Recipe(path="recipes/wordle/recipe", options=options))


# -- tools -----------------------------------------------------------------------------------------
def test_find_lists_what_fits_and_knows_no_secret(wordle: Recipe, words: ModuleType) -> None:
    guess, find = wordle.tools
    assert set(signatures.schema(guess)["function"]["parameters"]["properties"]) == {"word"}
    assert set(signatures.schema(find)["function"]["parameters"]["properties"]) == {"clues", "k"}
    listed = find(" crane xyxgx ; sloth xxyxx").split()
    assert 0 < len(listed) <= 4
    assert all(words.marks("crane", word) == "xyxgx" for word in listed)
    assert find(" crane xyxgx") == find("crane xyxgx"), "the same words in the same order"
    assert len(find(" crane xxxxx", k=10).split()) == 10
    assert find(" crane ggggg ; sloth ggggg") == " none"
    for refused in ("", " crane", "item.target", " crane xyz", " ".join(["crane xxxxx"] * 6)):
        with pytest.raises(ToolError, match="expected 1 to 5 clues"):
            find(refused)


@pytest.mark.slow
def test_two_rollouts_on_one_server_play_two_games(wordle: Recipe) -> None:
    """Over HTTP. Neither sees the other's game, and one's secret is not a hit in the other."""
    first, second = wordle.examples("train", 2, 0)

    async def play(endpoint: Any) -> list[str]:
        async with ToolClient(endpoint, config.Tools(), schemas(wordle)) as client:
            contexts = [RolloutContext(f"trace_{n}", example) for n, example in enumerate((first, second))]

            async def guess(n: int, number: int, word: str, **more: Any) -> str:
                call = ToolCall(f"call_{number}_0", "guess", json.dumps({"word": word, **more}))
                return (await client.call_all([call], contexts[n]))[0].output

            return [
                await guess(0, 0, second.target),
                await guess(1, 0, second.target),
                await guess(0, 1, first.target, trace_id="trace_1"),
                await guess(0, 2, first.target),
            ]

    with running(wordle, config.Tools()) as endpoint:
        replies = asyncio.run(play(endpoint))
    assert replies[0].endswith(" , 4 left")
    assert replies[1] == f" {second.target} ggggg , solved"
    assert replies[2].startswith("Error: invalid arguments for guess")
    assert replies[3] == f" {first.target} ggggg , solved"


# -- scripted players ------------------------------------------------------------------------------
def test_the_honest_player_and_the_shortcuts(wordle: Recipe) -> None:
    baseline = wordle._module("baseline")
    rows = wordle.examples("test", 60, 0)
    mean = {way: np.mean([baseline.score(way, wordle.options, row) for row in rows]) for way in baseline.WAYS}
    assert mean["honest"] >= 0.8
    assert mean["closed_book"] == 0.0
    assert max(mean[way] for way in ("first_hit", "most_frequent", "random")) < 0.6
    assert baseline.score("random", wordle.options, rows[0]) == baseline.score("random", wordle.options, rows[0])


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], wordle: Recipe) -> None:
    most = wordle.prompts.seed.max_turns
    assert most is not None
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        assert asked == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert len(set(asked)) == len(asked)
        assert sum(message["role"] == "assistant" for message in messages) <= most
        assert not messages[-1].get("tool_calls")
        assert all(message["content"].startswith(" ") for message in messages if message["content"])


def test_every_instruction_is_seen(dialogues: list[list[Message]], wordle: Recipe) -> None:
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(wordle.prompts.instructions.values())
    assert wordle.prompts.seed.system in wordle.prompts.instructions.values()
    assert min(seen.values()) > 30


def test_demonstrations_are_training_games(dialogues: list[list[Message]], wordle: Recipe, words: ModuleType) -> None:
    """Their secrets are not in them, unless they were found. Nor is one of another split found."""
    clues_in = wordle._module("tools").clues_in
    for messages in dialogues:
        assert {words.split_of(guess) for guess, _ in clues_in(messages[1]["content"])} == {"train"}
        found = [guess for message in messages for guess, marks in clues_in(message["content"]) if marks == "ggggg"]
        assert {words.split_of(guess) for guess in found} <= {"train"}


def test_demonstrations_are_repeatable(dialogues: list[list[Message]], wordle: Recipe) -> None:
    assert list(wordle.demonstrations(50, 0)) == dialogues[:50]
    assert list(wordle.demonstrations(50, 1)) != dialogues[:50]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], wordle: Recipe) -> None:
    find = wordle.tools[1]
    for messages in dialogues[:100]:
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages:
            for call in message.get("tool_calls", []):
                if call["function"]["name"] == "find":
                    arguments = json.loads(call["function"]["arguments"])
                    assert replies[call["id"]] in [find(**arguments, k=k) for k in (2, 4, 6)]


@pytest.mark.slow
def test_a_mediocre_teacher(wordle: Recipe) -> None:
    """Two habits, the better one in the minority: that is what the warm start is to begin from."""
    player, data = wordle._module("player"), wordle._module("examples")
    rng = np.random.default_rng(0)
    boards = data.deal(data.Options(), "train", random.Random(0))
    solved: dict[bool, list[bool]] = {True: [], False: []}
    num_calls: dict[bool, list[int]] = {True: [], False: []}
    for n in range(400):
        careful = n % 4 == 0
        episode = player.begin(next(boards), " play .")
        if careful:
            player.play_with_care(episode)
        else:
            player.follow_old_habits(episode, player.Habits(), random.Random(int(rng.integers(1 << 30))))
        solved[careful].append(episode.game.is_solved)
        num_calls[careful].append(episode.calls)
    assert np.mean(solved[True]) > 0.95
    assert 0.1 < np.mean(solved[False]) < 0.5
    assert np.percentile(num_calls[False], 95) > np.percentile(num_calls[True], 95)


def test_a_clue_is_two_tokens(wordle: Recipe, dialogues: list[list[Message]]) -> None:
    from rft.models import embedded
    from rft.stages.policy import texts

    tokenizer = embedded.build_tokenizer(texts(dialogues[:40]), schemas(wordle), wordle.vocabulary(), 200)
    assert tokenizer.tokenize(" crane xyxgx ; sheep xxyxx") == [" crane", " xyxgx", " ;", " sheep", " xxyxx"]
    assert tokenizer.tokenize(" eagle ggggg , solved") == [" eagle", " ggggg", " , solved"]
    assert len(tokenizer.tokenize('<tool_call>\n{"name": "guess", "arguments": {"word": " crane"}}\n</tool_call>')) == 3
