"""A ratio of probabilities from its logarithm, finite for every logarithm.

exp overflows at 88 in float32. A whole rollout's logarithm gets there when its tokens moved by half
a nat each, and one infinite ratio makes an infinite loss. From e^20 on (4.9e8, far beyond any
bound) the exponential continues as its tangent. So value and gradient stay finite, and the gradient
keeps its sign; a clamp would make it zero. Below, nothing changes, not even the last digit.
"""

from __future__ import annotations

import torch

LARGEST = 20.0


def ratio(log_N: torch.Tensor) -> torch.Tensor:
    """Return N ratios."""
    bounded_N = log_N.clamp(max=LARGEST)
    return torch.exp(bounded_N) * (1 + (log_N - bounded_N))


def ratio_minus_1(log_N: torch.Tensor) -> torch.Tensor:
    """Return N ratios minus 1, which keep their digits where the ratio is near 1."""
    bounded_N = log_N.clamp(max=LARGEST)
    return torch.expm1(bounded_N) + torch.exp(bounded_N) * (log_N - bounded_N)


__all__ = ["ratio", "ratio_minus_1"]
