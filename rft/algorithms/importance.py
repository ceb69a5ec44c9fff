"""Truncated importance sampling: one engine sampled the tokens, and another learns from them.

For the same weights, the sampler's probabilities differ from the trainer's (other kernels, other
precision). They differ more if the sampler's weights are some steps old (`train.lag`). Then the
gradient is an average over the wrong distribution. A token's weight

    w = min(exp(old - sampled), cap)        without gradient

corrects that up to the cap, which bounds the variance. The source is Espeholt et al. 2018 (arXiv
1802.01561, section 4, the truncated weight rho). For language models it is Yao et al. 2025 ("Your
Efficient RL Framework Secretly Brings You Off-Policy RL Training"). The weight is separate from the
ratio of new to old, which is clipped so that a step does not go too far. It is per token, even
where the ratio is per rollout (gspo, rloo).
"""

from __future__ import annotations

import torch

from rft.algorithms.ratio import ratio
from rft.algorithms.tokens import Tokens


def weights(tokens: Tokens, cap: float | None) -> torch.Tensor | float:
    """Return N weights; 1 when there is no cap: the correction is off."""
    return 1.0 if cap is None else _ratio(tokens).clamp(max=cap)


def truncated(tokens: Tokens, cap: float | None) -> float:
    """Count the tokens whose weight met the cap."""
    return 0.0 if cap is None else (_ratio(tokens) > cap).sum().item()


def _ratio(tokens: Tokens) -> torch.Tensor:
    return ratio(tokens.old_logprobs_N - tokens.sampled_logprobs_N)
