"""DPO, direct preference optimization, from graded pairs.

Rafailov et al. 2023 (arXiv 2305.18290), eq. 7.

    loss = - mean over pairs of log sigmoid( beta * (m(chosen) - m(rejected)) )
    m    = log p - log p of the reference, summed over completion tokens

A group's best and worst rollout are its pair: the grader stands in for the person who prefers.
Pairs are sampled in each step, so this is online DPO. The reference policy is part of the loss, so
`train.kl` has no place here.

The learner keeps a pair in one microbatch, the chosen one first (`requirements`): rows 0, 2, 4, ...
are chosen, rows 1, 3, 5, ... rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from rft.algorithms import groups
from rft.algorithms.tokens import Tokens, Totals


class Dpo:
    is_grouped = True
    zero_reason = "not in a pair"
    has_kl_gradient = False
    requirements = frozenset({"reference", "pairs"})

    def __init__(self, beta: float):
        self.beta = beta

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [_pair(rewards_G) for rewards_G in rewards_PG]

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        return advantage != 0

    def loss(self, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return -functional.logsigmoid(self.beta * self._preference(tokens)).sum() / totals.num_pairs

    @torch.no_grad()
    def facts(self, tokens: Tokens) -> dict[str, float]:
        """Weigh a pair by its tokens, as all facts are means per token."""
        right_B = (self._preference(tokens) > 0).repeat_interleave(2)
        return {"pairs/right": (right_B * tokens.lengths_B).sum().item()}

    def _preference(self, tokens: Tokens) -> torch.Tensor:
        """Return for each pair how much more the policy prefers the chosen one than the reference
        does."""
        assert tokens.reference_logprobs_N is not None, "the learner prepares what an algorithm needs"
        sign_B = tokens.sums(tokens.advantage_N).sign()
        expected_B = [1.0, -1.0] * (tokens.num_rows // 2)
        assert sign_B.tolist() == expected_B, "pairs: the chosen one first, then the rejected one"
        margin_B = tokens.sums(tokens.logprobs_N - tokens.reference_logprobs_N)
        return margin_B[0::2] - margin_B[1::2]


def _pair(rewards_G: groups.Rewards) -> groups.Floats:
    signs = groups.nothing(groups.floats(rewards_G))
    if found := groups.best_and_worst(rewards_G):
        signs[found[0]], signs[found[1]] = 1.0, -1.0
    return signs
