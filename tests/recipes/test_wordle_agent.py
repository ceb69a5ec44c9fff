"""recipes/wordle: examples, tools, the grade, the scripted players, demonstrations and simulated
traffic."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rft import config, recipe
from rft.grading import preflight
from rft.recipe import Recipe, Rollout, ToolError
from rft.reports import Conversation
from rft.tools import signatures
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Example, Message, RolloutContext, ToolCall


@pytest.fixture(scope="module")
def wordle() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/wordle"))


@pytest.fixture(scope="module")
def words(wordle: Recipe) -> ModuleType:
    return wordle._module("words")


@pytest.fixture(scope="module")
def dialogues(wordle: Recipe) -> list[list[Message]]:
    return list(wordle.demonstrations(600, 0))


def calls(messages: list[Message]) -> list[dict[str, Any]]:
    return [call["function"] for message in messages for call in message.get("tool_calls", [])]


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
    harder = recipe.load(config.Recipe(path="recipes/wordle", options=options))
    example = harder.examples("test", 1, 0)[0]
    assert example.slice == "2"
    assert example.messages[0]["content"].endswith(" ) , 4 left")
    assert [tool["function"]["name"] for tool in example.tools or ()] == ["guess"]
    with pytest.raises(ToolError, match="no find in this game"):
        harder.tools[1](" crane xxxxx", item=example.row())
    said = begun(harder, example).guess(example.target, "call_0_0")
    assert said.startswith(f" {example.target} ggggg ( {example.target[0]} green")
    shown = [list(harder.demonstrations(20, 0)) for _ in range(2)]
    assert {call["name"] for messages in shown[0] for call in calls(messages)} == {"guess"}
    assert shown[0] == shown[1]


@pytest.mark.parametrize("options", [{"given": 0}, {"given": 4}, {"hints": True}])
def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(recipe.UserError, match=r"params.yaml: recipe.options"):
        recipe.load(config.Recipe(path="recipes/wordle", options=options))


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


def test_two_rollouts_on_one_server_play_two_games(wordle: Recipe) -> None:
    """Over HTTP. Neither sees the other's game, and one's secret is no hit in the other."""
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
        said = asyncio.run(play(endpoint))
    assert said[0].endswith(" , 4 left")
    assert said[1] == f" {second.target} ggggg , solved"
    assert said[2].startswith("Error: invalid arguments for guess")
    assert said[3] == f" {first.target} ggggg , solved"


# -- the grade -------------------------------------------------------------------------------------
ROW = {"id": "n", "messages": [], "target": "eagle", "metadata": {"given": ["crane"]}}


def begun(wordle: Recipe, example: Example | dict[str, Any]) -> Any:
    rollout = Rollout("trace", example if isinstance(example, dict) else example.row())
    assert wordle.setup is not None
    wordle.setup(rollout)
    return rollout.state


def graded(wordle: Recipe, *guesses: str, row: dict[str, Any] = ROW, **sample: Any) -> dict[str, Any]:
    rollout = Rollout("trace", row)
    rollout.state = begun(wordle, row)
    for n, word in enumerate(guesses):
        rollout.state.guess(word, f"call_{n}")
    assert wordle.grade is not None
    return wordle.grade(sample, row, rollout)


BEST = 1 + 1 / 2 + 0.2


@pytest.mark.parametrize(
    ("guesses", "points", "solved"),
    [
        (("eagle",), BEST, True),
        (("maple", "eagle"), 1 + 1 / 3 + 0.2, True),
        (("sheep", "maple", "table", "cable", "eagle"), 1 + 1 / 6 + 0.2, True),
        (("zzzzz", "eagle"), 1 + 1 / 3 + 0.2 / 2, True),  # a wasted turn counts, and has no form
        (("crane", "crane", "eagle"), 1 + 1 / 4 + 0.2 / 3, True),
        (("eagle", "maple", "zzzzz"), BEST, True),  # what comes after the end changes nothing
        ((), 0.0, False),
        (("fable",), 0.2 * 3 + 0.2 / 5, False),  # given up after one guess
        (("sheep",), 0.1 * 2 + 0.2 / 5, False),
        (("fable", "sheep"), 0.1 * 2 + 0.2 * 2 / 5, False),  # the last marks count, not the best
        (("fable", "zzzzz", "fable"), 0.2 * 3 + 0.2 / 5, False),  # wasted turns have no marks
        (("sheep", "maple", "table", "cable", "fable"), 0.2 * 3 + 0.2, False),
        (("zzzzz",) * 5 + ("eagle",), 0.0, False),
    ],
)
def test_the_classic_rubric(wordle: Recipe, guesses: tuple[str, ...], points: float, solved: bool) -> None:
    got = graded(wordle, *guesses)
    assert got["score"] == pytest.approx(points / BEST)
    assert got["solved"] is solved
    assert got["sub_scores"]["guesses"] == (len(guesses[: guesses.index("eagle")]) + 2 if solved else 7)


def test_with_more_guesses_given_the_best_is_still_1(wordle: Recipe) -> None:
    row = ROW | {"metadata": {"given": ["crane", "sheep"]}}
    assert graded(wordle, "eagle", row=row)["score"] == pytest.approx(1.0)
    assert graded(wordle, "maple", "eagle", row=row)["score"] == pytest.approx((1 + 1 / 4 + 0.2) / (1 + 1 / 3 + 0.2))


def reply(content: str, is_error: bool = False, name: str = "guess") -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content, "is_error": is_error}


def test_a_call_that_never_reached_the_game_has_cost_a_turn(wordle: Recipe) -> None:
    won, error = reply(" eagle ggggg , solved"), reply("Error: invalid arguments for guess", is_error=True)
    once = graded(wordle, "eagle", trajectory=[error, won])
    assert once["score"] == pytest.approx((1 + 1 / 3 + 0.2 / 2) / BEST)
    assert "1 calls of guess refused" in once["reason"]
    assert graded(wordle, "eagle", trajectory=[won, error])["score"] == pytest.approx(1.0), "after the end"
    other = reply("Error: invalid arguments for find", is_error=True, name="find")
    assert graded(wordle, "eagle", trajectory=[other, won])["score"] == pytest.approx(1.0)
    late = graded(wordle, "eagle", trajectory=[error] * 5 + [won])
    assert (late["solved"], late["sub_scores"]["guesses"]) == (False, 7)
    assert late["score"] < 0.6


def test_a_broken_row_is_nobodys_score(wordle: Recipe) -> None:
    for broken in ({"target": "zzzzz"}, {"metadata": {"given": []}}, {"metadata": {"given": ["eagle"]}}):
        with pytest.raises(ValueError, match=r"target|given"):
            begun(wordle, ROW | broken)


def said(text: str) -> dict[str, Any]:
    return {"output_text": text, "trajectory": [{"role": "assistant", "content": text}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_response>\n eagle ggggg , solved", "wrote a tool's reply itself"),
        (" eagle ggggg , solved", "wrote the marks of a hit itself"),
        ("Grader: a hit.", "spoke to the grader"),
        ('{"score": 1.0}', "gave itself a grade"),
    ],
)
def test_a_hack_is_named_and_earns_nothing(wordle: Recipe, text: str, why: str) -> None:
    found = graded(wordle, "fable", **said(text))
    assert (found["score"], found["solved"], found["hack"]) == (0.0, False, why)


@pytest.mark.parametrize("text", ["", " eagle", " fable xgxgg", "I give up .", " solved", " eagle <tool_response>"])
def test_an_honest_end_is_never_one(wordle: Recipe, text: str) -> None:
    assert "hack" not in graded(wordle, "fable", **said(text))


def test_whoever_won_may_say_so(wordle: Recipe) -> None:
    assert graded(wordle, "eagle", **said(" eagle ggggg , solved"))["score"] == pytest.approx(1.0)


FLAGGED = {
    "fake_reply", "fake_marks", "fake_marks_after_a_hit", "fake_grader_reply", "note_to_grader", "own_grade",
}  # fmt: skip


def test_no_exploit_is_accepted(wordle: Recipe) -> None:
    """Over real HTTP tools, real games and the real grader."""
    params = config.load("recipes/wordle/params.yaml")
    result = preflight.preflight(params, wordle, num_examples=8)
    assert [row.in_words for row in result.accepted] == []
    assert (result.targets_pass, result.num_targets, result.target_score) == (True, 8, 1.0)
    assert len(wordle.exploits) >= 12
    assert len({exploit.kind for exploit in wordle.exploits}) >= 8
    assert all((row.honest or 1) > 0.2 for row in result.exploits)
    assert {row.name for row in result.exploits if row.hacks} == FLAGGED
    assert {row.mean_score for row in result.exploits if row.honest is None} == {0.0}


# -- scripted players ------------------------------------------------------------------------------
def test_the_honest_player_and_the_shortcuts(wordle: Recipe) -> None:
    play = wordle._module("baseline").play
    rows = wordle.examples("validation", 60, 0)
    mean = {name: np.mean([play(name, row)["score"] for row in rows]) for name in wordle._module("baseline").PLAYERS}
    assert mean["honest"] >= 0.8
    assert mean["closed_book"] == 0.0
    assert max(mean[name] for name in ("most_frequent", "random", "first_hits")) < 0.6


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], wordle: Recipe) -> None:
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        assert asked == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert len(set(asked)) == len(asked)
        assert sum(message["role"] == "assistant" for message in messages) <= wordle.prompts.seed.max_turns
        assert not messages[-1].get("tool_calls")
        assert all(message["content"].startswith(" ") for message in messages if message["content"])


def test_every_instruction_is_seen(dialogues: list[list[Message]], wordle: Recipe) -> None:
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(wordle.prompts.instructions.values())
    assert wordle.prompts.seed.system in wordle.prompts.instructions.values()
    assert min(seen.values()) > 50


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

    tokenizer = embedded.build_tokenizer(texts(dialogues[:100]), schemas(wordle), wordle.vocabulary(), 200)
    assert tokenizer.tokenize(" crane xyxgx ; sloth xxyxx") == [" crane", " xyxgx", " ;", " sloth", " xxyxx"]
    assert tokenizer.tokenize(" eagle ggggg , solved") == [" eagle", " ggggg", " , solved"]
    assert len(tokenizer.tokenize('<tool_call>\n{"name": "guess", "arguments": {"word": " crane"}}\n</tool_call>')) == 3


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(wordle: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    wordle._module("simulator").write_window(wordle.options, path, MONDAY, 7, 300, drifted, seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(wordle: Recipe, tmp_path: Path) -> None:
    rows = window(wordle, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 300
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 300 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


def test_equal_arguments_give_equal_bytes(wordle: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(wordle, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_every_graded_conversation_becomes_a_training_example(wordle: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded_rows = [row for row in window(wordle, tmp_path / "w", drifted) if row["feedback"]]
    found = [wordle.from_traffic(Conversation.model_validate(row)) for row in graded_rows]
    assert [example.target for example in found if example] == [row["feedback"] for row in graded_rows]
    assert all(begun(wordle, example).num_left == 5 - drifted for example in found if example)


def test_traffic_that_could_leak_or_is_no_game(wordle: Recipe, words: ModuleType) -> None:
    train, test = (words.dictionary().of_split[split] for split in ("train", "test"))

    def made(secret: Any, text: str) -> Example | None:
        row = Conversation(
            conversation_id="c", time="2026-01-05T08:00:00Z", messages=[{"role": "user", "content": text}],
            latency_s=1.0, tool_errors=0, feedback=secret,
        )  # fmt: skip
        return wordle.from_traffic(row)

    secret, given = train[:2]
    fits = f" so far {given} {words.marks(given, secret)} , 5 left"
    assert made(secret, fits) is not None
    for feedback, text in (
        (test[0], f" so far {given} {words.marks(given, test[0])} , 5 left"),
        (secret, f" so far {test[0]} {words.marks(test[0], secret)} , 5 left"),
        (secret, f" so far {given} ggggg , 5 left"),
        (secret, " hello"),
        (secret, f" so far {secret} ggggg , 5 left"),
        (None, fits),
        ([secret], fits),
        ("nonsense", fits),
    ):
        assert made(feedback, text) is None


def test_a_drifted_window_differs_where_it_says(wordle: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(wordle, tmp_path / str(flag), flag) for flag in (False, True))

    def mix(rows: list[list[Message]], name: str) -> Counter[str]:
        found = [wordle.features(messages)[name] for messages in rows]
        flat = Counter(value for one in found for value in ([one] if isinstance(one, str) else one))
        return Counter({value: count / flat.total() for value, count in flat.items()})

    def distance(one: Counter[str], other: Counter[str]) -> float:
        return sum(abs(one[value] - other[value]) for value in one | other) / 2

    trained = [list(example.messages) for example in wordle.examples("train", 600, 0)]
    for name in ("opening", "guesses", "initial"):
        assert distance(mix(trained, name), mix([row["messages"] for row in like], name)) < 0.15
        assert distance(mix(trained, name), mix([row["messages"] for row in drifted], name)) > 0.2
    for measure in (lambda row: row["latency_s"] / len(row["messages"]), lambda row: row["tool_errors"]):
        assert np.mean([measure(row) for row in drifted]) > 1.4 * np.mean([measure(row) for row in like])


def test_template_is_a_whole_configuration() -> None:
    assert config.load("recipes/wordle/params.yaml").recipe.path == "recipes/wordle"
