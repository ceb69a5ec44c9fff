"""REINFORCE++: Hu et al. 2025 (arXiv 2501.03262), the variant without groups.

    A = (reward - mean of the batch) / std of the batch
    J = mean over tokens of min(r A, clip(r, 1 - eps, 1 + eps) A)

A group's standard deviation comes from few rollouts, and the reward that it divides is one of
theirs, so the estimate is biased. Over the whole batch the bias vanishes. Groups play no part, so
rollouts of an example where all failed are learned from, too. But differences between examples hide
the differences between rollouts of one example: that is the price of needing only one rollout per
example. The paper's KL is in the reward; here it is a term of the loss (kl.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals


class ReinforcePP(PolicyGradient):
    is_grouped = False
    zero_reason = "at the batch mean"

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        """Standardize over the batch; zeros if all rewards are equal."""
        if not rewards_PG:
            return []
        batch = groups.standardized([reward for rewards_G in rewards_PG for reward in rewards_G])
        return np.split(batch, np.cumsum([len(rewards_G) for rewards_G in rewards_PG])[:-1])

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / totals.num_tokens
