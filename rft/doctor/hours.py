"""Estimate how long each stage will take, before the run.

params.yaml says how many rollouts there will be. The doctor's own step (rft/doctor/learning.py)
shows how fast this machine decodes a whole batch and learns. Nobody knows how many tokens a rollout
will take, so there are two answers:

    typical   rollouts as long as the recipe's demonstrations, or, if it has none, as long as the
              doctor's own
    most      rollouts that fill their limits

Sampling does not count prompts, because a group computes them once. Neither answer counts tools,
graders and the loading of the model. There is no estimate where a server samples, because it has
its own speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from rft import config, threads
from rft.doctor.capacity import longest, rollouts_by_stage
from rft.progress import duration

DEMONSTRATIONS = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second."""

    decoded: float
    """Decoded tokens of all rows of a batch together."""
    learned: float
    """Tokens of the forward and backward passes, prompts included."""


@dataclass(frozen=True, slots=True)
class Typical:
    """Tokens of a rollout: the policy's `own` tokens, and the `whole` rollout's."""

    own: float
    whole: float


def by_stage(params: config.Params, speed: Speed, typical: Typical) -> dict[str, tuple[float, float]]:
    """Return the typical and the most seconds of each stage that samples. Empty where a server
    samples."""
    if params.policy.server is not None:
        return {}
    rollout = params.rollout
    most = Typical(min(rollout.max_turns * rollout.max_turn_tokens, longest(params)), longest(params))
    least = Typical(min(typical.own, most.own), min(typical.whole, most.whole))
    trained = params.train.steps * params.train.examples_per_step * params.train.group * params.train.updates
    found: dict[str, tuple[float, float]] = {}
    for stage, count in rollouts_by_stage(params).items():
        low, high = (count * length.own / speed.decoded for length in (least, most))
        if stage == "train":
            low, high = low + trained * least.whole / speed.learned, high + trained * most.whole / speed.learned
        found[stage] = (low, high)
    return found


def typical(setup: Any, chat: Any, prompt: int, sampled: float) -> Typical:
    """Measure the recipe's demonstrations. `prompt` and `sampled` are the tokens of the doctor's
    own rollouts, for a recipe without demonstrations."""
    ours, shown = setup.recipe, []
    if (ours.folder / "demonstrations.py").exists():
        shown = list(islice(ours.demonstrations(DEMONSTRATIONS, 0), DEMONSTRATIONS))
    masks = [chat.dialogue_ids(messages)[1] for messages in shown]
    if not masks:
        return Typical(sampled, prompt + sampled)
    return Typical(sum(map(sum, masks)) / len(masks), sum(map(len, masks)) / len(masks))


def describe(found: dict[str, tuple[float, float]]) -> str:
    """Write both answers, such as `train about 20 min (at most 3.5 h)`. Empty without estimates."""
    each = [f"{stage} about {duration(low)} (at most {duration(high)})" for stage, (low, high) in found.items()]
    slowed = "; slowed by other work, which had the processors too" if threads.are_held_up() else ""
    return f"; {', '.join(each)}, tools and graders not counted{slowed}" if each else ""
