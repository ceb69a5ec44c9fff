"""The weighted next-token loss: imitation of what is known to be good.

    loss = - sum over completion tokens of weight * log p / completion tokens of what is imitated

The maximum-likelihood gradient is the policy gradient with the weight as advantage, and no ratio:
where the tokens came from does not matter. So it serves rollouts that were good (best_of_n).
"""

from __future__ import annotations

import torch

from rft.algorithms.tokens import Tokens, Totals


def loss(tokens: Tokens, totals: Totals) -> torch.Tensor:
    """Return the loss; the advantage is the weight."""
    return -(tokens.advantage_N * tokens.logprobs_N).sum() / totals.num_tokens
