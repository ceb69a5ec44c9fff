"""RLOO, REINFORCE leave-one-out.

Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740), section 3; Kool et al. 2019.

    A = reward - mean reward of the group's others
    J = 1/G sum over rollouts  A log p(rollout)

A whole rollout is one action: its tokens' log-probabilities are summed, and no length divides them.
The mean of the others does not contain the rollout's own reward, so the estimate is unbiased. A is
G / (G - 1) times the distance from the group mean. The paper updates once per rollout. For more
updates, the rollout's ratio exp(sum of log r) is clipped as a token's is in PPO (TRL does the
same). With one update the gradient is that of the paper. The longer a rollout, the faster a sum of
logarithms moves: with many updates per step, prefer gspo.

The KL is a term of the loss (kl.py says why). The paper and TRL subtract the rollout's sum of k1
from its reward. On those rewards our loss is what TRL computes; the figure shows that this is the
only difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals


class Rloo(PolicyGradient):
    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [groups.leave_one_out(rewards_G) for rewards_G in rewards_PG]

    def log_ratio(self, tokens: Tokens) -> torch.Tensor:
        return tokens.sums(tokens.logprobs_N - tokens.old_logprobs_N)[tokens.row_N]

    def gain(self, tokens: Tokens) -> torch.Tensor:
        """Divide a rollout's gain equally among its tokens."""
        return super().gain(tokens) / tokens.lengths_B[tokens.row_N]

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / totals.num_rollouts
