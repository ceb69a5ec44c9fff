"""Products by oneDNN are PyTorch's own, on weights that are views too."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rft.kernels import onednn

WEIGHT = torch.randn(900, 500, generator=torch.Generator().manual_seed(1))


@pytest.mark.skipif(not onednn.serves(WEIGHT), reason="this build of PyTorch has no such product")
@pytest.mark.parametrize("tokens", [1, 7, 64])
@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT[100:800]], ids=["whole", "rows of another"])
def test_products_are_pytorchs(tokens: int, weight: torch.Tensor):
    x, bias, residual = torch.randn(tokens, 500), torch.randn(len(weight)), torch.randn(tokens, len(weight))
    close = {"rtol": 0, "atol": 2e-4}
    torch.testing.assert_close(onednn.linear(x, weight), functional.linear(x, weight), **close)
    torch.testing.assert_close(onednn.linear(x, weight, bias), functional.linear(x, weight, bias), **close)
    before = residual.clone()
    found = onednn.linear_onto(residual, x, weight, bias)
    torch.testing.assert_close(found, residual + functional.linear(x, weight, bias), **close)
    assert torch.equal(residual, before), "what it adds to is left as it was"


@pytest.mark.skipif(not onednn.serves(WEIGHT), reason="this build of PyTorch has no such product")
def test_a_packed_weight_gives_the_same_products_and_each_row_the_same_bits_beside_any_others():
    packed, x = onednn.packed(WEIGHT), torch.randn(64, 500, generator=torch.Generator().manual_seed(3))
    assert packed is not None
    bias, residual = torch.randn(len(WEIGHT)), torch.randn(64, len(WEIGHT))
    close = {"rtol": 0, "atol": 2e-4}
    found = onednn.linear(x, packed, bias)
    torch.testing.assert_close(found, functional.linear(x, WEIGHT, bias), **close)
    torch.testing.assert_close(
        onednn.linear_onto(residual, x, packed), residual + functional.linear(x, WEIGHT), **close
    )
    for rows in (1, 5, 33):
        assert torch.equal(onednn.linear(x[:rows], packed, bias), found[:rows])


def test_a_packed_weight_is_a_copy():
    weight = WEIGHT.clone()
    if (packed := onednn.packed(weight)) is None:
        pytest.skip("this build of PyTorch packs no weights")
    before = onednn.linear(torch.ones(1, 500), packed)
    weight.zero_()
    assert torch.equal(onednn.linear(torch.ones(1, 500), packed), before)


@pytest.mark.parametrize("weight", [WEIGHT[:10], WEIGHT.bfloat16(), WEIGHT.T])
def test_what_packing_would_not_speed_up_is_not_packed(weight: torch.Tensor):
    assert onednn.packed(weight) is None


@pytest.mark.parametrize(
    "weight", [WEIGHT[:10], WEIGHT.bfloat16(), WEIGHT.T], ids=["small", "bfloat16", "not in order"]
)
def test_what_it_would_not_speed_up_or_cannot_read_stays_with_pytorch(weight: torch.Tensor):
    assert not onednn.serves(weight)


@pytest.mark.skipif(not onednn.serves(WEIGHT), reason="this build of PyTorch has no such product")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_are_pytorchs(frozen: bool, with_bias: bool):
    """A frozen weight is what an adapter stands beside: nothing of the tokens is kept for it."""
    bias = torch.randn(len(WEIGHT)) if with_bias else None
    found = []
    for compute in (onednn.product, functional.linear):
        x = torch.randn(3, 5, 500, generator=torch.Generator().manual_seed(2)).requires_grad_(True)
        weight = WEIGHT.clone().requires_grad_(not frozen)
        own = None if bias is None else bias.clone().requires_grad_(not frozen)
        out = compute(x, weight, own)
        out.mul(torch.linspace(-1, 1, len(WEIGHT))).sum().backward()
        found.append((out.detach(), x.grad, weight.grad, None if own is None else own.grad))
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.skipif(not onednn.serves(WEIGHT), reason="this build of PyTorch has no such product")
def test_modules_take_this_way_in_a_block(monkeypatch: pytest.MonkeyPatch):
    module, x = torch.nn.Linear(500, 900), torch.randn(2, 500)
    expected, calls = module(x), []
    real = onednn.linear
    monkeypatch.setattr(onednn, "linear", lambda *given: calls.append(1) or real(*given))
    with onednn.Products():
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=2e-4)
        assert calls == [1]
    module(x)
    assert calls == [1]
