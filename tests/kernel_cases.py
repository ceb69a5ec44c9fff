"""Inputs for the kernels, what a path makes of them, and how far two paths may differ: the same in
the interpreter and on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from rft.kernels import reference

EXACT, ROUNDED = 2e-5, 1e-2
"""Of the largest entry. In bfloat16 the gradients are rounded to 8 bits, once as a slab of logits
and once at the end. The reference is always computed in float32, from the same numbers:
log-probabilities then agree to float32's digits, whatever the inputs' type.
"""


class Case:
    def __init__(self, N: int, D: int, V: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.hidden_ND = torch.randn(N, D).to(dtype)
        self.weight_VD = (2 * torch.randn(V, D) / D**0.5).to(dtype)
        self.ids_N = torch.randint(V, (N,))
        self.grad_logprob_N = torch.randn(N)

    def leaves(self, path: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float32 if path is reference else self.hidden_ND.dtype
        hidden_ND, weight_VD = (one.to(dtype, copy=True).requires_grad_() for one in (self.hidden_ND, self.weight_VD))
        return hidden_ND, weight_VD

    def scored(self, path: Any) -> list[Any]:
        """Log-probabilities, entropy, gradient of the hidden states, gradient of the weight."""
        hidden_ND, weight_VD = self.leaves(path)
        logprobs_N, entropy_N = path.linear_logprobs(hidden_ND, weight_VD, self.ids_N, 0.7)
        (logprobs_N * self.grad_logprob_N).sum().backward()
        return [logprobs_N, entropy_N, hidden_ND.grad, weight_VD.grad]


def agree(found: list[Any], wanted: list[Any], tolerance: float = ROUNDED) -> None:
    """All numbers to `EXACT`, the gradients (the last two, when in bfloat16) to `tolerance`,
    relative to the largest entry."""
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == other.shape
        worst, size = (one.detach().float() - other.detach().float()).abs(), other.detach().float().abs()
        allowed = (tolerance if one.dtype == torch.bfloat16 else EXACT) * (1 + size.max()) if size.numel() else 0.0
        assert not worst.numel() or worst.max() <= allowed, (
            f"result {index} of {len(wanted)} is off by {worst.max():.3g}"
        )
