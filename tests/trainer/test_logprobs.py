"""Own tokens scored by a head of our own, against torch's log-softmax over everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rft import config
from rft.kernels import chunked
from rft.models import weights
from rft.trainer import forward
from rft.trainer.logprobs import own_logprobs
from rft.trainer.packing import layout
from tests.small_learner import CPU, VOCABULARY, network, samples


def llama() -> Any:
    """A Llama with rotary positions of type llama3, and more query heads than key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    scaled = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    description = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.1,
        rope_parameters=scaled | {"high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    )
    return LlamaForCausalLM(description).eval()


SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}


def qwen2() -> Any:
    """A Qwen2 whose biases are not zero."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return policy


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SHAPE)).eval()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_entropy_and_gradients_are_those_of_the_whole_softmax(temperature: float):
    policy, given = network(), samples()[:3]
    scored = own_logprobs(policy, layout([[one] for one in given], CPU), temperature)
    scored.logprobs_N.square().sum().backward()
    found = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()

    plain, entropy = [], []
    for one in given:
        logits = policy(input_ids=torch.tensor([one.ids])).logits[0, :-1] / temperature
        dist = torch.distributions.Categorical(logits=logits)
        own = torch.tensor(one.loss_mask[1:])
        plain.append(dist.log_prob(torch.tensor(one.ids[1:]))[own])
        entropy.append(dist.entropy()[own])
    torch.cat(plain).square().sum().backward()
    torch.testing.assert_close(scored.logprobs_N, torch.cat(plain), rtol=0, atol=1e-5)
    torch.testing.assert_close(scored.entropy_N, torch.cat(entropy), rtol=0, atol=1e-5)
    assert not scored.entropy_N.requires_grad
    for mine, parameter in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("plain", [network, llama, qwen2, mistral])
def test_the_shorter_forward_is_the_models_own(
    plain: Callable[[], Any], packed: bool, adapter: bool, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
):
    policy = weights.trainable(plain(), config.Train(weights="lora" if adapter else "full"))
    given = samples()
    planned = layout([given[:4], given[4:8], given[8:]] if packed else [[one] for one in given], CPU)
    if checkpointing:
        policy.train()
        policy.activation_checkpointing_enable()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter in trained:  # an adapter begins as nothing
            parameter.add_(0.02 * torch.randn_like(parameter))

    def run() -> tuple[torch.Tensor, list[torch.Tensor]]:
        policy.zero_grad()
        scored = own_logprobs(policy, planned, 1.0)
        scored.logprobs_N.square().sum().backward()
        return scored.hidden_NE.detach(), [
            torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in trained
        ]

    assert forward.knows(policy.get_decoder())
    hidden, gradients = run()
    monkeypatch.setattr(forward, "knows", lambda decoder: False)
    expected, theirs = run()
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    for mine, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


def test_any_other_architecture_is_read_by_its_own_forward():
    from transformers import GemmaConfig, GemmaForCausalLM

    torch.manual_seed(0)
    policy = GemmaForCausalLM(GemmaConfig(**SHAPE)).eval()
    given = samples(groups=1)
    assert not forward.knows(policy.get_decoder())
    packed = own_logprobs(policy, layout([given], CPU), 1.0).logprobs_N
    apart = torch.cat([own_logprobs(policy, layout([[one]], CPU), 1.0).logprobs_N for one in given])
    torch.testing.assert_close(packed, apart, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [chunked.CHUNK, 100])
def test_a_head_that_is_more_than_a_product_is_asked_itself(monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(chunked, "CHUNK", chunk)
    policy, one = network(), samples()[0]
    policy.set_output_embeddings(torch.nn.Linear(policy.config.hidden_size, policy.config.vocab_size, bias=True))
    scored = own_logprobs(policy, layout([[one]], CPU), 0.8)
    whole = (policy(input_ids=torch.tensor([one.ids])).logits[0, :-1] / 0.8).log_softmax(-1)
    own = torch.tensor(one.loss_mask[1:])
    torch.testing.assert_close(
        scored.logprobs_N, whole.gather(1, torch.tensor(one.ids[1:])[:, None]).squeeze(1)[own], rtol=0, atol=1e-5
    )
    torch.testing.assert_close(scored.entropy_N, -(whole.exp() * whole).sum(-1)[own], rtol=0, atol=1e-5)
    assert not scored.entropy_N.requires_grad
    weight = policy.get_output_embeddings().weight
    both = scored.logprobs_N, whole.gather(1, torch.tensor(one.ids[1:])[:, None])[own]
    found, expected = (torch.autograd.grad(tensor.sum(), weight)[0] for tensor in both)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
