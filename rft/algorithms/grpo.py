"""GRPO, group relative policy optimization.

Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), eq. 3 and section 4.1.2.

    A = (reward - group mean) / group std
    J = 1/G sum over rollouts  1/|o| sum over its tokens
            ( min(r A, clip(r, 1 - eps, 1 + eps) A) - beta KL )

The group replaces a critic. Two biases were found later (dr_grpo). The division by the standard
deviation gives more weight to groups where nearly all score the same. The division by a rollout's
own length makes the tokens of long rollouts count less, so failures may ramble.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals


class Grpo(PolicyGradient):
    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [groups.standardized(rewards_G) for rewards_G in rewards_PG]

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return (values_N / tokens.lengths_B[tokens.row_N]).sum() / totals.num_rollouts
