"""Finding R19: a step's gradient is the paper's formula over the whole batch, dull groups included,
as plain torch computes it from all rollouts.

Real tools and grader, the real collector and learner. By hand, every scored rollout goes through
the network, one by one, and every mean runs over what the paper says; the learner computes only
what has a gradient.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rft import algorithms, config, recipe
from rft.reports import PromptSettings
from rft.rollouts.policy import PolicyFailed
from rft.rollouts.runner import RolloutRunner, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.trainer.collect import Batch, Collector
from rft.trainer.curriculum import Curriculum
from rft.trainer.learner import Learner
from rft.trainer.metrics import Watch, describe
from rft.types import Opening, Trajectory
from tests import tiny_recipe
from tests.scripted_policy import CALL, Scripted, ScriptedDialogue, ScriptedTurn
from tests.small_learner import NORM_LENGTH, VOCABULARY, learner, network, weights

GROUP = 4
BETA = 0.2
TOKEN_MEANS = ("dapo", "cispo", "reinforce_pp", "ppo", "best_of_n")
WITH_KL = ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo")
BATCHES = {
    "none": (
        ("right", "wrong", "chatty", "wrong"),
        ("wrong", "right", "right", "right"),
        ("chatty", "chatty", "wrong", "right"),
    ),
    "some": (
        ("right", "wrong", "chatty", "down"),
        ("right", "chatty", "right", "right"),
        ("wrong", "wrong", "down", "wrong"),
    ),
    "all": (("right",) * 4, ("wrong",) * 4, ("wrong", "down", "down", "down")),
    "all the same": (("right",) * 4,) * 3,
}
"""By how many groups are dull. A chatty rollout is right and pays for a call: its reward differs,
its outcome does not."""


@dataclass
class Talking(Scripted):
    """Says what the batch has it say, in tokens of its own, of another number in each rollout."""

    batch: Sequence[Sequence[str]] = ()
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[ScriptedDialogue]:
        dialogues = super().open(openings, seeds, temperature, max_context_tokens)
        for number, one in enumerate(dialogues, self.opened - len(openings)):
            word, value = self.batch[number // GROUP][number % GROUP], f"{(int(one.key[1:]) * 7919 + 1234) % 9973:04d}"
            one.prompt_ids = tuple(np.random.default_rng(number // GROUP).integers(2, VOCABULARY, 6).tolist())
            answer = self._scripted("0000" if word == "wrong" else value)
            lost = ScriptedTurn("", fails=PolicyFailed("gone"))
            one.turns = {
                "chatty": (self._scripted(CALL % "{key}"), answer),
                "down": (self._scripted(CALL % "{key}"), lost),
            }.get(word, (answer,))
        return dialogues

    def _scripted(self, text: str) -> ScriptedTurn:
        ids = self.draw.integers(2, VOCABULARY, self.draw.integers(2, 9)).tolist()
        return ScriptedTurn(text, ids=tuple(ids), logprobs=(-1.0,) * len(ids))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutRunner]:
    folder = tiny_recipe.make(tmp_path_factory.mktemp("recipe"))
    budget = {"tool_calls": 0, "weight": 0.5}
    params = tiny_recipe.params(
        folder, rollout={"max_turns": 4, "budget": budget, "max_unscored_share": 1.0, "refill": 0.0}
    )
    with rollout_runner(params, recipe.load(params.recipe)) as made:
        yield made


def collect(runner: RolloutRunner, section: config.Train, which: str) -> Batch:
    train = list(runner.recipe.examples("train", 32, 0))
    curriculum = Curriculum([one.id for one in train], section.curriculum, section.seed)
    prompt = PromptSettings(name="test", system="", max_turns=4)
    policy = Talking((), batch=BATCHES[which])
    with tempfile.TemporaryDirectory() as folder, RolloutStore(Path(folder)) as store:
        return Collector(
            train, section, prompt, runner, policy, algorithms.from_params(section), curriculum, store, 512
        ).collect(1)


def go_far(one: Learner) -> None:
    """From its reference."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in one.parameters:
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))


def a_learner(algorithm: str, **settings: Any) -> Learner:
    """Its policy is some way from its reference, and its gradient is not clipped."""
    more = {} if algorithm in ("dpo", "best_of_n") else {"importance_cap": None}
    shape = {"examples_per_step": 3, "group_size": GROUP, "validation_examples": 0}
    one = learner(algorithm=algorithm, weights="full", clip_grad=1e9, **shape, **more, **settings)
    go_far(one)
    return one


# -- the formulas ----------------------------------------------------------------------------------
@dataclass
class Played:
    """A scored rollout, as the network sees it now and as the reference does; T own tokens."""

    reward: float
    solved: bool
    now_T: torch.Tensor
    kl_T: torch.Tensor

    @property
    def ratio_T(self) -> torch.Tensor:
        """1, with the gradient of the log-probability."""
        return torch.exp(self.now_T - self.now_T.detach())


def played(policy: Any, reference: Any, one: Trajectory) -> Played:
    ids, loss_mask = [], []
    for turn in one.turns:
        ids += [*turn.prompt_ids, *turn.token_ids]
        loss_mask += [False] * len(turn.prompt_ids) + [True] * len(turn.token_ids)

    def own(of: Any) -> torch.Tensor:
        logprobs = of(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return logprobs.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)[torch.tensor(loss_mask[1:])]

    now_T = own(policy)
    with torch.no_grad():
        reference_T = own(reference)
    gap_T = now_T - reference_T
    assert one.reward is not None
    return Played(one.reward, one.grade.solved, now_T, torch.exp(-gap_T) - 1 + gap_T)


def differ(group: Sequence[Played]) -> bool:
    return len({one.solved for one in group}) > 1


def advantages(name: str, group: Sequence[Played]) -> list[float]:
    """Within a group. All that is not learned from differences in outcome is 0."""
    rewards = np.array([one.reward for one in group])
    if not differ(group):
        return [0.0] * len(group)
    if name == "dr_grpo":
        return (rewards - rewards.mean()).tolist()
    if name == "rloo":
        return [float(reward - np.delete(rewards, n).mean()) for n, reward in enumerate(rewards)]
    return ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)).tolist()


def objective(name: str, groups: Sequence[Sequence[Played]], beta: float) -> torch.Tensor:
    """What is maximized, by the paper, over the whole batch."""
    everyone = [one for group in groups for one in group]
    gains = [value for group in groups for value in advantages(name, group)]
    if name == "reinforce_pp":
        rewards = np.array([one.reward for one in everyone])
        gains = ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4) if np.ptp(rewards) else 0 * rewards).tolist()
    pairs = list(zip(everyone, gains, strict=True))
    if name == "dapo":  # eq. 8: subject to 0 < number of right answers < G
        pairs = [
            (one, gain)
            for group in groups
            if differ(group)
            for one, gain in zip(group, advantages(name, group), strict=True)
        ]
    if name == "best_of_n":
        best = [max(group, key=lambda one: one.reward) for group in groups if differ(group)]
        return torch.cat([one.now_T for one in best]).mean() if best else torch.zeros(())
    if name in ("grpo", "gspo"):  # at ratio 1 the mean of the tokens' ratios has the gradient of their geometric mean
        terms = [(gain * one.ratio_T - beta * one.kl_T).mean() for one, gain in pairs]
    elif name == "dr_grpo":
        terms = [(gain * one.ratio_T - beta * one.kl_T).sum() / NORM_LENGTH for one, gain in pairs]
    elif name == "rloo":
        terms = [gain * one.ratio_T.prod() - beta * one.kl_T.sum() for one, gain in pairs]
    else:
        terms = [(per_token(name, one, gain) - beta * one.kl_T).sum() for one, gain in pairs]
        return sum(terms, torch.zeros(())) / sum((len(one.now_T) for one, _ in pairs), 0) if pairs else torch.zeros(())
    return sum(terms, torch.zeros(())) / len(terms)


def per_token(name: str, one: Played, gain: float) -> torch.Tensor:
    if name == "cispo":
        return gain * one.now_T
    if name == "ppo":  # a critic of zeros: the reward, discounted by lambda
        later = torch.arange(len(one.now_T) - 1, -1, -1)
        return one.reward * 0.95**later * one.ratio_T
    return gain * one.ratio_T


def gradients(policy: Any) -> torch.Tensor:
    return torch.cat(
        [(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in policy.parameters()]
    )


CASES = [(name, 0.0) for name in (*WITH_KL, "best_of_n")] + [(name, BETA) for name in WITH_KL]


@pytest.mark.parametrize("which", BATCHES)
@pytest.mark.parametrize(("name", "beta"), CASES)
def test_a_step_is_the_formula_over_the_whole_batch(runner: RolloutRunner, name: str, beta: float, which: str):
    """R19. CISPO's gradient was 3.0 times too large with two of three groups dull, and no KL pulled
    at the dull ones."""
    one = a_learner(name, **({"kl": {"beta": beta}} if beta else {}))
    policy, reference = copy.deepcopy(one.model), network()
    batch = collect(runner, one.section, which)
    told = one.update(batch.samples, batch.counted)
    found = gradients(one.model)

    loss = -objective(name, [[played(policy, reference, two) for two in group.scored] for group in batch.groups], beta)
    if loss.requires_grad:
        loss.backward()
    expected = gradients(policy)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1e-3, expected.abs().max().item()))
    assert all(row.trained != bool(row.left_out) for row in batch.rows)
    assert told["samples/trained"] == sum(row.trained for row in batch.rows)
    assert not any(row.trained for row in batch.rows if row.reward is None)
    if batch.samples and name != "ppo":  # whose loss has the critic's, too
        assert told["loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


# -- what is computed, and what a step of dull groups does -----------------------------------------
def test_without_kl_a_dull_rollout_costs_no_forward_pass(runner: RolloutRunner):
    section = a_learner("cispo").section
    batch = collect(runner, section, "some")
    assert len(batch.samples) == 2  # the chatty one is at its group's mean
    assert batch.counted.num_rollouts == sum(row.reward is not None for row in batch.rows) == 10
    assert batch.counted.num_tokens == sum(row.num_tokens for row in batch.rows if row.reward is not None)


def test_a_step_of_dull_groups_without_kl_changes_nothing(runner: RolloutRunner):
    one = a_learner("grpo")
    before, batch = weights(one), collect(runner, one.section, "all")
    assert one.update(batch.samples, batch.counted) == {"samples/trained": 0}
    assert torch.equal(weights(one), before)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_step_of_dull_groups_with_kl_goes_back_to_the_reference(runner: RolloutRunner, kind: str):
    one = learner(algorithm="grpo", weights=kind, kl={"beta": 1.0}, lr=1e-3)
    go_far(one)
    section = one.section.model_copy(update={"examples_per_step": 3, "group_size": GROUP})
    batch = collect(runner, section, "all")
    far = [one.update(batch.samples, batch.counted) for _ in range(3)]
    assert [step["samples/kl_only"] for step in far] == [step["samples/trained"] for step in far] == [9] * 3
    assert far[2]["kl/mean"] < far[1]["kl/mean"] < far[0]["kl/mean"]


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_at_the_reference_the_kl_alone_moves_nothing_and_is_no_error(runner: RolloutRunner, kind: str):
    one = learner(algorithm="grpo", kl={"beta": 0.1}, weights=kind)
    section = one.section.model_copy(update={"examples_per_step": 3, "group_size": GROUP})
    before, batch = weights(one), collect(runner, section, "all")
    assert one.update(batch.samples, batch.counted)["grad_norm"] == 0.0
    assert torch.equal(weights(one), before)


def test_a_run_in_which_only_the_kl_moves_stops_as_idle():
    watch, section = Watch(), config.Stop(idle_steps=2)
    assert watch.step(section, {"samples/trained": 9, "samples/kl_only": 9}) == ""
    assert watch.step(section, {"samples/trained": 9, "samples/kl_only": 8}) == ""
    assert watch.step(section, {"samples/trained": 9, "samples/kl_only": 9}) == ""
    assert "nothing but the KL has changed a weight for 2 steps" in watch.step(
        section, {"samples/trained": 9, "samples/kl_only": 9}
    )


# -- R14: what a training step tells ---------------------------------------------------------------
def test_the_unscored_are_in_no_number_of_a_step_but_their_own(runner: RolloutRunner):
    """R14: an outage counted as a failure, and its calls as the policy's."""
    numbers = describe(collect(runner, a_learner("dr_grpo").section, "some"), ["lookup"])
    assert numbers["solved/share"] == pytest.approx(6 / 10)
    assert numbers["tool_calls/mean"] == pytest.approx(2 / 10)
    assert numbers["stop/completed"] == 1.0
    assert (numbers["samples/sampled"], numbers["samples/unscored"]) == (12, 2)
    assert (numbers["groups/sampled"], numbers["groups/zero_variance"], numbers["groups/all_solved"]) == (3, 2, 1)


def test_a_step_in_which_nothing_was_scored_has_counts_and_no_means(
    runner: RolloutRunner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(BATCHES, "outage", (("down",) * 4,) * 3)
    batch = collect(runner, a_learner("cispo", kl={"beta": BETA}).section, "outage")
    numbers = describe(batch, ["lookup"])
    assert (
        numbers["samples/sampled"],
        numbers["samples/unscored"],
        numbers["groups/unscored"],
        numbers["groups/zero_variance"],
    ) == (12, 12, 3, 0)
    assert not [name for name in numbers if name.startswith(("reward", "solved", "tool_calls", "tokens", "stop"))]
    assert (batch.samples, batch.counted.num_rollouts) == ([], 0)


def test_a_group_with_one_score_is_not_without_variance(runner: RolloutRunner):
    numbers = describe(collect(runner, a_learner("dr_grpo").section, "all"), [])
    assert (numbers["groups/zero_variance"], numbers["groups/unscored"]) == (2, 1)
