"""The input of a loss: the completion tokens of a microbatch, and the totals of the whole step.

Nothing here is padded. A microbatch of B rollouts holds N tokens that the policy sampled (no prompt
or tool tokens), flat, and `row_N` gives the rollout of each. So every sum over a rollout is
`Tokens.sums`. Every mean over the step is a sum over N divided by a field of `Totals`. And the
shares of all microbatches, on any number of processes, add up to the step's loss.

Shapes: P groups of G rollouts in a step; B rollouts and N completion tokens in a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tokens:
    logprobs_N: torch.Tensor
    """Under the present weights. Only these and `values_N` have a gradient."""
    old_logprobs_N: torch.Tensor
    """Under the weights before the step's first update; in that update the same as `logprobs_N`."""
    sampled_logprobs_N: torch.Tensor
    """As the sampler reported them: the behavior policy."""
    advantage_N: torch.Tensor
    row_N: torch.Tensor
    """The rollout of each token, as a number below B; ascending."""
    entropy_N: torch.Tensor
    """In nats, without gradient."""
    num_rows: int
    reference_logprobs_N: torch.Tensor | None = None
    """Under the reference policy; None when the step asks for no KL."""
    values_N: torch.Tensor | None = None
    """The critic's (PPO), with gradient."""
    old_values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None
    is_own_N: torch.Tensor | None = None
    """Whether the policy writes the token. None: all are its own. Supervised learning also teaches
    others; their weight is in `advantage_N`."""

    def sums(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return B sums, over each rollout's tokens."""
        zeros_B = torch.zeros(self.num_rows, dtype=values_N.dtype, device=values_N.device)
        return zeros_B.index_add(0, self.row_N, values_N)

    @property
    def lengths_B(self) -> torch.Tensor:
        return self.sums(torch.ones_like(self.advantage_N))


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one optimizer step, over all its microbatches and processes."""

    num_rollouts: int
    """Rollouts that the formula counts, with or without a gradient: a step that learns from few
    rollouts is a small step."""
    num_tokens: int
    """Their completion tokens."""
    max_length: int
    """The constant of Dr. GRPO: rollout.max_turn_tokens."""
    num_pairs: int = 0
    weight: float = 0.0
    """The sum of the weights of all tokens that are imitated."""
