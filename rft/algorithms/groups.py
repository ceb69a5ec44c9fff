"""Statistics of groups: how much better a rollout was than the others in its group.

A group is G rollouts of one example; its mean is the variance-reduction baseline. Unscored ones
(None or NaN) are in neither the mean nor the loss: a placeholder zero would drag the mean down and
train the policy away from good behavior. A group in which fewer than two are scored, or all score
the same, says nothing and gets zeros. Scores are the same if they differ by float noise only: a
standard deviation of 1e-17 would turn rounding errors into advantages of full size.

Shapes: G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rewards = Sequence[float | None]
Floats = NDArray[np.float64]

NOISE = 1e-9
STD_FLOOR = 1e-4
"""Added to a standard deviation, to bound the advantages of nearly equal rewards."""


def floats(rewards_G: Rewards) -> Floats:
    """Return an array with NaN for the unscored. Raises ValueError for an infinite reward, which
    would unscore the whole group."""
    rewards = np.array([np.nan if reward is None else reward for reward in rewards_G], dtype=np.float64)
    if np.isinf(rewards).any():
        raise ValueError(f"a reward is infinite: {list(rewards_G)}")
    return rewards


def varies(rewards: Floats) -> bool:
    scored = rewards[~np.isnan(rewards)]
    return len(scored) > 1 and bool(np.ptp(scored) >= NOISE)


def nothing(rewards: Floats) -> Floats:
    """Return zeros, and NaN for the unscored."""
    return np.where(np.isnan(rewards), np.nan, 0.0)


def centered(rewards_G: Rewards) -> Floats:
    """Subtract the mean: `centered([1.0, None, 0.0])` is [0.5, nan, -0.5]."""
    rewards = floats(rewards_G)
    return rewards - rewards[~np.isnan(rewards)].mean() if varies(rewards) else nothing(rewards)


def standardized(rewards_G: Rewards) -> Floats:
    """Subtract the mean, and divide by the standard deviation of the sample (ddof = 1)."""
    rewards = floats(rewards_G)
    scored = rewards[~np.isnan(rewards)]
    return (rewards - scored.mean()) / (scored.std(ddof=1) + STD_FLOOR) if varies(rewards) else nothing(rewards)


def leave_one_out(rewards_G: Rewards) -> Floats:
    """Subtract the mean of the others: `leave_one_out([1.0, 0.0, 0.5])` is [0.75, -0.75, 0.0]."""
    rewards = floats(rewards_G)
    if not varies(rewards):
        return nothing(rewards)
    scored = rewards[~np.isnan(rewards)]
    return rewards - (scored.sum() - rewards) / (len(scored) - 1)


def best_and_worst(rewards_G: Rewards) -> tuple[int, int] | None:
    """Return the places of the best and the worst, the first of several each; None if the group
    says nothing."""
    rewards = floats(rewards_G)
    return (int(np.nanargmax(rewards)), int(np.nanargmin(rewards))) if varies(rewards) else None
