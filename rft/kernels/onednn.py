"""Products with a weight matrix on a CPU, by oneDNN where that is faster.

PyTorch multiplies float32 with MKL, which leaves the wide registers (AVX-512) of AMD's processors
unused. oneDNN, which also comes with PyTorch, uses them. In each pair of numbers, MKL comes before
oneDNN:

    32 tokens, two cores of an EPYC                    576 -> 3,072: 1.4 and 1.0 ms
                                                       a head of 49,152 words: 28 and 15 ms
    one token                                          the same head: 12 and 7 ms
    1,424 tokens, 576 -> 3,072, two cores of a newer   forward: 231 and 457 GFLOP/s
    EPYC                                               gradient of the tokens: 236 and 558
                                                       gradient of the weight: 233 and 413

A call costs about 30 us more with oneDNN, so small weights stay with MKL: at 128 -> 768 both are
equally fast.

A weight that is multiplied many times before it changes is packed: laid out as oneDNN reads it. At
576 -> 3,072 on two cores, 4 tokens take 369 us with MKL, 197 with oneDNN, and 109 packed; 64 tokens
take 1,640, 1,220 and 1,110. With a packed weight, a row's numbers do not depend on how many rows
there are.

    linear, linear_onto   without gradients: what sampling needs
    packed                a copy of a weight, for these two
    product               with gradients
    Products              a block in which modules' own products are computed by `product`

PyTorch has no public name for this. So `serves` tries it once. If it fails, or computes something
else, PyTorch's own products stay in use.

Shapes: N tokens of D inputs, V outputs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LARGE = 1 << 18
"""The size of a weight, in numbers, from which the call is worth it."""


PACKED = 1 << 16
"""The same for a packed one: 128 -> 384 is still faster by MKL, 128 -> 640 no longer."""
ROWS = 64
"""The number of rows for which a weight is packed. It is always the same, because the layout may
depend on it."""


def serves(weight_VD: torch.Tensor) -> bool:
    """Tell whether products with this weight are computed by oneDNN."""
    return weight_VD.numel() >= LARGE and _is_plain(weight_VD) and _works()


def packed(weight_VD: torch.Tensor) -> torch.Tensor | None:
    """Return a packed copy of the weight; None if oneDNN does not serve. Packing takes about three
    times as long as copying the weight."""
    if weight_VD.numel() < PACKED or not _is_plain(weight_VD) or not _works():
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight_VD, ROWS)


def packed_bfloat16(weight_VD: torch.Tensor) -> torch.Tensor:
    """Return a copy of the weight in bfloat16, packed. Call it only where `has_bfloat16`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_VD.detach().bfloat16(), ROWS)


@cache
@torch.inference_mode()
def has_bfloat16() -> bool:
    """Tell whether the processor multiplies bfloat16 itself, and correctly."""
    try:
        if not (torch.ops.mkldnn._is_mkldnn_bf16_supported() and torch.cpu._is_avx512_bf16_supported()):
            return False  # without these instructions oneDNN imitates them, slowly
        x, weight = torch.arange(12.0).view(3, 4), torch.arange(20.0).view(5, 4)
        found = linear(x.bfloat16(), packed_bfloat16(weight))
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(found.float(), torch.nn.functional.linear(x, weight), rtol=2**-8)


def linear(x_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x W^T + bias; without gradients."""
    return _operator()(x_ND, weight_VD, bias_V, "none", [], "")


def linear_onto(
    residual_NV: torch.Tensor, x_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute residual + x W^T + bias, as one operation; without gradients."""
    return _operator().binary(x_ND, residual_NV, weight_VD, bias_V, "add")


def product(x: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x W^T + bias, with gradients; PyTorch does it if oneDNN does not serve. `x`: any
    shape that ends with D."""
    if x.dtype != weight_VD.dtype or not serves(weight_VD):
        return torch.nn.functional.linear(x, weight_VD, bias_V)
    return _Product.apply(x, weight_VD, bias_V)  # type: ignore[return-value]


class Products(TorchFunctionMode):
    """A block in which every `functional.linear` is `product`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            with torch._C.DisableTorchFunction():
                return product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Product(torch.autograd.Function):
    """All three products. It keeps for the backward only what the backward reads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None) -> torch.Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight_VD if of_x else None)
        out_NV = linear(x.reshape(-1, x.shape[-1]), weight_VD, bias_V)
        return out_NV.view(*x.shape[:-1], len(weight_VD))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        x, weight_VD = ctx.saved_tensors
        grad = grads[0]
        grad_NV = grad.reshape(-1, grad.shape[-1])
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(grad_NV, weight_VD.t()).view(*grad.shape[:-1], -1) if of_x else None,
            linear(grad_NV.t(), x.reshape(-1, x.shape[-1]).t()) if of_weight else None,
            grad_NV.sum(0) if of_bias else None,
        )


def _is_plain(weight_VD: torch.Tensor) -> bool:
    is_ours = type(weight_VD) in (torch.Tensor, torch.nn.Parameter)
    return is_ours and weight_VD.dtype == torch.float32 and weight_VD.device.type == "cpu" and weight_VD.is_contiguous()


def _operator() -> Any:
    return torch.ops.mkldnn._linear_pointwise


@cache
@torch.inference_mode()
def _works() -> bool:
    """Try both operations on small numbers, which are exact."""
    x, weight = torch.arange(12.0).view(3, 4), torch.arange(20.0).view(5, 4)
    bias, residual = torch.arange(5.0), torch.arange(15.0).view(3, 5)
    expected = torch.nn.functional.linear(x, weight, bias)
    try:
        found = linear(x, weight, bias), linear_onto(residual, x, weight, bias)
        turned = linear(residual, weight.t()), linear(residual.t(), x.t())
        laid = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        found += (linear(x, laid, bias), linear_onto(residual, x, laid, bias))
    except (RuntimeError, AttributeError):  # another build, or another processor
        return False
    is_right = all(
        torch.equal(one, expected) and torch.equal(onto, expected + residual) for one, onto in (found[:2], found[2:])
    )
    return is_right and torch.equal(turned[0], residual @ weight) and torch.equal(turned[1], residual.t() @ x)
