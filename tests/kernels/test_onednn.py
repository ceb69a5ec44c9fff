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


@pytest.mark.parametrize(
    "weight", [WEIGHT[:10], WEIGHT.bfloat16(), WEIGHT.T], ids=["small", "bfloat16", "not in order"]
)
def test_what_it_would_not_speed_up_or_cannot_read_stays_with_pytorch(weight: torch.Tensor):
    assert not onednn.serves(weight)
