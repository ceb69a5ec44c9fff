"""Advantages and losses: what a step learns from its rewards.

Each algorithm is one small file that reads like its paper. The policy gradient is one idea: a
rollout's tokens become likelier by how much better it was than expected. Algorithms differ in what
"expected" is, and in the bounds within which the probability ratio r = new / old counts. They also
differ in what a token's share of the step is divided by:

    algorithm     advantage of a rollout             ratio          bounds of r     divided by
    grpo          (reward - group mean) / group std  per token      0.8, 1.2        length, rollouts
    dr_grpo       reward - group mean                per token      0.8, 1.2        rollouts x const
    dapo          as grpo; long ones are punished    per token      0.8, 1.28       tokens (below)
    gspo          as grpo                            rollout, mean  0.9997, 1.0004  length, rollouts
    cispo         as grpo                            a token's weight, up to 5      tokens
    rloo          reward - mean of the others        rollout, sum   0.8, 1.2        rollouts
    reinforce_pp  (reward - batch mean) / batch std  per token      0.8, 1.2        tokens
    ppo           per token, from a critic           per token      0.8, 1.2        tokens
    dpo           the best +1, the worst -1          none: log-sigmoid of a pair    pairs
    best_of_n     1 for the best                     none: next-token loss          its tokens
    supervised    1 for all, or the best passed      none: next-token loss          tokens' weights

A mean runs over every rollout that the formula counts (`is_in_mean`). That includes rollouts whose
advantage is 0 because their group is dull (all score the same). Without them in the denominator, a
step with fewer rollouts to learn from would be a larger step. Unscored rollouts are not a part of
any formula. DAPO divides by the tokens of groups that differ: its own constraint leaves dull groups
out. best_of_n, supervised and dpo count only what they imitate or prefer. A rollout without an
advantage needs no forward pass, unless the KL has a gradient there (`has_kl_gradient`).

Two terms are common to the first eight: a penalty for leaving the reference policy (kl), and the
weight of a token that another engine sampled (importance). In a strictly on-policy step without
`train.kl` there is no penalty, and the weight is 1. There r is 1 too, and the gradient is the plain
policy gradient.

Read in this order:

    tokens                          the input of a loss; shares that add up
    groups                          group mean, standard deviation, leave-one-out
    ratio                           a ratio of probabilities that cannot overflow
    importance, kl                  the two common terms
    policy_gradient                 what the first eight have in common
    grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_pp, ppo
    supervised, best_of_n, dpo      no ratio

Advantages are computed in numpy, from all groups of a step. Losses are computed in torch, from a
microbatch; over any partition, the shares of microbatches add up to the step's loss. The numbers
are compared with TRL's (`make figure NAME=parity_trl`).

Shapes: P groups of G rollouts in a step; B rollouts and N completion tokens in a microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rft import config
from rft.algorithms.best_of_n import BestOfN
from rft.algorithms.cispo import Cispo
from rft.algorithms.dapo import Dapo
from rft.algorithms.dpo import Dpo
from rft.algorithms.dr_grpo import DrGrpo
from rft.algorithms.grpo import Grpo
from rft.algorithms.gspo import Gspo
from rft.algorithms.ppo import Ppo
from rft.algorithms.reinforce_pp import ReinforcePP
from rft.algorithms.rloo import Rloo
from rft.algorithms.supervised import Supervised
from rft.algorithms.tokens import Tokens, Totals


class Algorithm(Protocol):
    """An algorithm. The collector uses it up to `is_in_mean`, the learner the rest. The
    collector also reads `requirements` (pairs, passed), and the learner `has_kl_gradient`."""

    @property
    def is_grouped(self) -> bool:
        """Whether it learns from differences within a group, and not from all that is scored."""
        ...

    @property
    def zero_reason(self) -> str:
        """Why a scored rollout in a group that differs may have advantage 0."""
        ...

    def advantages(self, rewards_PG: Sequence[Sequence[float | None]]) -> list[NDArray[np.float64]]:
        """Return one array per group: NaN if unscored, zeros where nothing can be learned."""
        ...

    @property
    def has_kl_gradient(self) -> bool:
        """Whether the loss has a gradient, that of the KL, even where the advantage is 0."""
        ...

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        """Tell whether the formula's mean runs over a scored rollout. `outcomes_differ`: whether
        the outcomes in its group differ."""
        ...

    @property
    def requirements(self) -> frozenset[str]:
        """What the learner must prepare: 'reference' (log-probabilities), 'values' (a critic),
        'pairs' (both of a pair in one microbatch). 'passed': it learns only from what passed."""
        ...

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        """Return this microbatch's share of the step's loss."""
        ...

    def facts(self, tokens: Tokens) -> dict[str, float]:
        """Return sums over the microbatch's tokens, by metric. The learner makes them means."""
        ...


def from_params(section: config.Train) -> Algorithm:
    """Make the algorithm of `train.algorithm`; the collector and the learner share one."""
    match section.algorithm:
        case "grpo":
            return Grpo(section)
        case "dr_grpo":
            return DrGrpo(section)
        case "dapo":
            return Dapo(section)
        case "gspo":
            return Gspo(section)
        case "cispo":
            return Cispo(section)
        case "rloo":
            return Rloo(section)
        case "reinforce_pp":
            return ReinforcePP(section)
        case "ppo":
            return Ppo(section)
        case "dpo":
            return Dpo(section.dpo.beta)
        case "best_of_n":
            return BestOfN()
        case "supervised":
            return Supervised()
