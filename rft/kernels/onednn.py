"""Products with a weight matrix on a CPU, by oneDNN where that is faster.

PyTorch multiplies float32 by MKL, which leaves the wide registers (AVX-512) of AMD's processors
unused. oneDNN, which comes with PyTorch too, uses them. 32 tokens, two cores of an EPYC, MKL and
oneDNN: 576 -> 3,072 in 1.4 and 1.0 ms, a head of 49,152 words in 28 and 15 ms; one token 12 and 7.
A call costs about 30 us more, so small weights stay with MKL: at 128 -> 768 both are as fast.

PyTorch has no public name for this. So `serves` tries it once, and where it fails, or computes
something else, everything stays as it was.

Shapes: N tokens of D inputs, V outputs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

LARGE = 1 << 18
"""Numbers of a weight from which on it is worth the call."""


def serves(weight_VD: torch.Tensor) -> bool:
    """Tell whether products with this weight go this way."""
    is_plain = weight_VD.dtype == torch.float32 and weight_VD.device.type == "cpu" and weight_VD.is_contiguous()
    return is_plain and weight_VD.numel() >= LARGE and _works()


def linear(x_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x W^T + bias; without gradients."""
    return _operator()(x_ND, weight_VD, bias_V, "none", [], "")


def linear_onto(
    residual_NV: torch.Tensor, x_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute residual + x W^T + bias, as one operation; without gradients."""
    return _operator().binary(x_ND, residual_NV, weight_VD, bias_V, "add")


def _operator() -> Any:
    return torch.ops.mkldnn._linear_pointwise


@cache
@torch.inference_mode()
def _works() -> bool:
    """Try both on small numbers, which are exact."""
    x, weight = torch.arange(12.0).view(3, 4), torch.arange(20.0).view(5, 4)
    bias, residual = torch.arange(5.0), torch.arange(15.0).view(3, 5)
    expected = torch.nn.functional.linear(x, weight, bias)
    try:
        found = linear(x, weight, bias), linear_onto(residual, x, weight, bias)
    except (RuntimeError, AttributeError):  # another build, or another processor
        return False
    return torch.equal(found[0], expected) and torch.equal(found[1], expected + residual)
