"""Best-of-n distillation, or expert iteration: imitate the best rollout of each group.

The idea: Anthony et al. 2017 (arXiv 1705.08439). For language models, with n samples and a score:
Stiennon et al. 2020 (arXiv 2009.01325), Dong et al. 2023, RAFT (arXiv 2304.06767).

    weight = 1 for the group's best, 0 for the others
    loss   = - mean of log p over the tokens of the best

It learns from good examples only: safe and slow. A group in which all score the same has no best
one, so a group in which all failed teaches nothing. The first of several equally good ones is
taken; otherwise groups with many successes would weigh more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft.algorithms import groups, supervised
from rft.algorithms.tokens import Tokens, Totals


class BestOfN:
    is_grouped = True
    zero_reason = "not the best of its group"
    has_kl_gradient = False
    requirements: frozenset[str] = frozenset()

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [_best(rewards_G) for rewards_G in rewards_PG]

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        """Count what is imitated; the others were drawn only to find it."""
        return advantage > 0

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return supervised.loss(tokens, totals.num_tokens)

    def facts(self, tokens: Tokens) -> dict[str, float]:
        return {}


def _best(rewards_G: groups.Rewards) -> groups.Floats:
    weights = groups.nothing(groups.floats(rewards_G))
    if found := groups.best_and_worst(rewards_G):
        weights[found[0]] = 1.0
    return weights
