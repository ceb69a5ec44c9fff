"""Answers made of several rollouts: which one is chosen, by what, and what it costs."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.errors import ConfigError, UserError
from rft.reports import Champion
from rft.rollouts import serving
from rft.rollouts.log import LogRow
from rft.rollouts.runner import Plan, RolloutRunner, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.types import Example
from tests import tiny_recipe
from tests.ladder import inside
from tests.rollouts.test_loop import PROMPT
from tests.scripted_policy import CALL, Scripted, ScriptedTurn

pytestmark = pytest.mark.usefixtures("ready_server")

TEXT = config.Serve(method="majority", k=3, over="output_text")
JSON = config.Serve(method="majority", k=3, over="output_json")
BEST = config.Serve(method="best_of_n", k=3)
PERFECT = """

def verify(messages, sample):
    return float(sample["output_text"].strip() == value(messages[-1]["content"].split()[-1]))
"""
NOSY = """

def verify(messages, sample):
    import json, pathlib
    with pathlib.Path(__file__).with_name("seen.jsonl").open("a") as seen:
        seen.write(json.dumps([messages, sample]) + "\\n")
    messages.clear(), sample.clear()
    return 0
"""
Rows = list[LogRow]


def write(folder: Path, verify: str = "") -> Path:
    made = tiny_recipe.make(folder)
    tools = made / "tools.py"
    tools.write_text(tools.read_text() + verify)
    return made


@contextmanager
def opened(made: Path) -> Iterator[RolloutRunner]:
    params = tiny_recipe.params(made, rollout={"batch": 7, "max_turns": 4})
    with rollout_runner(params, recipe.load(params.recipe)) as runner:
        yield runner


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutRunner]:
    with opened(write(tmp_path_factory.mktemp("recipe"), PERFECT)) as one:
        yield one


def play(
    runner: RolloutRunner, folder: Path, says: Callable[[int], Sequence[str | ScriptedTurn]], rows: Sequence[Example]
) -> Rows:
    """Three real rollouts of each row; the `n`-th says `says(n)`."""
    plan = Plan("challenger", "challenger", PROMPT, 1.0, 3, 0, "test")
    with RolloutStore(folder) as store:
        policy = Scripted(("",), choose=lambda n: tuple(says(n)))
        return runner.played(policy, rows, plan, store, lambda done, message: None)[0]


def served(runner: RolloutRunner, rows: Rows, serve: config.Serve) -> Rows:
    return serving.answers(rows, [0.0] * len(rows), serve, runner.recipe).rows


def samples(rows: Rows) -> list[int]:
    return [row.sample for row in rows]


def scripted_turns(*each: Any) -> Callable[[int], tuple[Any, ...]]:
    return lambda n: (each[n],)


# -- majority --------------------------------------------------------------------------------------
VOTES = st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=9)


@given(VOTES, st.integers())
def test_the_most_frequent_wins_in_any_order(votes: list[bytes | None], seed: int):
    counts = Counter(vote for vote in votes if vote is not None)
    most = {vote for vote, count in counts.items() if count == max(counts.values())}
    shuffled = random.Random(seed).sample(votes, len(votes))
    chosen = serving.majority(shuffled)
    if not most:
        assert chosen == 0, "nobody votes: the first stands"
        return
    assert shuffled[chosen] in most
    assert chosen == min(n for n, vote in enumerate(shuffled) if vote in most), "of equals, the first sampled"


def test_answers_are_compared_without_the_whitespace_around_them(runner: RolloutRunner, tmp_path: Path):
    rows = runner.recipe.examples("test", 3, 0)
    texts = ["one", "two", " two\n", "same", "other", "third", "", "", "words"]
    found = served(runner, played := play(runner, tmp_path, scripted_turns(*texts), rows), TEXT)
    assert samples(found) == [1, 0, 2], "the majority; of equals the first; an empty text has no vote"
    assert [row.example_id for row in found] == [row.id for row in rows]
    assert served(runner, played, config.Serve()) == played, "single: every rollout is an answer"


def test_json_is_compared_whatever_the_order_of_its_keys(runner: RolloutRunner, tmp_path: Path):
    rows = runner.recipe.examples("test", 4, 0)
    texts = ['{"a": 2, "b": 1}', '{"a": 1, "b": 2}', '{"b":2,"a":1.0}']
    texts += ["no", "no", "3", "null", "no", "", "9007199254740993", "9007199254740993", "7"]
    assert samples(served(runner, play(runner, tmp_path, scripted_turns(*texts), rows), JSON)) == [1, 2, 0, 2]


@pytest.mark.parametrize("serve", [TEXT, BEST])
def test_an_answer_that_lost_a_rollout_is_unscored(runner: RolloutRunner, tmp_path: Path, serve: config.Serve):
    """Else an outage would make an arm's majorities smaller, and nobody would see it."""
    rows = runner.recipe.examples("test", 2, 0)
    lost = {"stop_reason": "tool_error", "reward": None, "score": None, "solved": None, "status": "infra_error"}
    played = play(runner, tmp_path, scripted_turns("x", "x", "y", "x", "y", "y"), rows)
    cut = [replace(row, **lost) if n == 2 else row for n, row in enumerate(played)]
    found = serving.answers(cut, [0.0] * 6, serve, runner.recipe)
    assert [(row.sample, row.reward) for row in found.rows] == [(2, None), (1 if serve is TEXT else 0, 0.0)]
    assert list(found.not_served.values()) == [serving.LOST] * 2 + [serving.NOT_SERVED] * 2


@given(st.permutations(range(3)), st.sampled_from([TEXT, BEST]))
def test_grades_have_no_say(runner: RolloutRunner, order: list[int], serve: config.Serve):
    rows = GRADED.setdefault(0, _graded(runner))
    others = [replace(row, reward=float(n), score=float(n)) for n, row in zip(order, rows, strict=True)]
    assert samples(served(runner, others, serve)) == samples(served(runner, rows, serve))


GRADED: dict[int, Rows] = {}


def _graded(runner: RolloutRunner) -> Rows:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return play(runner, Path(folder), scripted_turns("1", "2", "2"), runner.recipe.examples("test", 1, 0))


# -- best of n -------------------------------------------------------------------------------------
def test_with_a_perfect_verify_the_best_is_the_maximum(runner: RolloutRunner, tmp_path: Path):
    rows = runner.recipe.examples("test", 12, 0)
    luck = random.Random(0)
    texts = [row.target if luck.random() < 0.3 else "0000" for row in rows for _ in range(3)]
    played = play(runner, tmp_path, scripted_turns(*texts), rows)
    best = [max(row.reward or 0.0 for row in group) for group in zip(*[iter(played)] * 3, strict=True)]
    assert [row.reward for row in served(runner, played, BEST)] == best
    assert 0 < sum(best) < len(best)
    assert sum(best) / 12 > sum(row.reward or 0.0 for row in played) / 36


@pytest.mark.slow
def test_verify_is_given_copies_and_no_target(tmp_path: Path):
    """It writes down all that it was given, and destroys it."""
    secret = "the-expected-answer-4711"
    told = {"role": "user", "content": "value of k0001", "target": secret, "metadata": {"expected": secret}}
    row = Example("e-1", (told,), [secret], {"note": secret})
    with opened(made := write(tmp_path, NOSY)) as runner:
        played = play(runner, tmp_path / "store", lambda n: (CALL % "{key}", "0000"), [row])
        kept = [each.messages for each in played]
        assert samples(served(runner, played, BEST)) == [0]
    seen = (made / "seen.jsonl").read_text()
    assert len(seen.splitlines()) == 3
    assert secret not in seen
    assert secret in played[0].item, "the row that tools and grader get does hold it"
    messages, sample = json.loads(seen.splitlines()[0])
    assert messages == [{"role": "system", "content": PROMPT.system}, {"role": "user", "content": "value of k0001"}]
    assert sample["output_text"] == "0000"
    assert [one["role"] for one in sample["trajectory"]] == ["assistant", "tool", "assistant"]
    assert [each.messages for each in played] == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('codes')", "KeyError: 'codes'"),
        ("return float('nan')", "returned nan, expected a finite number"),
        ("return 10 ** 400", "OverflowError"),
        ("return None", "returned None"),
        ("return '1.0'", "returned '1.0'"),
    ],
)
def test_a_verify_that_fails_is_an_error_and_no_zero(tmp_path: Path, body: str, message: str):
    with opened(write(tmp_path, f"\n\ndef verify(messages, sample):\n    {body}\n")) as runner:
        played = play(runner, tmp_path / "store", lambda n: ("0000",), runner.recipe.examples("test", 1, 0))
        with pytest.raises(UserError) as caught:
            served(runner, played, BEST)
    assert message in str(caught.value)
    assert f"{runner.recipe.folder}/tools.py: verify" in str(caught.value)
    assert played[0].rollout_id in str(caught.value)


def test_best_of_n_without_verify_is_refused_before_any_rollout(tmp_path: Path):
    made = write(tmp_path)
    params = tiny_recipe.params(made, policy={"serve": {"method": "best_of_n", "k": 3}})
    message = r"policy\.serve\.method = best_of_n, but .*has no verify.*Write it"
    with pytest.raises(ConfigError, match=message), rollout_runner(params, recipe.load(params.recipe)):
        raise AssertionError
    (tmp_path / "data/champion").mkdir(parents=True)
    (tmp_path / "data/champion/champion.json").write_text(Champion(serve=BEST).model_dump_json())
    message = r"champion\.json: serve\.method is best_of_n.*rollback"
    with inside(tmp_path), pytest.raises(ConfigError, match=message), opened(made):
        raise AssertionError


# -- what an answer costs --------------------------------------------------------------------------
def test_outcomes_are_of_the_chosen_and_costs_are_sums(runner: RolloutRunner, tmp_path: Path):
    [row] = runner.recipe.examples("test", 1, 0)
    turns = [(CALL % "{key}", row.target), ("wrong",), (CALL % "{key}", CALL % "{key}", row.target)]
    played = play(runner, tmp_path, lambda n: turns[n], [row])
    played = [replace(each, num_context_tokens=10, num_cached_tokens=None if n else 1) for n, each in enumerate(played)]
    found = serving.answers(played, [1.0, 9.0, 4.0], TEXT, runner.recipe)
    [answer] = found.rows
    assert (answer.sample, answer.reward, answer.solved, answer.stop_reason) == (0, 1.0, True, "completed")
    assert (answer.num_turns, answer.num_tool_calls) == (6, 3)
    assert (answer.num_context_tokens, answer.num_cached_tokens) == (30, None), "not counted once: not counted"
    assert found.seconds == [9.0], "of the slowest"
    assert found.not_served == {each.rollout_id: serving.NOT_SERVED for each in played[1:]}


# -- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("serve", "message"),
    [
        ({"k": 3}, "k = 3 is for majority and best_of_n"),
        ({"over": "output_text"}, "over = output_text is for majority"),
        ({"method": "majority", "over": "output_text"}, "needs k"),
        ({"method": "majority", "k": 3}, "needs over"),
        ({"method": "best_of_n", "k": 3, "over": "output_json"}, "over = output_json is for majority"),
        ({"method": "majority", "k": 1, "over": "output_text"}, "greater than or equal to 2"),
        ({"method": "best_of_n", "n": 3}, "unknown key 'policy.serve.n'"),
        ({"method": "best"}, "'single', 'majority' or 'best_of_n'"),
    ],
)
def test_settings_that_do_not_fit_together(tmp_path: Path, serve: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        tiny_recipe.params(tmp_path, policy={"serve": serve})
    assert message in str(caught.value)
    assert "policy.serve" in str(caught.value)


def test_single_is_in_no_report():
    """What was written before there was a choice has the same bytes, and the same digest."""
    assert "serve" not in Champion().model_dump(mode="json")
    for serve in (TEXT, JSON, BEST):
        written = Champion(serve=serve).model_dump_json()
        assert Champion.model_validate_json(written).serve == serve
    assert len({Champion(serve=one).digest() for one in (config.Serve(), TEXT, JSON, BEST)}) == 4
    assert not any(
        a.description == b.description for a, b in itertools.combinations((config.Serve(), TEXT, JSON, BEST), 2)
    )
