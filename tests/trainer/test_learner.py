"""The learner against a plain loop, against itself cut otherwise, and against what must not pass in
silence."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from rft.errors import RftError, UserError
from rft.models import heap
from rft.models import weights as model
from rft.trainer.learner import Learner
from rft.trainer.packing import Counted, TrainingSample
from tests.small_learner import ARCHITECTURE, NORM_LENGTH, all_of, alone, learner, network, samples, weights

GROUPED = ["dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp"]


def own(one: Learner, **shape: Any) -> list[TrainingSample]:
    """Rollouts that this learner's policy might have sampled."""
    return samples(policy=one.model, **shape)


def pairs(one: Learner) -> list[TrainingSample]:
    return [replace(sample, pair=n // 2, advantage=1.0 - 2 * (n % 2)) for n, sample in enumerate(own(one))]


def likelihood(one: Learner, sample: TrainingSample) -> float:
    return sum(alone(one.model, sample))


def test_a_step_takes_the_rate_that_it_is_given():
    """AdamW's first step is as long as the rate, whatever the gradient."""
    slow, fast = learner(weights="full"), learner(weights="full")
    found = [slow.update(own(slow), all_of(own(slow), 12), 1e-4), fast.update(own(fast), all_of(own(fast), 12), 3e-4)]
    assert [one["lr"] for one in found] == [1e-4, 3e-4]
    assert found[1]["weights/change"] == pytest.approx(3 * found[0]["weights/change"], rel=1e-2)


# -- exactness -------------------------------------------------------------------------------------
def test_a_step_is_the_plain_policy_gradient():
    """Dr. GRPO by hand: sum of A log p over rollouts x a constant, gradient clipped, one AdamW
    step."""
    one, by_hand = learner(weights="full"), network()
    given = own(one)
    found = one.update(given, all_of(given, 20))

    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    loss = torch.zeros(())
    for sample in given:
        logprobs = by_hand(input_ids=torch.tensor([sample.ids])).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(sample.ids[1:])[:, None]).squeeze(1)[
            torch.tensor(sample.loss_mask[1:])
        ]
        loss = loss - sample.advantage * torch.exp(chosen - chosen.detach()).sum() / (20 * NORM_LENGTH)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
    optimizer.step()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert found["logprob_mismatch"] < 1e-5
    torch.testing.assert_close(
        weights(one), torch.cat([parameter.detach().flatten() for parameter in by_hand.parameters()]), rtol=0, atol=2e-4
    )


@pytest.mark.parametrize(
    ("algorithm", "changed"),
    [
        *((algorithm, {"microbatch_tokens": 64}) for algorithm in (*GROUPED, "ppo", "best_of_n", "dpo")),
        *(("ppo", changed) for changed in ({"packing": True}, {"gradient_checkpointing": True})),
        *(("dpo", changed) for changed in ({"packing": True}, {"packing": True, "microbatch_tokens": 64})),
    ],
    ids=str,
)
def test_the_cut_into_microbatches_is_not_in_the_result(algorithm: str, changed: dict[str, Any]):
    whole, cut = (learner(algorithm=algorithm, lr=1e-4, **settings) for settings in ({}, changed))
    given = pairs(whole) if algorithm == "dpo" else own(whole)
    first, second = whole.update(given, all_of(given, 12)), cut.update(given, all_of(given, 12))
    second.pop("packing/shared_share", None)
    assert second == pytest.approx(first, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("weights_kind", ["lora", "full"])
def test_checkpointing_keeps_every_gradient(weights_kind: str):
    plain, saving = (learner(weights=weights_kind, gradient_checkpointing=on) for on in (False, True))
    given = own(plain)
    for one in (plain, saving):
        one.update(given, all_of(given, 12))
    assert not plain.model.is_activation_checkpointing
    assert saving.model.is_activation_checkpointing
    for mine, theirs in zip(plain.parameters, saving.parameters, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)


# -- every algorithm moves the weights the right way -----------------------------------------------
@pytest.mark.parametrize("weights_kind", ["lora", "full"])
@pytest.mark.parametrize("algorithm", GROUPED)
def test_what_was_better_becomes_likelier(algorithm: str, weights_kind: str):
    one = learner(algorithm=algorithm, weights=weights_kind, lr=1e-3)
    good, bad = (
        replace(sample, advantage=sign) for sample, sign in zip(own(one, groups=1, size=2), (1.0, -1.0), strict=True)
    )
    before = likelihood(one, good), likelihood(one, bad)
    one.update([good, bad], all_of([good, bad], 2))
    assert likelihood(one, good) > before[0]
    assert likelihood(one, bad) < before[1]


def test_best_of_n_imitates():
    one = learner(algorithm="best_of_n", lr=1e-3)
    best = replace(own(one)[0], advantage=1.0)
    before = likelihood(one, best)
    found = one.update([best], all_of([best], 4))
    assert found["loss"] == pytest.approx(-before / best.num_own, rel=1e-4)
    assert likelihood(one, best) > before


def test_dpo_prefers():
    one = learner(algorithm="dpo", lr=1e-3)
    given = pairs(one)
    found = [one.update(given, all_of(given, 12))["loss"] for _ in range(3)]
    assert found[0] == pytest.approx(0.693147, abs=1e-5)  # log 2: at the reference policy nothing is preferred
    assert found[2] < found[1] < found[0]


@pytest.mark.slow
def test_ppo_learns_what_to_expect():
    one = learner(algorithm="ppo", lr=1e-5, ppo={"critic_lr": 0.03}, updates=4)
    given = [replace(sample, advantage=1.0, reward=0.8) for sample in own(one)]
    errors = [one.update(given, all_of(given, 12))["value/error"] for _ in range(6)]
    assert errors[-1] < 0.1 * errors[0]


def test_ppo_judges_token_by_token_from_the_values_before_the_step():
    """With a critic of zeros every advantage is the reward, discounted by lambda: the loss says
    which."""
    one = learner(algorithm="ppo", ppo={"gae_lambda": 1.0, "value_weight": 1e-9})
    given = [replace(sample, advantage=1.0) for sample in own(one)]
    found = one.update(given, all_of(given, 12))
    tokens = sum(sample.num_own for sample in given)
    assert found["loss"] == pytest.approx(-sum(sample.reward * sample.num_own for sample in given) / tokens, rel=1e-4)


# -- reference policy ------------------------------------------------------------------------------
@pytest.mark.parametrize("weights_kind", ["lora", "full"])
def test_the_reference_policy_is_where_training_started(weights_kind: str):
    one = learner(algorithm="grpo", weights=weights_kind, kl={"beta": 0.1})
    given = own(one)
    assert one.update(given, all_of(given, 12))["kl/mean"] == pytest.approx(0.0, abs=1e-7)
    moved = one.update(given, all_of(given, 12))["kl/mean"]
    assert moved > 1e-4
    start = Learner(network(), one.section, NORM_LENGTH, one.device)
    for sample in given[:2]:
        now, then = torch.tensor(alone(one.model, sample)), torch.tensor(sample.logprobs)
        assert alone(start.model, sample) == pytest.approx(then.tolist(), abs=1e-6)
        assert (now - then).abs().max() > 1e-3


# -- several updates of a step ---------------------------------------------------------------------
def test_later_updates_see_the_ratio_move_from_the_first_ones():
    one = learner(algorithm="grpo", updates=3, lr=3e-2)
    found = one.update(own(one), all_of(own(one), 12))
    assert found["clip/share"] > 0
    assert found["logprob_mismatch"] < 1e-5  # of the first update, whose weights sampled


def test_mismatch_is_measured():
    one = learner()
    given = own(one)
    given[0] = replace(given[0], logprobs=[value - 0.5 for value in given[0].logprobs])
    found = one.update(given, all_of(given, 12))
    assert found["logprob_mismatch"] == pytest.approx(0.5, abs=1e-4)
    share = given[0].num_own / sum(sample.num_own for sample in given)
    assert found["mismatch_kl"] == pytest.approx((torch.tensor(0.5).exp().item() - 1 - 0.5) * share, rel=1e-3)


# -- kill and go on --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings", [{}, {"weights": "full"}, {"algorithm": "ppo"}, {"kl": {"beta": 0.1}, "weights": "full"}], ids=str
)
def test_a_continued_run_is_the_uninterrupted_one_bit_for_bit(settings: dict[str, Any]):
    whole = learner(**settings)
    given = own(whole)
    whole.update(given, all_of(given, 12))
    kept = copy.deepcopy(whole.state())
    last = whole.update(given, all_of(given, 12))
    other = learner(**settings)
    other.load(kept)
    assert other.update(given, all_of(given, 12)) == last
    assert torch.equal(weights(other), weights(whole))


@pytest.mark.parametrize("other", [{"lora": {"r": 4}}, {"weights": "full"}, {"algorithm": "ppo"}], ids=str)
def test_a_state_of_another_configuration_is_refused_and_changes_nothing(other: dict[str, Any]):
    one = learner()
    before = weights(one)
    with pytest.raises(UserError, match="another configuration"):
        one.load(learner(**other).state())
    assert torch.equal(weights(one), before)


def test_an_adapter_of_another_base_is_refused(tmp_path: Any):
    one = learner()
    model.save(one.model, tmp_path / "weights")
    with pytest.raises(UserError, match="another base model"):
        model.with_weights(network(hidden=128), "lora", tmp_path / "weights", one.device)


# -- what must not pass in silence -----------------------------------------------------------------
def test_nothing_to_learn_from_changes_nothing():
    one = learner()
    before = copy.deepcopy(one.state())
    assert one.update([], Counted()) == {"samples/trained": 0}
    torch.testing.assert_close(one.state(), before, rtol=0, atol=0)
    assert one.weight_change() == 0.0


def test_a_sample_longer_than_the_context_is_named():
    long = ARCHITECTURE.max_positions + 1
    sample = TrainingSample([3] * long, [False] + [True] * (long - 1), [-1.0] * (long - 1), 1.0)
    with pytest.raises(UserError, match=f"{long} tokens.*rollout.max_tokens"):
        learner().update([sample], all_of([sample], 8))


def test_weights_beyond_all_bounds_end_the_training_with_the_key() -> None:
    """A finite gradient can still take the weights where the next rollouts sample nan."""
    learning, batch = learner(), samples()
    with pytest.raises(RftError, match=r"left all bounds at a learning rate of 1e\+25\. Lower train\.lr\."):
        learning.update(batch, Counted(len(batch), sum(sample.num_own for sample in batch)), 1e25)


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change():
    one = learner()
    given = own(one)
    given[0] = replace(given[0], advantage=float("nan"))
    before = weights(one)
    with pytest.raises(RftError, match="gradient is not finite"):
        one.update(given, all_of(given, 12))
    assert torch.equal(weights(one), before)


def test_an_update_that_changes_no_weight_is_an_error():
    one = learner(lr=1e-60, weights="full")
    with pytest.raises(RftError, match="changed no weight"):
        one.update(own(one), all_of(own(one), 12))


def test_seconds_are_told_by_phase():
    one = learner()
    one.update(own(one), all_of(own(one), 12))
    assert set(one.seconds) == {"preparing", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in one.seconds.values())


# -- activations are computed again by need --------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("weights_kind", ["lora", "full"])
def test_activations_are_computed_again_where_memory_is_short_to_the_same_bytes(
    weights_kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plain = learner(weights=weights_kind)
    given = own(plain)
    plain.update(given, all_of(given, 12))
    assert not plain.model.is_activation_checkpointing, "there is room"
    monkeypatch.setattr(heap, "free_memory", lambda: 100_000)
    saving = learner(weights=weights_kind)
    for _ in range(2):
        saving.update(given, all_of(given, 12))
    assert saving.model.is_activation_checkpointing
    told = capsys.readouterr().out
    assert told.count("activations are computed again in the backward pass") == 1, "said once"
    assert "Lower train.microbatch_tokens" in told
    plain.update(given, all_of(given, 12))
    assert all(map(torch.equal, plain.parameters, saving.parameters))


@pytest.mark.parametrize("asked", [True, False])
def test_who_decides_about_activations_is_obeyed(asked: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heap, "free_memory", lambda: 100_000)
    one = learner(weights="full", gradient_checkpointing=asked)
    given = own(one)
    one.update(given, all_of(given, 12))
    assert one.model.is_activation_checkpointing == asked
