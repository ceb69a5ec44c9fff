"""The kernels' functions in plain torch without the N x V logits: the path without a GPU when there
are many tokens or a large vocabulary.

The logits of 1,000 tokens over a vocabulary of 49,152 are 200 MB, and plain torch holds three such
tensors until the backward is done. Here they exist a chunk of tokens at a time, and are gone when
the chunk's two numbers per token are known. Backward computes a chunk again and turns it, in place,
into its gradient. That is 8 N V D operations instead of 6 (6 instead of 4 with a frozen head).

`fits` tells when all logits are one chunk: then `reference` is faster, and takes no more memory.

Shapes: N tokens, C of them in a chunk, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rft.kernels.reference import clipped

CHUNK = 1 << 24
"""Logits of a chunk: 64 MiB in float32. With all weights learning, each chunk goes through the
head's whole gradient once; the larger the chunk, the fewer times."""
PART = 1 << 20
"""Logits that are taken through softmax together; they fit a cache."""


def fits(tokens: int, vocabulary: int) -> bool:
    """Tell whether all logits are no more than a chunk."""
    return tokens * vocabulary <= CHUNK


def linear_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `reference.linear_logprobs`, a chunk at a time."""
    logprobs_N, entropy_N = _Logprobs.apply(hidden_ND, weight_VD, ids_N, temperature)  # type: ignore[misc]
    return logprobs_N, entropy_N if with_entropy else None


def linear_policy_loss(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    old_N: torch.Tensor,
    advantage_N: torch.Tensor,
    share_N: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reference.linear_policy_loss`, a chunk at a time."""
    logprobs_N, entropy_N = linear_logprobs(hidden_ND, weight_VD, ids_N, temperature)
    assert entropy_N is not None
    return clipped(logprobs_N, old_N, advantage_N, share_N, clip_low, clip_high), logprobs_N.detach(), entropy_N


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, weight_VD: torch.Tensor, ids_N: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_N, entropy_N, total_N = (hidden_ND.new_empty(len(ids_N), dtype=torch.float32) for _ in range(3))
        for at in _spans(len(ids_N), CHUNK // len(weight_VD)):
            logits_CV = _logits(hidden_ND[at], weight_VD, temperature)
            total_N[at] = torch.cat([logits_CV[part].logsumexp(-1) for part in _parts(logits_CV)])
            logprob_N[at] = logits_CV.gather(1, ids_N[at, None]).squeeze(1) - total_N[at]
            for part in _parts(logits_CV):
                logprobs_PV = logits_CV[part].sub_(total_N[at][part][:, None])
                entropy_N[at][part] = -torch.linalg.vecdot(logprobs_PV.exp(), logprobs_PV)
            del logits_CV  # else it is there until the next one is
        ctx.save_for_backward(hidden_ND, weight_VD, ids_N, total_N)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        hidden_ND, weight_VD, ids_N, total_N = ctx.saved_tensors
        slope_N = grads[0] / ctx.temperature
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        for_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        for_weight = torch.zeros_like(weight_VD) if wants_weight else None
        for at in _spans(len(ids_N), CHUNK // len(weight_VD)):
            slope_C1 = slope_N[at, None]
            pull_CV = _logits(hidden_ND[at], weight_VD, ctx.temperature)
            for part in _parts(pull_CV):
                pull_CV[part].sub_(total_N[at][part][:, None]).exp_().mul_(-slope_C1[part])
            pull_CV.scatter_add_(1, ids_N[at, None], slope_C1)
            pull_CV = pull_CV.to(weight_VD.dtype)
            if for_hidden is not None:
                torch.mm(pull_CV, weight_VD, out=for_hidden[at])
            if for_weight is not None:
                for_weight.addmm_(pull_CV.T, hidden_ND[at])
            del pull_CV
        return for_hidden, for_weight, None, None


def _logits(hidden_CD: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    logits_CV = torch.nn.functional.linear(hidden_CD, weight_VD).float()
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)


def _parts(logits_CV: torch.Tensor) -> Iterator[slice]:
    return _spans(len(logits_CV), PART // logits_CV.shape[1])


def _spans(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
