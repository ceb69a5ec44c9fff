"""The kernels as autograd functions: launches, memory, and what is kept for the backward pass.

The programs are in programs.py. The package's docstring says why the work is cut this way.

Shapes: N tokens, D hidden size, V vocabulary, S splits of it, C columns of a slab.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from triton.runtime import driver

from rft.errors import UserError
from rft.kernels import programs
from rft.kernels.tiles import SMALLEST, TABLE, Tiles, tiles_for

KERNELS: Any = programs
LOG2_E = math.log2(math.e)
NUM_SPLITS = 64
GROUP = 16
"""Tiles of tokens that run side by side against the same tiles of vocabulary: they fit L2."""
SLAB, LEAST_SLAB, SLAB_ENTRIES = 8192, 1024, 2**27
"""Columns of a slab. It is wide enough that adding to the hidden gradient is a small part of the
product. Up to N = 131072 it takes at most 256 MB."""
FINISH = {"ROWS": 16, "TILE_D": 256, "num_warps": 4}


# -- launching -------------------------------------------------------------------------------------
def tiles_on(hidden_ND: torch.Tensor) -> Tiles:
    if not hidden_ND.is_cuda:
        return SMALLEST
    active: Any = driver.active
    return tiles_for(hidden_ND.dtype, active.utils.get_device_properties(hidden_ND.device.index)["max_shared_mem"])


def _tile_arguments(hidden_ND: torch.Tensor, tiles: Tiles) -> dict[str, Any]:
    # Three TF32 products carry float32's digits on the tensor cores; without them a product of 4096
    # terms is 10 times as slow.
    precision = "tf32x3" if hidden_ND.dtype == torch.float32 else "tf32"
    arguments = {"TILE_N": tiles.n, "TILE_V": tiles.v, "TILE_D": tiles.d, "EVEN_D": hidden_ND.shape[1] % tiles.d == 0}
    return arguments | {"PRECISION": precision, "GROUP": GROUP, "num_warps": tiles.warps, "num_stages": tiles.stages}


def _score(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float,
    with_entropy: bool,
) -> tuple[torch.Tensor, ...]:
    """Return lse (base 2), log-probability and entropy, which is undefined unless asked for."""
    (N, D), V = hidden_ND.shape, len(weight_VD)
    results = tuple(hidden_ND.new_empty(N, dtype=torch.float32) for _ in range(3))
    if N == 0:
        return results
    tiles, scale = tiles_on(hidden_ND), LOG2_E / temperature
    per_split = _cdiv(_cdiv(V, tiles.v), NUM_SPLITS)
    num_splits = _cdiv(V, per_split * tiles.v)
    statistics = hidden_ND.new_empty((3, num_splits, N), dtype=torch.float32)
    KERNELS.statistics[(_cdiv(N, tiles.n) * num_splits,)](
        hidden_ND, weight_VD, *statistics, N, V, D, scale, per_split, num_splits,
        WITH_ENTROPY=with_entropy, **_tile_arguments(hidden_ND, tiles),
    )  # fmt: skip
    KERNELS.finish[(_cdiv(N, FINISH["ROWS"]),)](
        hidden_ND, weight_VD, ids_N, *statistics, *results, N, V, D, scale, num_splits,
        WITH_ENTROPY=with_entropy, **FINISH,
    )  # fmt: skip
    return results


def _gradients(ctx: Any, grad_logprob_N: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Compute gradients of hidden states and weight, slab by slab. `grad_logprob_N`: the loss's
    derivative with respect to each log-probability."""
    hidden_ND, weight_VD, ids_N, lse_N = ctx.saved_tensors
    (N, D), V = hidden_ND.shape, len(weight_VD)
    grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=torch.float32) if ctx.needs_input_grad[0] else None
    grad_weight_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
    tiles = tiles_on(hidden_ND)
    C = slab_width(N, V)
    slab_NC = hidden_ND.new_empty((N, C))
    grad_logprob_N = grad_logprob_N / ctx.temperature
    for first in range(0, V, C):
        width = min(C, V - first)
        if N:
            KERNELS.slab_gradient[(_cdiv(N, tiles.n) * _cdiv(width, tiles.v),)](
                hidden_ND, weight_VD, ids_N, lse_N, grad_logprob_N, slab_NC, N, V, D, C, first, width,
                LOG2_E / ctx.temperature, **_tile_arguments(hidden_ND, tiles),
            )  # fmt: skip
        gradient_NC = slab_NC[:, :width]
        if grad_weight_VD is not None:
            torch.mm(gradient_NC.T, hidden_ND, out=grad_weight_VD[first : first + width])
        if grad_hidden_ND is not None:
            _add_product(grad_hidden_ND, gradient_NC, weight_VD[first : first + width])
    return None if grad_hidden_ND is None else grad_hidden_ND.to(hidden_ND.dtype), grad_weight_VD


def slab_width(N: int, V: int) -> int:
    """Return a multiple of LEAST_SLAB: each slab starts on a tile, and its rows on 16 bytes."""
    fits = max(LEAST_SLAB, SLAB_ENTRIES // max(1, N) // LEAST_SLAB * LEAST_SLAB)
    return min(SLAB, fits, _cdiv(V, LEAST_SLAB) * LEAST_SLAB)


def _add_product(sums_ND: torch.Tensor, gradient_NC: torch.Tensor, weight_CD: torch.Tensor) -> None:
    """Add gradient @ weight to the sums, in float32. On a GPU it is one call, which a CPU has only
    for equal types."""
    if gradient_NC.is_cuda and gradient_NC.dtype != torch.float32:
        torch.addmm(sums_ND, gradient_NC, weight_CD, out_dtype=torch.float32, out=sums_ND)
    else:
        sums_ND.addmm_(gradient_NC.float(), weight_CD.float())


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


# -- autograd --------------------------------------------------------------------------------------
class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        ids_N: torch.Tensor,
        temperature: float,
        with_entropy: bool,
    ):
        lse_N, logprob_N, entropy_N = _score(hidden_ND, weight_VD, ids_N, temperature, with_entropy)
        ctx.save_for_backward(hidden_ND, weight_VD, ids_N, lse_N)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprob_N: torch.Tensor, _: Any):
        return *_gradients(ctx, grad_logprob_N), None, None, None


def linear_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `reference.linear_logprobs` with the kernels."""
    hidden_ND, weight_VD, ids_N = _taken(hidden_ND, weight_VD, ids_N)
    function: Any = _LinearLogprobs
    with torch.cuda.device_of(hidden_ND):  # Triton launches on the current GPU; the backward pass sets it by itself
        logprobs_N, entropy_N = function.apply(hidden_ND, weight_VD, ids_N, temperature, with_entropy)
    return logprobs_N, entropy_N if with_entropy else None


def _taken(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors contiguous. Raises UserError for types or devices that do not fit."""
    if hidden_ND.dtype != weight_VD.dtype or hidden_ND.dtype not in TABLE:
        types = " and ".join(str(dtype) for dtype in TABLE)
        remedy = f"The kernels take {types}, the same for both: load the model in one."
        raise UserError(f"hidden is {hidden_ND.dtype} and weight {weight_VD.dtype}. {remedy}")
    tensors = (hidden_ND, weight_VD, *others)
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) > 1:
        raise UserError(f"the tensors are on {', '.join(sorted(devices))}. Move them to one device.")
    return [tensor.contiguous() for tensor in tensors]
