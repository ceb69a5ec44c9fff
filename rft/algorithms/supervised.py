"""The weighted next-token loss: imitation of what is known to be good.

    loss = - sum of weight * log p / sum of weight

This is maximum likelihood, by which dialogue models are fine-tuned since InstructGPT (Ouyang et al.
2022, arXiv 2203.02155, section 3.5). Its gradient is the policy gradient with the weight as
advantage, and no ratio: where the tokens came from does not matter. So it serves demonstrations,
accepted answers of production, and rollouts that were good (best_of_n).

A completion token weighs 1. Tokens that the policy never writes may weigh a little: a small model
learns to copy from them too (rft/trainer/sft_samples.py).

The best rollout of a group is imitated, if it passed. That is rejection sampling, or expert
iteration when it is done in rounds (Anthony et al. 2017, arXiv 1705.08439; Singh et al. 2023,
ReST-EM, arXiv 2312.06585). Unlike best_of_n, it also learns from a group in which all passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rft.algorithms import groups
from rft.algorithms.tokens import Tokens, Totals


class Supervised:
    is_grouped = False
    zero_reason = "not the best of its group"
    has_kl_gradient = False
    requirements: frozenset[str] = frozenset({"passed"})

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [_best(rewards_G) for rewards_G in rewards_PG]

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        """Count what is imitated."""
        return advantage > 0

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return loss(tokens, totals.weight)

    def facts(self, tokens: Tokens) -> dict[str, float]:
        """Return the loss on completion tokens alone, which can be compared between weights."""
        logprobs_N = tokens.logprobs_N if tokens.is_own_N is None else tokens.logprobs_N[tokens.is_own_N]
        return {"nll": -logprobs_N.sum().item()}


def loss(tokens: Tokens, total: float) -> torch.Tensor:
    """Return the loss. The advantage is the weight; `total` is the sum of weights over the step."""
    return -(tokens.advantage_N * tokens.logprobs_N).sum() / total


def _best(rewards_G: groups.Rewards) -> groups.Floats:
    rewards = groups.floats(rewards_G)
    weights = groups.nothing(rewards)
    if not np.isnan(rewards).all():
        weights[int(np.nanargmax(rewards))] = 1.0
    return weights
