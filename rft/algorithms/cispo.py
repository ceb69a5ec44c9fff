"""CISPO, clipped importance sampling policy optimization.

Chen et al. 2025, MiniMax-M1 (arXiv 2506.13585), eqs. 4 and 5.

    J = 1/(tokens) sum over tokens  sg( clip(r, 1 - low, 1 + high) ) A log p

with A as in GRPO; sg stops the gradient.

The clip bounds a weight instead of ending a gradient. Rare tokens that turn a train of thought
("however", "wait") are the first whose ratio leaves PPO's bounds, and then PPO never learns them.
The paper leaves the weight unbounded below and gives no number above; the default lets it go to 5
(high = 4), from ScaleRL (Khatri et al. 2025, arXiv 2510.13786). TRL's `epsilon_high` is the largest
weight itself: 5 there is 4 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.ratio import ratio
from rft.algorithms.tokens import Tokens, Totals


class Cispo(PolicyGradient):
    bounds = (math.inf, 4.0)

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [groups.standardized(rewards_G) for rewards_G in rewards_PG]

    def gain(self, tokens: Tokens) -> torch.Tensor:
        weight_N = ratio(self.log_ratio(tokens)).clamp(1 - self.low, 1 + self.high).detach()
        return weight_N * tokens.advantage_N * tokens.logprobs_N

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / totals.num_tokens

    def clipped(self, tokens: Tokens) -> torch.Tensor:
        """Return N: where the weight is bounded. There is still a gradient."""
        ratio_N = ratio(self.log_ratio(tokens))
        return (ratio_N > 1 + self.high) | (ratio_N < 1 - self.low)
