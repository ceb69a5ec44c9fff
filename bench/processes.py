"""The figure `two_processes`: do one process and two learn the same from the same rollouts?

Losses and weights must be equal. The rollouts have the number and shape of a step of the ICD-10
recipe: 8 groups of 8, each with a prompt, a call, its result and an answer, 95 to 155 tokens. A
fifth of the tokens are the policy's own. Tokens are drawn at random, and scored by the policy that
training starts from. All weights of the embedded architecture are trained for the same steps, on
one process and on two. Only float rounding may differ: two processes add gradients up in another
order.

The time of a step is shown for both, without the first step, which warms up. The two processes
share the two cores that one process uses as threads.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.measure import Figure, Part
from rft import config

VOCABULARY = 3525
STEPS = 6
GROUPS, SIZE = 8, 8
NORM_LENGTH = 200
SECTION: dict[str, Any] = {"weights": "full", "lr": 6e-4, "packing": True}


@dataclass(frozen=True, slots=True)
class Learned:
    losses: list[float]
    scales: list[float]
    """The scale of each loss: its sum without signs. Advantages are centred, so a loss is the small
    difference of large sums."""
    weights: Any
    moved: float
    """How far training moved the weights, L2."""
    step_s: float
    exchange_s: float


def two_processes(args: list[str]) -> Figure:
    """Losses (<= 1e-5) and weights (<= 1e-5) after the same recorded rollouts on 1 and on 2
    processes, gloo; the time of each."""
    one, two = learn(1), learn(2)
    losses = max(abs(a - b) / scale for a, b, scale in zip(one.losses, two.losses, one.scales, strict=True))
    gap = one.weights - two.weights
    return Figure(
        (
            Part("largest difference of losses", losses, "of the sum of their terms", at_most=1e-5, n=STEPS),
            Part(
                "difference of updated weights",
                float((gap.norm() / one.weights.norm()).item()),
                "relative, L2",
                at_most=1e-5,
                n=STEPS,
            ),
            Part("the same beside how far they moved", float(gap.norm().item()) / one.moved, "relative, L2", n=STEPS),
            Part("step on 1 process", one.step_s, "s", n=STEPS - 1),
            Part("step on 2 processes", two.step_s, "s", n=STEPS - 1),
            Part("of which exchange", two.exchange_s, "s", n=STEPS - 1),
        ),
        {
            "rollouts a step": GROUPS * SIZE,
            "weights": len(one.weights),
            "losses on 1": one.losses,
            "losses on 2": two.losses,
        },
    )


def learn(num_processes: int) -> Learned:
    import torch

    from rft.models import weights as model
    from rft.trainer import distributed
    from rft.trainer.learner import Learner
    from rft.trainer.packing import Counted

    device = model.prepare_process(config.Policy(device="cpu"))
    section = config.Train(processes=num_processes, **SECTION)
    with distributed.launch(section) as team:
        learner = Learner(_network(), section, NORM_LENGTH, device, team)
        batches = [_scored(learner, seed) for seed in range(STEPS)]
        losses, seconds, exchange = [], [], []
        for batch in batches:
            began, before = time.monotonic(), learner.seconds.get("exchange", 0.0)
            losses.append(learner.update(batch, Counted(GROUPS * SIZE, sum(one.num_own for one in batch)))["loss"])
            seconds.append(time.monotonic() - began)
            exchange.append(learner.seconds.get("exchange", 0.0) - before)
            print(f"{num_processes} processes: loss {losses[-1]:.6f}, {seconds[-1]:.2f} s", file=sys.stderr)
        weights = torch.cat([parameter.detach().flatten() for parameter in learner.parameters])
        scales = [
            sum(abs(one.advantage) * one.num_own for one in batch) / (GROUPS * SIZE * NORM_LENGTH) for batch in batches
        ]
        return Learned(
            losses,
            scales,
            weights,
            learner.weight_change(),
            statistics.median(seconds[1:]),
            statistics.median(exchange[1:]),
        )


class _Tokenizer:
    """Has only what a model's config needs of a tokenizer."""

    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return VOCABULARY


def _network() -> Any:
    from rft.models.embedded import build_model

    return build_model(config.Architecture(), _Tokenizer(), 0)


def rollouts(seed: int) -> list[Any]:
    """Make the rollouts of a step, with advantages that are zero on average."""
    from rft.trainer.packing import TrainingSample

    draw = np.random.default_rng(seed)
    found = []
    for _ in range(GROUPS):
        prompt = draw.integers(2, VOCABULARY, draw.integers(60, 86)).tolist()
        rewards = draw.random(SIZE)
        for reward in rewards:
            call, result, answer = draw.integers((8, 18, 6), (18, 46, 14)).tolist()
            ids = prompt + draw.integers(2, VOCABULARY, call + result + answer).tolist()
            loss_mask = [False] * len(prompt) + [True] * call + [False] * result + [True] * answer
            found.append(TrainingSample(ids, loss_mask, [], float(reward - rewards.mean()), float(reward)))
    return found


def _scored(learner: Any, seed: int) -> list[Any]:
    """Give the rollouts the log-probabilities of the present policy."""
    import torch

    from rft.trainer.logprobs import own_logprobs
    from rft.trainer.packing import layout

    found = []
    with torch.no_grad():
        for sample in rollouts(seed):
            logprobs = own_logprobs(
                learner.model, layout([[sample]], learner.device), learner.section.temperature
            ).logprobs_N
            found.append(replace(sample, logprobs=logprobs.tolist()))
    return found


FIGURES = {"two_processes": two_processes}
