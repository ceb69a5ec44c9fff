"""The policy-gradient loss, in plain torch.

For every token that the policy sampled, with advantage A of its rollout and ratio r = exp(logprob now - logprob when sampled):

    L = - sum over tokens of min(r A, clip(r, 1 - eps, 1 + eps) A) / normalizer

The normalizer is what tells the algorithms apart. GRPO: each rollout's sum over its own length, then the mean over rollouts, so long rollouts
count less a token. Dr. GRPO: one constant for all, which takes that bias out (arXiv 2503.20783, section 3). The first step after sampling has
r = 1, and the gradient is the plain policy gradient.

Shapes: B rollouts of a microbatch, T tokens, N tokens of the policy's own in the microbatch, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rft.advantage import Algorithm


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A rollout as the trainer sees it: `ids` and `mine` over T tokens, `logprobs` over those with mine = True."""

    ids: list[int]
    mine: list[bool]
    logprobs: list[float]
    advantage: float


@dataclass(frozen=True, slots=True)
class Scored:
    """The policy's own tokens of a microbatch, flat: N each."""

    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor
    row_N: torch.Tensor


def own_logprobs(model: Any, samples: list[TrainingSample], temperature: float, device: torch.device) -> Scored:
    """Log-probabilities of the sampled tokens under the model now. The head runs on those tokens only (a fifth of all)."""
    width = max(len(sample.ids) for sample in samples)
    ids_BT = torch.zeros(len(samples), width, dtype=torch.long)
    mine_BT = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, sample in enumerate(samples):
        ids_BT[row, : len(sample.ids)] = torch.tensor(sample.ids)
        mine_BT[row, : len(sample.ids)] = torch.tensor(sample.mine)
    ids_BT, mine_BT = ids_BT.to(device), mine_BT[:, 1:].to(device)
    hidden_BTD = model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
    logits_NV = model.get_output_embeddings()(hidden_BTD[mine_BT]).float() / temperature
    logprobs_NV = torch.log_softmax(logits_NV, -1)
    chosen_N = logprobs_NV.gather(1, ids_BT[:, 1:][mine_BT][:, None]).squeeze(1)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return Scored(chosen_N, entropy_N, mine_BT.nonzero()[:, 0])


def policy_loss(
    scored: Scored, samples: list[TrainingSample], algorithm: Algorithm, num_rollouts: int, norm_length: int, clip: float = 0.2
) -> torch.Tensor:
    """This microbatch's share of the step's loss; shares add up. `num_rollouts` and `norm_length` belong to the whole step."""
    device = scored.logprobs_N.device
    old_N = torch.tensor([value for sample in samples for value in sample.logprobs], device=device)
    advantage_B = torch.tensor([sample.advantage for sample in samples], device=device, dtype=torch.float32)
    advantage_N = advantage_B[scored.row_N]
    ratio_N = torch.exp(scored.logprobs_N - old_N)
    gain_N = torch.minimum(ratio_N * advantage_N, ratio_N.clamp(1 - clip, 1 + clip) * advantage_N)
    if algorithm == "grpo":
        length_B = torch.tensor([len(sample.logprobs) for sample in samples], device=device, dtype=torch.float32)
        return -(gain_N / length_B[scored.row_N]).sum() / num_rollouts
    return -gain_N.sum() / (num_rollouts * norm_length)
