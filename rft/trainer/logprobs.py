"""Log-probabilities of the policy's own tokens under the present weights, and their entropy.

The network reads whole rows (rft/trainer/packing.py). The output head, which in a small model is a
third of the arithmetic, runs on the hidden states that predict an own token only: a fifth of all,
and where the architecture is known so does most of the last layer (rft/trainer/forward.py). Head,
softmax and entropy are rft/kernels': on a GPU the logits are never written down.

Shapes: R rows of T tokens; N own tokens, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rft.kernels import linear_logprobs
from rft.trainer import forward
from rft.trainer.packing import Layout


@dataclass(frozen=True, slots=True)
class Scored:
    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor
    """Without gradient."""
    hidden_NE: torch.Tensor
    """What predicts each own token: the critic reads it."""


def own_logprobs(network: Any, layout: Layout, temperature: float) -> Scored:
    """`network`: any transformers causal model, with an adapter or without."""
    decoder, head = network.get_decoder(), network.get_output_embeddings()
    hidden_NE = forward.own_hidden(decoder, layout) if forward.knows(decoder) else _hidden(decoder, layout)
    if type(head) is torch.nn.Linear and "bias" not in dict(head.named_parameters()):
        kind = torch.bfloat16 if torch.is_autocast_enabled("cuda") else hidden_NE.dtype
        logprobs_N, entropy_N = linear_logprobs(hidden_NE.to(kind), head.weight.to(kind), layout.ids_N, temperature)
    else:  # one with a bias or an adapter of its own: its logits are taken as they are
        logprobs_NV = torch.log_softmax(head(hidden_NE).float() / temperature, -1)
        logprobs_N = logprobs_NV.gather(1, layout.ids_N[:, None]).squeeze(1)
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1).detach()
    assert entropy_N is not None
    return Scored(logprobs_N, entropy_N, hidden_NE)


def _hidden(decoder: Any, layout: Layout) -> torch.Tensor:
    """By the model's own forward. Rows of one sample each need neither mask nor positions, which is
    the fastest."""
    if layout.mask_RTT is None:
        seen = decoder(input_ids=layout.ids_RT, use_cache=False)
    else:
        seen = decoder(
            input_ids=layout.ids_RT,
            attention_mask=layout.mask_RTT[:, None],
            position_ids=layout.positions_RT,
            use_cache=False,
        )
    return seen.last_hidden_state.flatten(0, 1)[layout.predictor_N]
