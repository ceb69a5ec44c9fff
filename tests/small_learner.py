"""What tests of the learner share: a policy of random weights, and rollouts of random tokens in
groups with a common prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rft import config
from rft.models import embedded
from rft.trainer.learner import Learner
from rft.trainer.logprobs import own_logprobs
from rft.trainer.packing import Counted, TrainingSample, layout

VOCABULARY = 50
NORM_LENGTH = 8
ARCHITECTURE = config.Architecture(
    layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, feed_forward=32, max_positions=128, structured_init=False
)
CPU = torch.device("cpu")


class Tokenizer:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return VOCABULARY


def network(seed: int = 0, **changes: Any) -> Any:
    return embedded.build_model(ARCHITECTURE.model_copy(update=changes), Tokenizer(), seed).eval()


def learner(team: Any = None, seed: int = 0, **section: Any) -> Learner:
    return Learner(network(seed), config.Train(**({"lr": 1e-2} | section)), NORM_LENGTH, CPU, team)


def samples(groups: int = 3, size: int = 4, seed: int = 0, policy: Any = None) -> list[TrainingSample]:
    """Prompt, a turn, a tool's result, a last turn. With `policy`, log-probabilities are its
    own."""
    draw = np.random.default_rng(seed)
    found: list[TrainingSample] = []
    for _ in range(groups):
        prompt = draw.integers(2, VOCABULARY, draw.integers(5, 12)).tolist()
        for _ in range(size):
            lengths = draw.integers(2, 6, 3)
            ids = prompt + draw.integers(2, VOCABULARY, lengths.sum()).tolist()
            loss_mask = [False] * len(prompt) + [True] * lengths[0] + [False] * lengths[1] + [True] * lengths[2]
            found.append(
                TrainingSample(ids, loss_mask, [-1.0] * sum(loss_mask), float(draw.normal()), float(draw.random()))
            )
    return found if policy is None else [replace(one, logprobs=alone(policy, one)) for one in found]


def all_of(given: Sequence[TrainingSample], num_rollouts: int) -> Counted:
    """Those of the step, of which `given` have a gradient; the others have no tokens."""
    return Counted(num_rollouts, sum(one.num_own for one in given))


def alone(policy: Any, sample: TrainingSample, temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        return own_logprobs(policy, layout([[sample]], CPU), temperature).logprobs_N.tolist()


def weights(one: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in one.parameters])
