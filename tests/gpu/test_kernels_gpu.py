"""The kernels on a real GPU, against the plain reference in float32: numbers, memory, bytes, sizes
beyond 32 bits, and a training step.

`make test ARGS='-m gpu'`. Without a CUDA GPU each is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rft import kernels
from rft.kernels import reference
from tests.kernel_cases import Case, agree

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    """Products of the reference in true float32; new tensors on the GPU."""
    assert not torch.backends.cuda.matmul.allow_tf32
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)
    torch.cuda.empty_cache()


SHAPES = [(1, 16, 16), (3, 100, 1000), (130, 64, 50_257), (700, 1000, 3001), (2048, 896, 32_000), (512, 4096, 20_001)]


@DTYPES
@pytest.mark.parametrize(("N", "D", "V"), SHAPES)
def test_values_and_gradients_equal_the_reference(N: int, D: int, V: int, dtype: torch.dtype) -> None:
    one = Case(N, D, V, dtype)
    agree(one.scored(kernels), one.scored(reference))


def test_no_tokens() -> None:
    one = Case(0, 64, 500, torch.bfloat16)
    assert all(not result.any() for result in one.scored(kernels))


def test_an_id_outside_the_vocabulary_is_no_number() -> None:
    one = Case(4, 64, 500, torch.bfloat16)
    one.ids_N[2], one.ids_N[3] = 500, -1
    assert kernels.linear_logprobs(one.hidden_ND, one.weight_VD, one.ids_N)[0].isnan().tolist() == [
        False,
        False,
        True,
        True,
    ]


@DTYPES
def test_equal_inputs_give_equal_bytes(dtype: torch.dtype) -> None:
    one = Case(3000, 512, 40_000, dtype)
    first = one.scored(kernels)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, one.scored(kernels), strict=True))


def test_a_weight_beyond_32_bits() -> None:
    """600,000 x 4096 entries: more than 2^31. The last rows are where an offset would have turned
    around."""
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    N, D, V = 64, 4096, 600_000
    torch.manual_seed(0)
    hidden_ND = torch.randn(N, D, dtype=torch.bfloat16, requires_grad=True)
    weight_VD = (torch.randn(V, D, dtype=torch.bfloat16) / 64).requires_grad_()
    ids_N = torch.arange(V - N, V)
    logprobs_N, entropy_N = kernels.linear_logprobs(hidden_ND, weight_VD, ids_N)
    logprobs_N.sum().backward()
    with torch.no_grad():
        logits_NV = torch.cat([hidden_ND.float() @ rows.float().T for rows in weight_VD.split(50_000)], 1)
        logprobs_NV = torch.log_softmax(logits_NV, -1)
        wanted_N = logprobs_NV.gather(1, ids_N[:, None]).squeeze(1)
        tail_NC = torch.eye(N) - logprobs_NV[:, -N:].exp()
        assert weight_VD.grad is not None
        agree(
            [logprobs_N, entropy_N, weight_VD.grad[-N:]],
            [wanted_N, -(logprobs_NV.exp() * logprobs_NV).sum(-1), tail_NC.T @ hidden_ND.float()],
        )


def peak(V: int, frozen: bool, path: Any) -> int:
    """Bytes at the height of forward and backward, beyond inputs and gradients."""
    hidden_ND = torch.randn(4096, 256, dtype=torch.bfloat16, requires_grad=True)
    weight_VD = torch.randn(V, 256, dtype=torch.bfloat16, requires_grad=not frozen)
    ids_N = torch.randint(V, (4096,))
    for _ in range(2):  # the first call also pays for cuBLAS
        hidden_ND.grad = weight_VD.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        path.linear_logprobs(hidden_ND, weight_VD, ids_N)[0].sum().backward()
    torch.cuda.synchronize()
    returned = sum(one.grad.nbytes for one in (hidden_ND, weight_VD) if one.grad is not None)
    return torch.cuda.max_memory_allocated() - before - returned


@pytest.mark.parametrize("frozen", [False, True], ids=["trained head", "frozen head"])
def test_peak_memory_does_not_depend_on_the_vocabulary(frozen: bool) -> None:
    small, large = peak(16_384, frozen, kernels), peak(131_072, frozen, kernels)
    assert large <= 1.03 * small
    assert large < 4096 * 131_072, "bytes of even one byte a logit"
    assert peak(131_072, frozen, reference) > 8 * large


def test_a_training_step_of_a_model() -> None:
    """Hidden states of a small transformer, three optimizer steps by either path: the same losses,
    the same weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 3000,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    settings = transformers.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True)
    found = []
    for path in (kernels, reference):
        torch.manual_seed(0)
        model = transformers.Qwen3ForCausalLM(settings).to("cuda").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ids_BT = torch.randint(3000, (4, 40))
        with torch.no_grad():
            hidden_BTD = model.get_decoder()(input_ids=ids_BT).last_hidden_state[:, :-1]
            old_N, _ = reference.linear_logprobs(
                hidden_BTD.flatten(0, 1), model.lm_head.weight, ids_BT[:, 1:].flatten()
            )
        advantage_N, share_N = torch.randn(old_N.shape), torch.full_like(old_N, 1 / len(old_N))
        losses = []
        for _ in range(3):
            hidden_ND = model.get_decoder()(input_ids=ids_BT).last_hidden_state[:, :-1].flatten(0, 1)
            now_N, _ = path.linear_logprobs(hidden_ND, model.lm_head.weight, ids_BT[:, 1:].flatten())
            loss = -(share_N * torch.exp(now_N - old_N) * advantage_N).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, [parameter.detach().clone() for parameter in model.parameters()]))
    (losses, weights), (wanted, wanted_weights) = found
    assert losses == pytest.approx(wanted, abs=1e-4)
    assert losses[2] < losses[0]
    for one, other in zip(weights, wanted_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
