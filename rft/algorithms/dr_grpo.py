"""Dr. GRPO, GRPO done right.

Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.

    A = reward - group mean
    J = 1/G sum over rollouts  1/M sum over its tokens  min(r A, clip(r, 1 - eps, 1 + eps) A)

Both divisions of GRPO are gone: a constant M replaces the rollout's own length. It scales the
learning rate and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals


class DrGrpo(PolicyGradient):
    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [groups.centered(rewards_G) for rewards_G in rewards_PG]

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / (totals.num_rollouts * totals.max_length)
