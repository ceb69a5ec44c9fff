"""How long will each stage take? Two answers, before the run, from the step that the doctor makes
anyway (rft/doctor/learning.py).

What is known: how many rollouts params.yaml asks for, and how fast this machine decoded a whole
batch and learned just now. What is not: how many tokens a rollout takes. So there are two answers:

    typical   rollouts as long as the recipe's demonstrations (without any: as long as what was
              sampled)
    most      rollouts that fill their limits

Prompts are not counted in sampling, because a group computes them once; tools, graders and the
loading of the model are in neither. A policy's server has its own speed: there is no estimate with
one.
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
    """All rows of a batch together."""
    learned: float
    """Forward and backward, prompts included."""


@dataclass(frozen=True, slots=True)
class Typical:
    """Tokens of a rollout: those that the policy writes, and all."""

    own: float
    whole: float


def by_stage(params: config.Params, speed: Speed, typical: Typical) -> dict[str, tuple[float, float]]:
    """Return the typical seconds and the most of each stage that samples. Empty where a server
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
    """Measure the recipe's demonstrations. `prompt`, `sampled`: tokens of the doctor's own
    rollouts, for a recipe that has none."""
    ours, shown = setup.recipe, []
    if (ours.folder / "demonstrations.py").exists():
        shown = list(islice(ours.demonstrations(DEMONSTRATIONS, 0), DEMONSTRATIONS))
    masks = [chat.dialogue_ids(messages)[1] for messages in shown]
    if not masks:
        return Typical(sampled, prompt + sampled)
    return Typical(sum(map(sum, masks)) / len(masks), sum(map(len, masks)) / len(masks))


def describe(found: dict[str, tuple[float, float]]) -> str:
    """Say both, as `train about 20 min (at most 3.5 h)`; empty where there is no estimate."""
    each = [f"{stage} about {duration(low)} (at most {duration(high)})" for stage, (low, high) in found.items()]
    slowed = "; slowed by other work, which had the processors too" if threads.are_held_up() else ""
    return f"; {', '.join(each)}, tools and graders not counted{slowed}" if each else ""
