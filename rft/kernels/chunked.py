"""The kernels' functions in plain torch, without the N x V logits.

Without a GPU, this is the path for many tokens or a large vocabulary. The logits of 1,000 tokens
over a vocabulary of 49,152 are 200 MB, and plain torch holds three such tensors until the backward
is done. Here only a slab of them exists at a time: some thousand words of the vocabulary, for all
tokens.

    forward     a slab's logits become exponentials, relative to the highest logit so far, as in
                online softmax. If the hidden states get a gradient, slab @ weight is added to the
                mean of the weight's rows under softmax. The gradient is the chosen row minus that
                mean, so the backward does not compute the slab again for it.
    backward    computes only the weight's own gradient: slab.T @ hidden, with the slab computed
                again, because grad_logprob_N is known only now. One chunk of the forward's slabs is
                kept for this.

So a frozen head takes 4 N V D operations, as in plain torch. A head that learns takes 8, minus the
share that is kept; plain torch takes 6. For 1,000 tokens x 576 x 49,152 on two threads of an EPYC,
the seconds of plain torch and of this module are, as medians of five:

                    buffers given back      buffers kept (rft/models/heap.py)
    frozen          0.88    0.60            0.65    0.60
    learning        1.34    1.08            1.02 to 1.16    1.09

With `in_place`, the weight's gradient, which is as large as the weight, goes straight into
`weight.grad`. Autograd would make another one per microbatch before it adds them up.

`fits` tells whether all logits are one chunk. Then `reference` is as fast, and takes little more
memory.

Shapes: N tokens, C of them at a time, P of these in a part; D hidden size; V vocabulary, S words of
it in a slab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rft.kernels import onednn

CHUNK = 1 << 24
"""Logits that may be there at a time: 64 MiB in float32."""
SLAB = 1 << 22
"""Logits in a slab, and numbers of the weight for it, at most: 16 MiB. With 2^21 a step took 5 %
longer."""
PART = 1 << 18
"""Logits that are taken through softmax together."""
TOKENS = 1 << 12
"""Tokens at a time. With more, a slab would have too few words for a fast product."""
LOWEST = -1e30
"""Below every logit, and finite, so that differences are finite too."""


def fits(tokens: int, vocabulary: int) -> bool:
    """Tell whether all logits are no more than a chunk."""
    return tokens * vocabulary <= CHUNK


def linear_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = True,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `reference.linear_logprobs`, a slab at a time."""
    found = _Logprobs.apply(hidden_ND, weight_VD, ids_N, temperature, in_place)
    logprobs_N, entropy_N = found  # type: ignore[misc]
    return logprobs_N, entropy_N if with_entropy else None


@dataclass(frozen=True, slots=True)
class _Head:
    """How logits come from hidden states."""

    weight_VD: torch.Tensor
    temperature: float
    by_onednn: bool

    def logits(self, hidden_CD: torch.Tensor, slab: slice) -> torch.Tensor:
        logits_CS = self.product(hidden_CD, self.weight_VD[slab]).float()
        return logits_CS if self.temperature == 1.0 else logits_CS.div_(self.temperature)

    def logits_transposed(self, hidden_CD: torch.Tensor, slab: slice) -> torch.Tensor:
        """Return the logits S x C. Their product with the hidden states then needs no transposed
        copy."""
        logits_SC = self.product(self.weight_VD[slab], hidden_CD).float()
        return logits_SC if self.temperature == 1.0 else logits_SC.div_(self.temperature)

    def product(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Compute x other^T. If oneDNN serves for the whole weight, it serves for its slabs."""
        return onednn.linear(x, other) if self.by_onednn else torch.nn.functional.linear(x, other)

    def slabs(self, tokens: int) -> Iterator[slice]:
        return _spans(len(self.weight_VD), SLAB // max(tokens, self.weight_VD.shape[1]))


@dataclass(slots=True)
class _Softmax:
    """What is known of the softmax of C tokens after some slabs."""

    highest_C: torch.Tensor
    sum_C: torch.Tensor
    """The sum of the exponentials of (logit - `highest`)."""
    weighted_below_C: torch.Tensor
    """The sum of these exponentials, each times (logit - `highest`), for the entropy."""
    chosen_C: torch.Tensor
    """The chosen id's logit, once its slab was there."""
    mean_CD: torch.Tensor | None
    """The mean of the weight's rows under softmax, times `sum`."""

    @classmethod
    def from_hidden(cls, hidden_CD: torch.Tensor, with_mean: bool) -> _Softmax:
        zero_C = hidden_CD.new_zeros(len(hidden_CD), dtype=torch.float32)
        mean_CD = torch.zeros_like(hidden_CD, dtype=torch.float32) if with_mean else None
        return cls(torch.full_like(zero_C, LOWEST), zero_C, zero_C.clone(), zero_C.clone(), mean_CD)

    def add(self, logits_CS: torch.Tensor, ids_C: torch.Tensor, slab: slice) -> None:
        """Take in a slab of logits, and overwrite it with exponentials."""
        place_C, is_here_C = _places(ids_C, slab)
        self.chosen_C = torch.where(is_here_C, logits_CS.gather(1, place_C[:, None]).squeeze(1), self.chosen_C)
        highest_C = torch.maximum(self.highest_C, logits_CS.amax(1))
        rescale_C = self.highest_C - highest_C
        self.weighted_below_C.addcmul_(rescale_C, self.sum_C).mul_(rescale_C.exp_())
        self.sum_C.mul_(rescale_C)
        if self.mean_CD is not None:
            self.mean_CD.mul_(rescale_C[:, None])
        self.highest_C = highest_C
        for part in _spans(len(ids_C), PART // logits_CS.shape[1]):
            below_PS = logits_CS[part] - highest_C[part, None]
            exp_PS = torch.exp(below_PS, out=logits_CS[part])
            self.sum_C[part] += exp_PS.sum(1)
            self.weighted_below_C[part] += below_PS.mul_(exp_PS).sum(1)


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        ids_N: torch.Tensor,
        temperature: float,
        in_place: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        by_onednn = onednn.serves(weight_VD) and hidden_ND.dtype == weight_VD.dtype
        head = _Head(weight_VD.detach(), temperature, by_onednn)
        weight_VD[:, 0].index_select(0, ids_N)  # an id outside the vocabulary is an error here
        logprob_N, entropy_N, lse_N = (hidden_ND.new_empty(len(ids_N), dtype=torch.float32) for _ in range(3))
        mean_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        room = CHUNK - SLAB if wants_weight else 0  # one more is in use
        for at in _spans(len(ids_N), TOKENS):
            softmax = _Softmax.from_hidden(hidden_ND[at], wants_hidden)
            for slab in head.slabs(len(ids_N[at])):
                exp_CS = head.logits(hidden_ND[at], slab)
                softmax.add(exp_CS, ids_N[at], slab)
                if softmax.mean_CD is not None:
                    softmax.mean_CD += head.product(exp_CS.to(weight_VD.dtype), weight_VD[slab].t())
                if (room := room - exp_CS.numel()) >= 0:
                    kept[at.start, slab.start] = exp_CS, softmax.highest_C
                del exp_CS  # else it would stay until the next one is made
            log_C = softmax.sum_C.log()
            lse_N[at] = softmax.highest_C + log_C
            logprob_N[at] = softmax.chosen_C - lse_N[at]
            entropy_N[at] = log_C - softmax.weighted_below_C / softmax.sum_C
            if mean_ND is not None and softmax.mean_CD is not None:
                mean_ND[at] = softmax.mean_CD.div_(softmax.sum_C[:, None])
        ctx.save_for_backward(hidden_ND if wants_weight else None, weight_VD, ids_N, lse_N, mean_ND)
        ctx.temperature, ctx.by_onednn, ctx.in_place, ctx.kept = temperature, by_onednn, in_place, kept
        ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        hidden_ND, weight_VD, ids_N, lse_N, mean_ND = ctx.saved_tensors
        grad_logprob_N = grads[0] / ctx.temperature
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden_ND = returned_grad_VD = None
        if wants_weight:
            grad_weight_VD = (
                weight_VD.grad if ctx.in_place and weight_VD.grad is not None else torch.zeros_like(weight_VD)
            )
            if ctx.in_place:
                weight_VD.grad = grad_weight_VD
            else:
                returned_grad_VD = grad_weight_VD
            head = _Head(weight_VD.detach(), ctx.temperature, ctx.by_onednn)
            _add_weight_gradient(grad_weight_VD, head, hidden_ND, ids_N, lse_N, grad_logprob_N, ctx.kept)
        if wants_hidden:
            grad_hidden_ND = weight_VD.index_select(0, ids_N).sub_(mean_ND).mul_(grad_logprob_N[:, None])
        return grad_hidden_ND, returned_grad_VD, None, None, None


@torch.no_grad()
def _add_weight_gradient(
    grad_weight_VD: torch.Tensor,
    head: _Head,
    hidden_ND: torch.Tensor,
    ids_N: torch.Tensor,
    lse_N: torch.Tensor,
    grad_logprob_N: torch.Tensor,
    kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Add grad_logprob_N x (one if chosen - probability) x hidden states. Kept slabs are used up;
    another backward computes them again."""
    for at in _spans(len(ids_N), TOKENS):
        hidden_CD, grad_logprob_C = hidden_ND[at], grad_logprob_N[at]
        for slab in head.slabs(len(grad_logprob_C)):
            if (found := kept.pop((at.start, slab.start), None)) is not None:
                exp_CS, highest_C = found
                scale_C = (highest_C - lse_N[at]).exp_().mul_(-grad_logprob_C)
                grad_logits_SC = exp_CS.mul_(scale_C[:, None]).t()
                del exp_CS, found
            else:
                grad_logits_SC = head.logits_transposed(hidden_CD, slab)
                for part in _spans(len(grad_logits_SC), PART // len(grad_logprob_C)):
                    grad_logits_SC[part].sub_(lse_N[at]).exp_().mul_(-grad_logprob_C)
            place_C, is_here_C = _places(ids_N[at], slab)
            grad_logits_SC.scatter_add_(0, place_C[None], torch.where(is_here_C, grad_logprob_C, 0.0)[None])
            grad_weight_VD[slab] += head.product(grad_logits_SC.to(grad_weight_VD.dtype), hidden_CD.t())
            del grad_logits_SC


def _places(ids_C: torch.Tensor, slab: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where in a slab the ids are, and which ids are in it. The others get a place at its
    border."""
    last = slab.stop - slab.start - 1
    place_C = ids_C - slab.start
    return place_C.clamp(0, last), (place_C >= 0) & (place_C <= last)


def _spans(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
