"""A step's rollouts: groups, what is learned from, and a reason for all else. Real tools and
grader; the policy says what a test tells it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rft import algorithms, config, recipe
from rft.errors import ConfigError
from rft.reports import PromptSettings
from rft.rollouts.runner import RolloutRunner, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.trainer.collect import Batch, Collector
from rft.trainer.curriculum import Curriculum
from rft.trainer.metrics import describe
from rft.types import Opening
from tests import tiny_recipe
from tests.scripted_policy import CALL, Scripted, ScriptedDialogue, ScriptedTurn

GROUP = 4
Does = Callable[[int, int], str]
"""(which group, which rollout of it) -> right, wrong, chatty (right, after needless calls), down
(no turn) or forked (right, in another context)."""


@dataclass
class Knowing(Scripted):
    """Knows every value, and answers right or wrong as it is told."""

    does: Does = lambda group, rollout: "right"

    def open(
        self, openings: Sequence[Opening], seeds: Sequence[Sequence[int]], temperature: float, max_context_tokens: int
    ) -> list[ScriptedDialogue]:
        dialogues = super().open(openings, seeds, temperature, max_context_tokens)
        for number, one in enumerate(dialogues, self.opened - len(openings)):
            value = f"{(int(one.key[1:]) * 7919 + 1234) % 9973:04d}"
            one.turns = self._turns(self.does(*divmod(number, GROUP)), value)
        return dialogues

    def _turns(self, word: str, value: str) -> tuple[ScriptedTurn, ...]:
        answer = ScriptedTurn(value if word != "wrong" else "0000", ids=(5, 6), logprobs=(-0.5, -0.5))
        call = ScriptedTurn(CALL % "{key}", ids=(7,), logprobs=(-1.0,))
        elsewhere = replace(answer, context_ids=(9,))
        return {"chatty": (call, call, answer), "forked": (call, elsewhere)}.get(word, (answer,))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutRunner]:
    folder = tiny_recipe.make(tmp_path_factory.mktemp("recipe"))
    budget = {"tool_calls": 0, "weight": 0.5}
    params = tiny_recipe.params(
        folder,
        rollout={"max_turns": 4, "budget": budget, "max_unscored_share": 1.0, "refill": 0.0, "max_fork_share": 1.0},
    )
    with rollout_runner(params, recipe.load(params.recipe)) as made:
        yield made


@pytest.fixture(scope="module")
def train(runner: RolloutRunner) -> list[Any]:
    return list(runner.recipe.examples("train", 32, 0))


def collect(runner: RolloutRunner, train: list[Any], does: Does, **settings: Any) -> Batch:
    """In a store of its own, whose bytes nobody reads."""
    section = config.Train.model_validate(
        {"examples_per_step": 3, "group_size": GROUP, "validation_examples": 0, **settings}
    )
    curriculum = Curriculum([one.id for one in train], section.curriculum, section.seed)
    prompt = PromptSettings(name="test", system="", max_turns=4)
    with tempfile.TemporaryDirectory() as folder, RolloutStore(Path(folder)) as store:
        return Collector(
            train, section, prompt, runner, Knowing((), does=does), algorithms.from_params(section), curriculum, store
        ).collect(1)


def some(group: int, rollout: int) -> str:
    """Group 0 is mixed, group 1 all right, group 2 all wrong; whatever comes later is mixed."""
    return {1: "right", 2: "wrong"}.get(group, "right" if rollout % 2 else "wrong")


def test_what_was_sampled_is_trained_on_or_left_out_with_a_reason(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, some)
    assert len(batch.rows) == len(batch.seconds) == 12
    assert all(row.trained != bool(row.left_out) for row in batch.rows)
    assert Counter(row.left_out for row in batch.rows) == {"": 4, "no variance": 8}
    assert sorted(one.advantage for one in batch.samples) == pytest.approx([-0.5, -0.5, 0.5, 0.5])
    numbers = describe(batch, ["lookup"])
    assert (numbers["groups/zero_variance"], numbers["groups/all_fail"], numbers["groups/all_solved"]) == (2, 1, 1)
    assert numbers["tool_calls/lookup/p95"] == 0


def test_what_is_learned_from_is_what_the_log_says(runner: RolloutRunner, train: list[Any]):
    """One form: the sample's tokens, mask and log-probabilities are its row's, and the reward is
    given once."""
    batch = collect(runner, train, some, algorithm="reinforce_pp")
    rows = [row for row in batch.rows if row.trained]
    assert [(one.ids, one.loss_mask, one.logprobs, one.reward) for one in batch.samples] == [
        (row.ids, row.loss_mask, row.logprobs, row.reward) for row in rows
    ]


def test_a_budget_alone_is_no_variance(runner: RolloutRunner, train: list[Any]):
    """All right, some after needless calls: rewards differ, outcomes do not."""
    chatty = lambda group, rollout: "chatty" if rollout else "right"  # noqa: E731
    by_outcome = collect(runner, train, chatty)
    assert {row.left_out for row in by_outcome.rows} == {"no variance"}
    assert {row.reward for row in by_outcome.rows} == {0.5, 1.0}
    by_reward = collect(runner, train, chatty, variance="reward")
    assert len(by_reward.samples) == 12


def test_groups_without_variance_are_replaced_within_the_budget(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, some, refill_groups=1.0)
    assert len(batch.groups) == 3
    assert len(batch.replaced) == 2
    assert len(batch.samples) == 12
    assert len(batch.rows) == 5 * GROUP
    assert len({row.rollout_id for row in batch.rows}) == 5 * GROUP
    assert describe(batch, [])["groups/refilled"] == 2
    none = collect(runner, train, lambda group, rollout: "wrong", refill_groups=1.0)
    assert len(none.groups) + len(none.replaced) == 6  # the budget is spent, not more
    assert none.samples == []


def test_compute_multiplier_sets_the_group(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, lambda group, rollout: "right", compute_multiplier=1.5)
    assert [len(group.trajectories) for group in batch.groups] == [6] * 3


def test_pairs_are_the_best_and_the_worst_of_a_group(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, some, algorithm="dpo")
    assert [(one.advantage, one.pair) for one in batch.samples] == [(1.0, 0), (-1.0, 0)]
    assert {row.left_out for row in batch.rows} == {"", "no variance", "not in a pair"}


def test_half_a_pair_is_no_pair(runner: RolloutRunner, train: list[Any]):
    """In every group the one right rollout was sampled in another context than it says."""
    batch = collect(runner, train, lambda group, rollout: "wrong" if rollout else "forked", algorithm="dpo")
    assert batch.samples == []
    assert Counter(row.left_out for row in batch.rows) == {
        "forked": 3,
        "its pair's other half is left out": 3,
        "not in a pair": 6,
    }


def test_a_forked_rollout_is_counted_though_nobody_can_learn_from_it(runner: RolloutRunner, train: list[Any]):
    """R19: it is one of the formula's; without it the others' step would be larger."""
    batch = collect(runner, train, lambda group, rollout: "wrong" if rollout else "forked", algorithm="cispo")
    assert (len(batch.samples), batch.counted.num_rollouts) == (9, 12)
    assert batch.counted.num_tokens == sum(row.num_tokens for row in batch.rows)


def test_what_was_replaced_is_not_counted(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, some, refill_groups=1.0, algorithm="grpo")
    assert (len(batch.rows), batch.counted.num_rollouts) == (20, 12)


def test_an_algorithm_without_groups_learns_from_all_that_is_scored(runner: RolloutRunner, train: list[Any]):
    batch = collect(runner, train, some, algorithm="reinforce_pp")
    assert {row.left_out for row in batch.rows} == {""}
    assert len(batch.samples) == 12


def test_unscored_rollouts_are_in_no_mean(runner: RolloutRunner, train: list[Any], monkeypatch: pytest.MonkeyPatch):
    from rft.rollouts.policy import PolicyFailed

    def turns(self: Knowing, word: str, value: str) -> tuple[ScriptedTurn, ...]:
        return (ScriptedTurn("", fails=PolicyFailed("gone")),) if word == "down" else ordinary(self, word, value)

    ordinary = Knowing._turns
    monkeypatch.setattr(Knowing, "_turns", turns)
    batch = collect(
        runner, train, lambda group, rollout: "down" if rollout == 0 else "right" if rollout == 1 else "wrong"
    )
    assert Counter(row.left_out for row in batch.rows) == {"": 9, "unscored: infra_error": 3}
    assert sorted({round(one.advantage, 6) for one in batch.samples}) == pytest.approx([-1 / 3, 2 / 3], abs=1e-6)
    assert describe(batch, [])["samples/unscored"] == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "dpo", "clip": {"high": 0.3}}, "clip is not read by algorithm dpo"),
        ({"algorithm": "ppo", "refill_groups": 0.5}, "refill_groups is not read by algorithm ppo"),
        ({"algorithm": "reinforce_pp", "variance": "reward"}, "variance is not read by algorithm reinforce_pp"),
        ({"kl": {"estimator": "k1"}}, "kl.estimator has no effect"),
        ({"algorithm": "dapo", "overlong": {"penalty": 0.5}}, "overlong.penalty has no effect"),
        ({"algorithm": "dpo", "decoding": "bfloat16"}, "decoding is not read by algorithm dpo"),
        ({"decoding": "bfloat16", "importance_cap": None}, "decoding: bfloat16 needs importance_cap"),
        ({"decoding": "int8"}, "float32"),
        ({"curriculum": {"solved_share": 0.5}}, "curriculum has no effect"),
        ({"keep": "best", "validation_examples": 0}, "need validation_examples"),
        ({"group_size": 1}, "greater than or equal to 2"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_an_error(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as raised:
        config.parse(settings, "params.yaml", config.Train)
    assert "Value error" not in str(raised.value)
