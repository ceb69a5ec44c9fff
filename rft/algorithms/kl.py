"""How far the policy has gone from the reference policy: KL(policy | reference), by token.

After Schulman, "Approximating KL Divergence" (2020). With d = log policy - log reference of a
sampled token, and r its ratio of new to old:

    estimator   value           mean over samples    its gradient as a loss
    k1          r d             KL, high variance    r d * grad log policy
    k2          d^2 / 2         not KL, but near     d * grad log policy
    k3          exp(-d) - 1 + d KL, never negative   (1 - exp(-d)) * grad log policy

d * grad log policy averages to the gradient of KL, without a token's effect on the KL of later
tokens. The factor r makes that true for an old policy's samples. The derivative of d alone is grad
log policy, whose mean is zero: a penalty that does nothing. So k1 is r d with d held constant, as
if it were a cost in the reward. (k3 times r, DeepSeek-V3.2, arXiv 2512.02556, has the same
gradient.) The gradient of k3 averages to that of the reverse, KL(reference | policy). Both vanish
together, and near the reference they agree to first order. It is GRPO's (arXiv 2402.03300, eq. 4),
and the default for its low variance.

Some papers put the KL into the reward (RLOO, REINFORCE++, PPO for language models). Here it is a
term of the loss. In the reward it would make every group differ, even a group in which all failed,
and so create advantages there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rft.algorithms.ratio import ratio, ratio_minus_1

Estimator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(log-probabilities now, reference, old), N each."""


def k1(logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, old_logprobs_N: torch.Tensor) -> torch.Tensor:
    return ratio(logprobs_N - old_logprobs_N) * (logprobs_N - reference_logprobs_N).detach()


def k2(logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, old_logprobs_N: torch.Tensor) -> torch.Tensor:
    return (logprobs_N - reference_logprobs_N).square() / 2


def k3(logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, old_logprobs_N: torch.Tensor) -> torch.Tensor:
    gap_N = logprobs_N - reference_logprobs_N
    return ratio_minus_1(-gap_N) + gap_N


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3}
