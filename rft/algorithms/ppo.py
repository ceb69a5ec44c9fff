"""PPO with a critic.

Schulman et al. 2017 (arXiv 1707.06347), eq. 9, without its entropy bonus. Advantages by GAE (arXiv
1506.02438), eq. 16.

    delta_t = reward_t + gamma V_(t+1) - V_t
    A_t     = delta_t + gamma lambda A_(t+1)
    return  = A_t + V_t
    loss    = - mean over tokens of min(r A, clip(r, 1 - eps, 1 + eps) A)
              + c * mean of max((V - return)^2, (V clipped around old V - return)^2)

The reward comes with the last completion token, after which V is 0.

Time runs over completion tokens: what tools write is part of the environment, and has neither value
nor advantage. The critic is the learner's (`requirements`); it calls `gae` once per rollout,
before the step's first update, and puts the result into `Tokens`.

PPO learns from every scored rollout, whatever its group did: the value of a token replaces the
group mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rft import config
from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals


class Ppo(PolicyGradient):
    is_grouped = False
    zero_reason = "never: each token has an advantage of its own"

    def __init__(self, section: config.Train):
        super().__init__(section)
        self.gamma, self.gae_lambda = section.ppo.gamma, section.ppo.gae_lambda
        self._value_clip, self._value_weight = section.ppo.value_clip, section.ppo.value_weight

    @property
    def requirements(self) -> frozenset[str]:
        return super().requirements | {"values"}

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        """Return 1 for every scored rollout: learn from it. The learner replaces it by `gae`."""
        return [groups.nothing(groups.floats(rewards_G)) + 1.0 for rewards_G in rewards_PG]

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / totals.num_tokens

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        value_error = self.mean(self._value_error(tokens)[0], tokens, totals)
        return super().loss(tokens, totals) + self._value_weight * value_error

    @torch.no_grad()
    def facts(self, tokens: Tokens) -> dict[str, float]:
        error_N, free_N = self._value_error(tokens)
        return super().facts(tokens) | {
            "value/error": free_N.sum().item(),
            "value/clip_share": (error_N > free_N).sum().item(),
        }

    def _value_error(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return N errors with the clip and without. The clip takes the larger of both: a value far
        from the old one gets no gradient for going further."""
        values_N, old_values_N, returns_N = tokens.values_N, tokens.old_values_N, tokens.returns_N
        if values_N is None or old_values_N is None or returns_N is None:
            raise AssertionError("the learner prepares what an algorithm needs")
        near_N = old_values_N + (values_N - old_values_N).clamp(-self._value_clip, self._value_clip)
        free_N = (values_N - returns_N).square()
        return torch.maximum(free_N, (near_N - returns_N).square()), free_N


def gae(reward: float, values_T: groups.Floats, gamma: float, gae_lambda: float) -> tuple[groups.Floats, groups.Floats]:
    """Return advantages and returns of one rollout's T completion tokens. With gamma = lambda = 1
    every return is the reward."""
    advantages_T = np.zeros(len(values_T), dtype=np.float64)
    later, value_after, paid = 0.0, 0.0, reward
    for t in reversed(range(len(values_T))):
        value = float(values_T[t])
        later = paid + gamma * value_after - value + gamma * gae_lambda * later
        advantages_T[t], value_after, paid = later, value, 0.0
    return advantages_T, advantages_T + values_T
