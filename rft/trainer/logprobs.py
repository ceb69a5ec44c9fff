"""Log-probabilities of completion tokens under the present weights, and their entropy.

The network reads whole rows (rft/trainer/packing.py). The output head, which in a small model is a
third of the arithmetic, runs only on the hidden states that predict a completion token: a fifth of
all. If the architecture is known, most of the last layer also runs only there
(rft/trainer/forward.py). Head, softmax and entropy are in rft/kernels: on a GPU the logits are
never stored, and elsewhere never more than a chunk of them.

Shapes: R rows of T tokens; N completion tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from rft.kernels import chunked, linear_logprobs
from rft.trainer import forward
from rft.trainer.packing import Layout

COPIES = 4
"""How many tensors of the logits' size exist at a time, if a module makes the logits."""


@dataclass(frozen=True, slots=True)
class Scored:
    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor
    """Without gradient."""
    hidden_NE: torch.Tensor
    """Predicts each completion token; the critic reads it."""


def own_logprobs(network: Any, layout: Layout, temperature: float) -> Scored:
    """Score completion tokens. `network`: any causal model, with or without an adapter."""
    decoder, head = network.get_decoder(), network.get_output_embeddings()
    hidden_NE = forward.own_hidden(decoder, layout) if forward.knows(decoder) else _hidden(decoder, layout)
    if type(head) is torch.nn.Linear and "bias" not in dict(head.named_parameters()):
        kind = torch.bfloat16 if torch.is_autocast_enabled("cuda") else hidden_NE.dtype
        logprobs_N, entropy_N = linear_logprobs(
            hidden_NE.to(kind),
            head.weight.to(kind),
            layout.ids_N,
            temperature,
            in_place=not hasattr(network, "unshard"),  # FSDP2 takes gradients from autograd
        )
    else:
        logprobs_N, entropy_N = _by_module(head, hidden_NE, layout.ids_N, temperature)
    assert entropy_N is not None
    return Scored(logprobs_N, entropy_N, hidden_NE)


def _by_module(
    head: Any, hidden_NE: torch.Tensor, ids_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score by a head with a bias or an adapter of its own, whose logits are taken as they are. If
    they are one chunk, all are computed at once; else some tokens at a time, and again in the
    backward."""
    if chunked.fits(len(ids_N), len(head.weight)):
        return _scored_by(head, hidden_NE, ids_N, temperature)
    size = max(1, chunked.CHUNK // COPIES // len(head.weight))
    found = [
        checkpoint(_scored_by, head, hidden_CE, ids_C, temperature, use_reentrant=False)
        for hidden_CE, ids_C in zip(hidden_NE.split(size), ids_N.split(size), strict=True)
    ]
    logprobs, entropies = zip(*found, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _scored_by(
    head: Any, hidden_NE: torch.Tensor, ids_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_NV = torch.log_softmax(head(hidden_NE).float() / temperature, -1)
    logprobs_N = logprobs_NV.gather(1, ids_N[:, None]).squeeze(1)
    with torch.no_grad():
        return logprobs_N, -(logprobs_NV.exp() * logprobs_NV).sum(-1)


def _hidden(decoder: Any, layout: Layout) -> torch.Tensor:
    """Use the model's own forward. Rows of one sample need neither mask nor positions, which is
    fastest."""
    packed: dict[str, torch.Tensor] = {}
    if layout.mask_RTT is not None:
        packed = {"attention_mask": layout.mask_RTT[:, None], "position_ids": layout.positions_RT}
    seen = decoder(input_ids=layout.ids_RT, use_cache=False, **packed)
    return seen.last_hidden_state.flatten(0, 1)[layout.predictor_N]
