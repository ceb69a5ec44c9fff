"""Log-probabilities straight from the hidden states: a model's head and softmax without the logits.

With N = 16384 tokens and a vocabulary of 152 k, the logits are 10 GB in float32, and plain torch
holds three to five copies of them. They are the largest thing in a training step, although only two
numbers per token are needed. So they are computed in tiles that stay on the chip:

    forward     a tile of logits is a product of a tile of tokens and a tile of vocabulary. From
                tile to tile, a token's maximum, its sum of exponentials and its sum for the entropy
                are carried along. 2 N V D operations; a few numbers per token go to memory.
    backward    the tile is computed again and becomes its gradient, grad_logprob x (one if chosen -
                probability). A slab of the vocabulary, some thousand columns wide, is kept in 16
                bits during two plain matrix products. slab.T @ hidden is that slab's whole weight
                gradient; slab @ weight is added to the gradient of the hidden states.

There is a slab, and not one kernel, because a gradient needs its tile over the whole of D, and a
program has registers for about 256 of 4096 columns. Without the slab each part would compute the
logits again. With it the step costs 8 N V D operations (6 with a frozen head). With stored logits
it would cost 6 (4): the difference is the price of the memory. Both products run in the vendor's
library. Each sum has one owner and one order, in float32 and without atomics, so equal inputs give
equal bytes. The memory beside inputs and gradients depends on N, never on V.

    linear_logprobs       hidden states, head, ids -> log-probability and entropy of each
    reference             the same in plain torch, for a CPU; tests and timings compare with it
    chunked               the same in plain torch, a slab of the vocabulary at a time, for a CPU
                          when the logits are more than one chunk
    fused                 an autograd function over the kernels; loaded only for a GPU
    programs              the kernels, in Triton
    tiles                 how large the tiles are on which chip
    onednn                products with a weight matrix on a CPU

Hidden states and weight get gradients, each only if it requires one. Entropy has none: it is a
metric. `import rft.kernels` needs no Triton.
"""

from __future__ import annotations

from types import ModuleType

import torch

from rft.errors import UserError
from rft.kernels import chunked, reference


def linear_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = True,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probability of each chosen id, with gradient, and the entropy in nats, without
    gradient (None if not asked for). Both are float32.

    `in_place`: if the weight is a leaf, `backward()` may add its gradient to `grad` directly,
    without a second one of its size. Then `torch.autograd.grad` and hooks do not see it. On a GPU
    an id outside the vocabulary gives NaN, because a check would stop the stream. Elsewhere torch
    raises an error.
    """
    check(hidden_ND, weight_VD, ids_N, temperature)
    path, more = _path(hidden_ND, weight_VD), {}
    if path is chunked and in_place and weight_VD.is_leaf:
        more = {"in_place": True}
    return path.linear_logprobs(hidden_ND, weight_VD, ids_N, temperature, with_entropy, **more)


def check(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, ids_N: torch.Tensor, temperature: float) -> None:
    """Refuse what no path can compute. `fused` refuses what only the kernels cannot."""
    if hidden_ND.ndim != 2 or weight_VD.ndim != 2 or hidden_ND.shape[1] != weight_VD.shape[1] or not weight_VD.numel():
        shapes = f"hidden {tuple(hidden_ND.shape)} and weight {tuple(weight_VD.shape)}"
        raise UserError(f"{shapes} must be (N, D) and (V, D), with V and D above 0.")
    if ids_N.shape != hidden_ND.shape[:1]:
        raise UserError(f"ids have shape {tuple(ids_N.shape)}: one entry per token. Give {len(hidden_ND)} entries.")
    if ids_N.dtype != torch.int64:
        raise UserError(f"ids are {ids_N.dtype}. Give torch.int64.")
    if not 0 < temperature < float("inf"):
        what = f"temperature {temperature} is not above 0, or not finite"
        raise UserError(f"{what}. Greedy decoding has no log-probabilities to learn from.")


def _on_a_gpu(hidden_ND: torch.Tensor) -> bool:
    """Tell whether it is on a GPU by NVIDIA, for which the tiles are chosen."""
    return hidden_ND.device.type == "cuda" and not torch.version.hip


def _path(hidden_ND: torch.Tensor, weight_VD: torch.Tensor) -> ModuleType:
    if not _on_a_gpu(hidden_ND):
        return reference if chunked.fits(len(hidden_ND), len(weight_VD)) else chunked
    try:
        from rft.kernels import fused
    except ImportError as error:
        remedy = "Install it, or call rft.kernels.chunked, which is slower."
        raise UserError(f"the GPU path needs Triton ({error}). {remedy}") from error
    return fused
