"""DAPO: Yu et al. 2025 (arXiv 2503.14476), eq. 8. GRPO with four changes:

    clip-higher             1 + 0.28 above, 1 - 0.2 below: an unlikely token has room to become
                            likely (section 3.1)
    dynamic sampling        groups without variance are replaced (section 3.2), by
                            `train.refill_groups` in rft/trainer/collect.py. They are not a part of
                            the formula: its constraint is 0 < number of right answers < G (eq. 8)
    token-level loss        a token counts the same in a short rollout and in a long one (section
                            3.3)
    overlong punishment     the reward falls linearly near the length limit (section 3.4, eq. 13),
                            `train.overlong`

So a group that could not be replaced within the budget is in no denominator and in no KL. (TRL has
no dynamic sampling: there the tokens of such groups are counted.) The paper trains without KL,
which is the default here too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft import config
from rft.algorithms import groups
from rft.algorithms.policy_gradient import PolicyGradient
from rft.algorithms.tokens import Tokens, Totals
from rft.errors import ConfigError
from rft.types import Trajectory


class Dapo(PolicyGradient):
    bounds = (0.2, 0.28)

    def is_in_mean(self, advantage: float, outcomes_differ: bool) -> bool:
        return outcomes_differ

    def advantages(self, rewards_PG: Sequence[groups.Rewards]) -> list[groups.Floats]:
        return [groups.standardized(rewards_G) for rewards_G in rewards_PG]

    def mean(self, values_N: torch.Tensor, tokens: Tokens, totals: Totals) -> torch.Tensor:
        return values_N.sum() / totals.num_tokens


def check_overlong(overlong: config.Overlong, max_context_tokens: int | None) -> None:
    """Raise ConfigError for a buffer as long as the whole context."""
    if max_context_tokens is not None and overlong.buffer >= max_context_tokens:
        limit = f"rollout.max_tokens, or the server's limit where that is null ({max_context_tokens})"
        what = f"train.overlong.buffer = {overlong.buffer} must be below {limit}"
        raise ConfigError(f"params.yaml: {what}. Lower the buffer.")


def shaped(trajectory: Trajectory, overlong: config.Overlong, max_context_tokens: int | None) -> float | None:
    """Return the reward for training, minus the punishment if there is a buffer, which only DAPO
    may have. None if unscored."""
    if trajectory.reward is None or not overlong.buffer:
        return trajectory.reward
    assert max_context_tokens is not None, "overlong shaping measures by rollout.max_tokens"
    length = sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in trajectory.turns)
    return trajectory.reward + punishment(length, max_context_tokens, overlong)


def punishment(length: int, max_context_tokens: int, overlong: config.Overlong) -> float:
    """Return 0 to -penalty for a whole context of this `length`: prompt, turns and tool results."""
    over = length - (max_context_tokens - overlong.buffer)
    return -overlong.penalty * min(1.0, max(0, over) / overlong.buffer)
