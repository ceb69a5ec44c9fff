"""The kernels' functions in plain torch, with the N x V logits.

The kernels are tested and timed against it. Without a GPU, it is the path for few tokens or a small
vocabulary. It holds the N x V logits up to three times. While they are small, that is also the
fastest way; when they are not, `chunked` takes over. The head's product is in the model's own type,
as in the model itself. In bfloat16 that rounds a logit of 20 to the nearest 1/8. If digits matter,
give float32.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch

from rft.kernels import onednn


def linear_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    ids_N: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probability of each chosen id, with gradient, and the entropy in nats, without
    gradient. Both are float32."""
    logits_NV = onednn.product(hidden_ND, weight_VD).float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    logprobs_NV = torch.log_softmax(logits_NV, -1)
    del logits_NV  # the backward reads only the log-probabilities
    chosen_N = logprobs_NV.gather(1, ids_N[:, None]).squeeze(1)
    if not with_entropy:
        return chosen_N, None
    with torch.no_grad():
        return chosen_N, -(logprobs_NV.exp().mul_(logprobs_NV)).sum(-1)
