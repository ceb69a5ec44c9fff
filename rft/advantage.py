"""Advantages: how much better than its group a rollout was.

A group is G rollouts of one example; the group mean is the variance-reduction baseline. Unscored rollouts stand outside: they are in neither the
mean nor the loss (a placeholder zero would drag the mean down and train the policy away from good behaviour). A group without variance says nothing
and gets zeros; the caller counts it.

GRPO divides by the group's standard deviation (Shao et al. 2024, arXiv 2402.03300, eq. 3). Dr. GRPO does not (Liu et al. 2025, arXiv 2503.20783):
the division weighs easy and hard examples up, where nearly all rollouts score the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Algorithm = Literal["dr_grpo", "grpo"]


def advantages(rewards_G: Sequence[float | None], algorithm: Algorithm) -> NDArray[np.float64]:
    """One number a rollout; NaN for the unscored. All zeros when fewer than two are scored or all score the same."""
    rewards = np.array([np.nan if reward is None else reward for reward in rewards_G], dtype=np.float64)
    scored = rewards[~np.isnan(rewards)]
    if len(scored) < 2 or np.ptp(scored) < 1e-9:  # float noise is no variance
        return np.where(np.isnan(rewards), np.nan, 0.0)
    centred = rewards - scored.mean()
    if algorithm == "grpo":
        centred = centred / (scored.std(ddof=1) + 1e-4)
    return centred
