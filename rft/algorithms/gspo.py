"""GSPO, group sequence policy optimization: Zheng et al. 2025 (arXiv 2507.18071), eqs. 5 to 7.

    s = (new probability of the rollout / its old one) ^ (1 / |o|)
      = exp(mean over its tokens of log r)
    J = 1/G sum over rollouts  min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A),  A as in GRPO

Rewards are given to rollouts, so the ratio is a rollout's too. A token's ratio comes from one
sample: it is noise that adds up with length. Whole rollouts are clipped instead of single tokens.
The bounds are those of section 5.1. They are narrow, because a mean of logarithms moves far less
than a token's logarithm.
"""

from __future__ import annotations

import torch

from rft.algorithms.grpo import Grpo
from rft.algorithms.tokens import Tokens


class Gspo(Grpo):
    """GRPO's mean of a gain that is the same on all tokens of a rollout is the rollout's gain."""

    bounds = (3e-4, 4e-4)

    def log_ratio(self, tokens: Tokens) -> torch.Tensor:
        log_ratio_N = tokens.logprobs_N - tokens.old_logprobs_N
        return (tokens.sums(log_ratio_N) / tokens.lengths_B)[tokens.row_N]
