"""The common part of eight algorithms: a weighted gain per token, minus a penalty.

It is averaged by the algorithm's own mean:

    loss = - mean over completion tokens of ( w * gain - beta * KL )

    gain   min(r A, clip(r, 1 - low, 1 + high) A)      Schulman et al. 2017 arXiv 1707.06347, eq. 7
    r      exp(log_ratio): a token's new probability divided by its old one; in gspo and rloo that
           of a whole rollout
    w      truncated importance sampling between sampler and trainer (importance.py)
    KL     to the reference policy (kl.py), off by default

The mean runs over all scored rollouts of the step. Those without an advantage gain nothing but are
penalized like the others, so with KL they are learned from, too.

An algorithm defines its advantages and its `mean` and, where they differ, its bounds, its ratio or
its gain. Because of the minimum, a token whose ratio went as far as its advantage wants gets no
further gradient. A token whose ratio went the wrong way keeps its gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from rft import config
from rft.algorithms import importance, kl
from rft.algorithms.groups import Floats, Rewards
from rft.algorithms.ratio import ratio
from rft.algorithms.tokens import Tokens, Totals


class PolicyGradient(ABC):
    bounds: ClassVar[tuple[float, float]] = (0.2, 0.2)
    """Defaults of `train.clip`: the paper's low and high."""
    is_grouped: bool = True
    zero_reason: str = "at the group mean"

    def __init__(self, section: config.Train):
        low, high = section.clip.low, section.clip.high
        self.low, self.high = self.bounds[0] if low is None else low, self.bounds[1] if high is None else high
        self.beta, self._estimate = section.kl.beta, kl.ESTIMATORS[section.kl.estimator]
        self.cap = section.importance_cap

    @property
    def has_kl_gradient(self) -> bool:
        return self.beta > 0

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        return True

    @property
    def requirements(self) -> frozenset[str]:
        return frozenset({"reference"} if self.beta else ())

    @abstractmethod
    def advantages(self, rewards_PG: Sequence[Rewards]) -> list[Floats]: ...

    @abstractmethod
    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        """Return this microbatch's share of the step's mean."""

    def log_ratio(self, tokens: Tokens) -> torch.Tensor:
        """Return log r of N tokens."""
        return tokens.logprobs_N - tokens.old_logprobs_N

    def gain(self, tokens: Tokens) -> torch.Tensor:
        """Return the gain of N tokens."""
        return torch.minimum(*self._free_and_clipped(tokens))

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        gain_N = importance.weights(tokens, self.cap) * self.gain(tokens)
        if self.beta:
            gain_N = gain_N - self.beta * self._distance(tokens)
        return -self.mean(gain_N, tokens, totals)

    @torch.no_grad()
    def facts(self, tokens: Tokens) -> dict[str, float]:
        found = {"clip/share": self.clipped(tokens).sum().item()}
        if self.cap is not None:
            found["importance/truncated"] = importance.truncated(tokens, self.cap)
        if self.beta:
            found["kl/mean"] = self._distance(tokens).sum().item()
        return found

    def clipped(self, tokens: Tokens) -> torch.Tensor:
        """Return N: where the bound ends the gradient."""
        free_N, clipped_N = self._free_and_clipped(tokens)
        return clipped_N < free_N

    def _free_and_clipped(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        ratio_N = ratio(self.log_ratio(tokens))
        return ratio_N * tokens.advantage_N, ratio_N.clamp(1 - self.low, 1 + self.high) * tokens.advantage_N

    def _distance(self, tokens: Tokens) -> torch.Tensor:
        """Return N distances from the reference policy."""
        assert tokens.reference_logprobs_N is not None, "the learner prepares what an algorithm needs"
        return self._estimate(tokens.logprobs_N, tokens.reference_logprobs_N, tokens.old_logprobs_N)
