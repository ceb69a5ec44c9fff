"""The forward for decoding: the model's own logits, always from the weights that the model has
now."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rft import config
from rft.kernels import onednn
from rft.models import weights
from rft.models.unmerged import Unmerged
from rft.sampling import decode as fast_forward
from rft.sampling.decode import FastForward
from rft.sampling.kv_cache import Feed, ModelForward, Slots

VOCABULARY = 300


KINDS: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def network(seed: int = 0, dtype: torch.dtype = torch.float32, kind: str = "qwen3", **more: Any) -> Any:
    """A shape in which no two sizes are equal, so that a mix-up shows."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
    if kind in ("llama", "qwen2"):  # their hidden size is a multiple of their heads
        shape["hidden_size"] = 48
    described, made = KINDS[kind]
    settings = described(vocab_size=VOCABULARY, head_dim=8, max_position_embeddings=512, **(shape | more))
    settings._attn_implementation = "sdpa"
    built: Any = made(settings)
    built.to(dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # norms too
    return built.eval()


def fast(of: Any) -> FastForward:
    found, why = fast_forward.fast_forward(of)
    assert found is not None, why
    return found


def slots(of: Any, rows: int) -> Slots:
    return Slots(3, rows, of.config.num_key_value_heads, 8, 8, of.dtype, torch.device("cpu"))


def ids(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def last_logits(of: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return of(torch.tensor([tokens])).logits[0, -1].float()


def begun(of: Any) -> torch.Tensor:
    return fast(of).prefill(slots(of, 1), [Feed(0, 0, ids(9, 1))])[0]


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "qwen3"},
        {"kind": "qwen3", "attention_bias": True},
        {"kind": "qwen2"},
        {"kind": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 16},
        {"kind": "mistral"},
        {"kind": "mistral", "sliding_window": None, "tie_word_embeddings": True},
        {"kind": "llama"},
        {"kind": "llama", "attention_bias": True},
        {"kind": "llama", "mlp_bias": True, "attention_bias": True},
        {"kind": "llama", "tie_word_embeddings": True},
        {"kind": "llama", "rope_parameters": LLAMA3},
        {"kind": "llama", "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    ],
    ids=str,
)
def test_a_dialogue_of_prompts_tokens_and_results_has_the_models_own_logits(kind: dict[str, Any]):
    ours = network(**kind)
    forward, held = fast(ours), slots(ours, 3)
    told = [ids(5, 1), ids(70, 2), ids(31, 3)]  # more than the slots have room for at first
    close = {"rtol": 0, "atol": 1e-4}
    found = forward.prefill(held, [Feed(n, 0, one) for n, one in enumerate(told)])
    torch.testing.assert_close(found, torch.stack([last_logits(ours, one) for one in told]), **close)
    for n in range(4):
        new = torch.tensor(ids(3, 10 + n))
        found = forward.step(held, new, torch.tensor([len(one) for one in told]), max(map(len, told)) + 1)
        told = [[*one, token] for one, token in zip(told, new.tolist(), strict=True)]
        torch.testing.assert_close(found, torch.stack([last_logits(ours, one) for one in told]), **close)
    more = {2: ids(17, 20), 0: ids(1, 21)}
    found = forward.prefill(held, [Feed(row, len(told[row]), result) for row, result in more.items()])
    torch.testing.assert_close(
        found, torch.stack([last_logits(ours, told[row] + result) for row, result in more.items()]), **close
    )
    both = [torch.tensor([1, 2]), torch.tensor([len(told[0]) + 1, len(told[1])]), 76]
    torch.testing.assert_close(forward.step(held, *both)[0], last_logits(ours, [*told[0], *more[0], 1]), **close)


def test_a_wider_model_in_bfloat16_is_as_close_as_bfloat16_allows():
    assert begun(network(dtype=torch.bfloat16)).dtype == torch.float32


def _optimizer(of: Any, **settings: Any) -> None:
    optimizer = torch.optim.AdamW(of.parameters(), lr=0.05, **settings)
    of(torch.tensor([ids(12, 5)]), labels=torch.tensor([ids(12, 5)])).loss.backward()
    optimizer.step()


def _in_place(of: Any) -> None:
    with torch.no_grad():
        for parameter in of.parameters():
            parameter.mul_(1.1)


def _behind_autograds_back(of: Any) -> None:
    for parameter in of.parameters():
        parameter.data.mul_(0.9)


def _other_memory(of: Any) -> None:
    for parameter in of.parameters():
        parameter.data = parameter.data * 1.2


def _other_parameter(of: Any) -> None:
    old = of.model.layers[1].mlp.up_proj.weight
    of.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(old.detach() * 2)


def _loaded(of: Any) -> None:
    of.load_state_dict(network(7, kind=of.config.model_type).state_dict())


CHANGES: list[Callable[[Any], None]] = [
    *(_optimizer, lambda of: _optimizer(of, foreach=True), lambda of: _optimizer(of, fused=True)),
    *(_in_place, _behind_autograds_back, _other_memory, _other_parameter, _loaded),
]


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_sampled_with_at_once(change: Callable[[Any], None], kind: str):
    ours = network(kind=kind)
    forward = fast(ours)
    before = forward.prefill(slots(ours, 1), [Feed(0, 0, ids(9, 1))])[0]
    for _ in range(2):
        change(ours)
        found = forward.prefill(slots(ours, 1), [Feed(0, 0, ids(9, 1))])[0]
        torch.testing.assert_close(found, last_logits(ours, ids(9, 1)), rtol=0, atol=1e-4)
        assert (found - before).abs().max() > 0.01
    _optimizer(ours)  # still learns: no parameter became one of inference


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_follows_its_learner(kind: str):
    learner = weights.trainable(network(kind=kind), config.Train())
    plain = weights.merged_copy(learner)
    forward = fast(plain)
    _optimizer(learner)
    _optimizer(learner)
    weights.sync(learner, plain)
    found = forward.prefill(slots(plain, 1), [Feed(0, 0, ids(9, 1))])[0]
    torch.testing.assert_close(found, last_logits(learner, ids(9, 1)), rtol=0, atol=1e-4)


def test_a_model_that_was_laid_out_anew_is_copied_saved_and_loaded_as_before(tmp_path: Any):
    ours = network()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    fast(ours)
    weights.save(ours, tmp_path / "weights")
    assert weights.weights_sha256(
        weights.with_weights(network(3), "full", tmp_path / "weights", torch.device("cpu"))
    ) == weights.weights_sha256(ours)
    ours.save_pretrained(tmp_path / "model")
    twin = copy.deepcopy(ours)
    _in_place(twin)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(Qwen3ForCausalLM.from_pretrained(tmp_path / "model").lm_head.weight, ours.lm_head.weight)


def test_scaled_rotary_positions_are_the_models_own():
    scaled = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
    ours = network(rope_parameters=scaled)
    torch.testing.assert_close(begun(ours), last_logits(ours, ids(9, 1)), rtol=0, atol=1e-4)


def test_an_unknown_architecture_has_none_and_the_reason_names_it():
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    found, why = fast_forward.fast_forward(GemmaForCausalLM(GemmaConfig(vocab_size=50, **shape)))
    assert found is None
    assert "GemmaForCausalLM" in why


def test_layers_of_several_kinds_have_none():
    mixed = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    found, why = fast_forward.fast_forward(network(kind="qwen2", **mixed))
    assert found is None
    assert "sliding_attention" in why


def test_an_adapter_that_is_not_merged_has_none():
    found, why = fast_forward.fast_forward(weights.trainable(network(), config.Train()).base_model.model)
    assert found is None
    assert "wrapped" in why


def test_a_model_whose_own_forward_says_something_else_has_none():
    ours = network()
    ours.model.layers[1].self_attn.scaling = 0.2
    found, why = fast_forward.fast_forward(ours)
    assert found is None
    assert "other logits" in why


def test_the_models_own_forward_serves_any_dialogue_too():
    ours = network()
    held, told = slots(ours, 2), [ids(5, 1), ids(40, 2)]
    forward = ModelForward(ours)
    forward.prefill(held, [Feed(n, 0, one) for n, one in enumerate(told)])
    found = forward.step(held, torch.tensor([3, 4]), torch.tensor([5, 40]), 41)
    torch.testing.assert_close(
        found, torch.stack([last_logits(ours, [*told[0], 3]), last_logits(ours, [*told[1], 4])]), rtol=0, atol=1e-4
    )


# -- what a session begins with --------------------------------------------------------------------
@pytest.mark.parametrize("kind", [*KINDS, "llama with biases"])
def test_a_session_with_packed_weights_computes_what_the_model_does(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Small weights are packed here, too. It begins, takes a step, and goes on."""
    monkeypatch.setattr(onednn, "PACKED", 1)
    biases = {"attention_bias": True, "mlp_bias": True} if "biases" in kind else {}
    ours = network(kind=kind.split()[0], **biases)
    told, held = [ids(9, 1), ids(14, 2)], slots(ours, 2)
    forward = fast(ours).begun()
    found = [
        *forward.prefill(held, [Feed(n, 0, one) for n, one in enumerate(told)]),
        *forward.step(held, torch.tensor([3, 4]), torch.tensor([9, 14]), 15),
        *forward.prefill(held, [Feed(1, 15, ids(7, 3)), Feed(0, 10, ids(3, 4))]),
    ]
    spoken = [[*told[0], 3], [*told[1], 4]]
    went_on = [[*spoken[1], *ids(7, 3)], [*spoken[0], *ids(3, 4)]]
    expected = torch.stack([last_logits(ours, one) for one in [*told, *spoken, *went_on]])
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-4)


def test_weights_that_change_reach_the_next_session():
    ours = network()
    forward = fast(ours)
    forward.begun()
    _optimizer(ours)
    found = forward.begun().prefill(slots(ours, 1), [Feed(0, 0, ids(9, 1))])[0]
    torch.testing.assert_close(found, last_logits(ours, ids(9, 1)), rtol=0, atol=1e-4)


def test_an_adapter_beside_float32_weights_is_sampled_with():
    ours, generator = network(), torch.Generator().manual_seed(5)
    projection = ours.model.layers[1].self_attn.q_proj
    down, up = torch.randn(2, 40, generator=generator), torch.randn(len(projection.weight), 2, generator=generator)
    plain = last_logits(ours, ids(9, 1))
    ours.model.layers[1].self_attn.q_proj = Unmerged(projection, down, up)
    expected = last_logits(ours, ids(9, 1))
    assert (expected - plain).abs().max() > 0.01
    found = fast(ours).begun().prefill(slots(ours, 1), [Feed(0, 0, ids(9, 1))])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_wrong_packed_product_is_noticed_before_anything_is_sampled(monkeypatch: pytest.MonkeyPatch):
    real = onednn.packed
    monkeypatch.setattr(onednn, "PACKED", 1)
    monkeypatch.setattr(onednn, "packed", lambda weight: real(weight * 1.01))
    found, why = fast_forward.fast_forward(network())
    assert found is None
    assert "other logits" in why


# -- products in bfloat16 --------------------------------------------------------------------------
needs_bfloat16 = pytest.mark.skipif(not onednn.has_bfloat16(), reason="no bfloat16 here")


@needs_bfloat16
@pytest.mark.parametrize("kind", [*KINDS, "llama with biases"])
def test_a_session_in_bfloat16_is_as_close_as_bfloat16_allows(kind: str):
    biases = {"attention_bias": True, "mlp_bias": True} if "biases" in kind else {}
    ours = network(kind=kind.split()[0], **biases)
    told, held = [ids(9, 1), ids(14, 2)], slots(ours, 2)
    forward = fast(ours).begun(in_bfloat16=True)
    found = [
        *forward.prefill(held, [Feed(n, 0, one) for n, one in enumerate(told)]),
        *forward.step(held, torch.tensor([3, 4]), torch.tensor([9, 14]), 15),
    ]
    expected = torch.stack([last_logits(ours, one) for one in [*told, [*told[0], 3], [*told[1], 4]]])
    difference = (torch.stack(found) - expected).abs().max() / expected.abs().max()
    assert 1e-5 < difference < fast_forward.TOLERANCE[torch.bfloat16]


def test_what_cannot_be_in_bfloat16_says_why(monkeypatch: pytest.MonkeyPatch):
    ours = network(dtype=torch.bfloat16, kind="llama")
    assert "float32" in fast(ours).no_bfloat16
    plain = fast(network())
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: False)
    assert "processor" in plain.no_bfloat16
