"""What is learned in bfloat16 is what is sampled with, judged and saved: the adapter runs beside
the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rft import config
from rft.errors import ConfigError
from rft.models import effect, unmerged, weights
from rft.models.effect import AT_LEAST
from rft.models.unmerged import Unmerged
from rft.sampling.decode import fast_forward
from rft.sampling.kv_cache import Feed, ModelForward, Slots
from rft.trainer.learner import Learner
from tests import small_learner
from tests.small_learner import CPU, NORM_LENGTH, all_of, network, samples

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def learner(of: Any = None, dtype: str = "bfloat16", steps: int = 1, **section: Any) -> Learner:
    """One that has learned for some steps."""
    settings = config.Train(**({"lr": 1e-5} | section))
    found = Learner(network().to(DTYPES[dtype]) if of is None else of, settings, NORM_LENGTH, CPU)
    for step in range(steps):
        given = samples(seed=step)
        found.update(given, all_of(given, len(given)))
    return found


def saved(of: Learner, folder: Path, kind: weights.Weights = "lora") -> Any:
    """Save what was learned, and load it as a stage does."""
    weights.save(of.model, folder)
    return weights.with_weights(network().to(torch.bfloat16), kind, folder, CPU)


def logits(of: Any) -> torch.Tensor:
    with torch.no_grad():
        return of(torch.tensor([[5, 9, 4, 30, 21]])).logits[0].float()


@pytest.mark.slow
@pytest.mark.parametrize("lr", [1e-5, 1e-4])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapters_effect_is_in_what_samples_and_in_what_is_judged(tmp_path: Path, dtype: str, steps: int, lr: float):
    one = learner(dtype=dtype, steps=0, lr=lr)
    sampler = weights.sampler_copy(one.model)
    for step in range(steps):
        given = samples(seed=step)
        one.update(given, all_of(given, len(given)))
    weights.sync(one.model, sampler)
    weights.save(one.model, tmp_path / "weights")
    base = network().to(DTYPES[dtype])
    judged = weights.with_weights(network().to(DTYPES[dtype]), "lora", tmp_path / "weights", CPU)
    for there in (sampler, judged):
        found = effect.kept(effect.by_adapter(one.model), effect.between(there, base))
        assert found is not None
        assert found >= AT_LEAST
    merged = effect.kept(effect.by_adapter(one.model), effect.between(weights.merged_copy(one.model), base))
    assert merged is not None
    assert (merged < AT_LEAST) == (dtype == "bfloat16"), "what the unmerged adapter is for"


def test_a_small_change_is_added_before_the_one_rounding():
    """Added to an output that was rounded already, most of it would be lost each time."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(256, 64, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(4096, 256, dtype=torch.bfloat16)
    down, up = torch.randn(4, 256) / 16, torch.randn(64, 4) * 1e-4
    added = (x.float() @ down.T @ up.T).double().flatten()

    def share(found: torch.Tensor) -> float:
        seen = (found.float() - plain(x).float()).double().flatten()
        return float(seen @ added / (added @ added))

    assert share(Unmerged(plain, down, up)(x)) == pytest.approx(1, abs=0.1)
    assert share((plain(x).float() + x.float() @ down.T @ up.T).to(torch.bfloat16)) < 0.7


def test_a_bias_stays():
    plain = torch.nn.Linear(8, 3)
    beside = Unmerged(plain, torch.zeros(2, 8), torch.ones(3, 2))
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(beside(x), plain(x))


@pytest.mark.parametrize("targets", ["all-linear", ["k_proj", "up_proj", "o_proj"]])
def test_the_fast_forward_knows_adapters_and_follows_their_learner(targets: Any):
    one = learner(lora={"targets": targets}, lr=0.05, steps=0)
    plain = weights.sampler_copy(one.model)
    fast, why = fast_forward(plain)
    assert fast is not None, why
    before = logits(plain)
    for turn in range(2):
        given = samples(seed=turn)
        one.update(given, all_of(given, len(given)))
        weights.sync(one.model, plain)
        slots = [Slots(2, 1, 2, 8, 32, torch.bfloat16, CPU) for _ in range(2)]
        feed = [Feed(0, 0, [5, 9, 4, 30, 21])]
        ours, models = fast.prefill(slots[0], feed), ModelForward(plain).prefill(slots[1], feed)
        assert (ours - models).abs().max() < 0.03 * models.abs().max()
        assert (ours[0] - before[-1]).abs().max() > 0.2 * models.abs().max(), "the adapter counts"
        step = [torch.tensor([7]), torch.tensor([5]), 6]
        ours, models = fast.step(slots[0], *step), ModelForward(plain).step(slots[1], *step)
        assert (ours - models).abs().max() < 0.03 * models.abs().max()


def test_the_twin_shares_the_base_and_nothing_that_learns():
    one = learner(steps=0)
    plain = weights.sampler_copy(one.model)
    layer: Any = one.model.base_model.model.model.layers[0].self_attn.q_proj
    theirs = plain.model.layers[0].self_attn.q_proj
    assert theirs.weight is layer.base_layer.weight
    before = logits(plain)
    given = samples()
    one.update(given, all_of(given, len(given)))
    assert torch.equal(logits(plain), before), "until it is synced"
    fast_forward(plain)  # lays the shared weights out anew
    one.update(given, all_of(given, len(given)))


def test_an_adapter_on_an_adapter_is_one_of_the_base(tmp_path: Path):
    """A champion's adapter, and the one that was trained on it: saved as one, with the rank of
    both. What training started from is the champion."""
    first = learner(lr=0.03, lora={"r": 4, "alpha": 8, "targets": ["q_proj", "up_proj"]})
    champion = saved(first, tmp_path / "first")
    start = logits(champion)
    second = learner(champion, lr=0.1, steps=4, lora={"r": 3, "alpha": 3, "targets": ["q_proj", "down_proj"]})
    with second.model.disable_adapter():
        torch.testing.assert_close(logits(second.model), start, rtol=0, atol=0)
    sampler = weights.sampler_copy(second.model)
    judged = saved(second, tmp_path / "second")
    base = network().to(torch.bfloat16)
    whole = dict(effect.between(judged, base))
    assert effect.kept(whole.items(), effect.between(sampler, base)) == pytest.approx(1)
    learned = effect.by_adapter(second.model)
    beneath = saved(learner(lr=0.03, lora={"r": 4, "alpha": 8, "targets": ["q_proj", "up_proj"]}), tmp_path / "same")
    assert (effect.kept(learned, effect.between(judged, beneath)) or 0) > 0.999
    ranks = {len(module.down) for module in judged.modules() if isinstance(module, Unmerged)}
    assert ranks == {7}
    assert (logits(judged) - start).abs().max() > 0.1
    torch.testing.assert_close(logits(judged), logits(sampler), rtol=0, atol=0.05)
    assert unmerged.is_stacked(second.model)
    assert not unmerged.is_stacked(first.model)


def test_full_weights_are_float32_wherever_they_are_loaded(tmp_path: Path):
    """They learn so. Rounded to bfloat16, a step of 1e-5 would hardly be there."""
    one = learner(weights="full")
    judged = saved(one, tmp_path / "weights", "full")
    assert weights.weights_sha256(judged) == weights.weights_sha256(one.model)
    base = network().to(torch.bfloat16)
    learned = dict(effect.between(one.model, base))
    assert effect.kept(learned.items(), effect.between(judged, base)) == pytest.approx(1)
    rounded = judged.to(torch.bfloat16)
    assert (effect.kept(learned.items(), effect.between(rounded, base)) or 0) < AT_LEAST


@pytest.mark.parametrize(
    ("target", "tied", "message"),
    [("embed_tokens", False, "is a layer of kind Embedding"), ("lm_head", True, "shares its weight")],
)
def test_an_adapter_that_could_not_be_sampled_with_is_refused(target: str, tied: bool, message: str):
    of = network()
    if tied:
        of.config.tie_word_embeddings = True
        of.tie_weights()
    with pytest.raises(ConfigError, match=rf"train\.lora\.targets names \S*{target}, which {message}"):
        weights.trainable(of, config.Train(lora=config.Lora(targets=[target])))


def test_a_head_of_its_own_may_have_an_adapter():
    of = network()
    of.config.tie_word_embeddings = False
    of.lm_head.weight = torch.nn.Parameter(of.lm_head.weight.detach().clone())
    one = learner(of.to(torch.bfloat16), lora={"targets": ["lm_head"]}, lr=0.05)
    sampler = weights.sampler_copy(one.model)
    base = sampler.lm_head.weight
    fast, why = fast_forward(sampler)
    assert fast is not None, why
    assert sampler.lm_head.weight is base
    assert (small_learner.alone(one.model, samples()[0])[0]) is not None


def test_a_cosine_counts_what_only_one_side_changed():
    one = torch.ones(3)
    assert effect.kept([("a", one)], [("a", one)]) == pytest.approx(1)
    assert effect.kept([("a", one)], [("a", one), ("b", one)]) == pytest.approx(2**-0.5)
    assert effect.kept([("a", one), ("b", one)], [("a", one)]) == pytest.approx(2**-0.5)
    assert effect.kept([("a", one)], []) == 0
    assert effect.kept([], []) is None
