"""How long will each stage take? A rough range, before the run, from the step that the doctor makes
anyway (rft/doctor/learning.py).

What is known: how many rollouts params.yaml asks for, and how fast this machine sampled and learned
just now. What is not: how many tokens a rollout takes, and how much faster a whole batch is than
the few rows that were tried. So there are two ends:

    low     rollouts as long as the recipe's demonstrations (without any: as long as what was
            sampled), a batch that costs no more than the rows that were tried
    high    rollouts that fill their limits, at the speed that was measured

Tools, graders and the loading of the model are in neither. A policy's server has its own speed:
there is no estimate with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from rft import config
from rft.doctor.capacity import longest, rollouts_by_stage
from rft.progress import duration

DEMONSTRATIONS = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """What one group of the doctor took."""

    rows: int
    sampled: int
    sampling_s: float
    learned: int
    learning_s: float


@dataclass(frozen=True, slots=True)
class Typical:
    """Tokens of a rollout: those that the policy writes, and all."""

    own: float
    whole: float


def by_stage(params: config.Params, speed: Speed, typical: Typical) -> dict[str, tuple[float, float]]:
    """Return seconds, from and to, of each stage that samples. Empty where a server samples."""
    if params.policy.server is not None:
        return {}
    rollout = params.rollout
    most = Typical(min(rollout.max_turns * rollout.max_turn_tokens, longest(params)), longest(params))
    least = Typical(min(typical.own, most.own), min(typical.whole, most.whole))
    token_s, learned_s = speed.sampling_s / speed.sampled, speed.learning_s / speed.learned
    together = max(1.0, rollout.batch / speed.rows)
    trained = params.train.steps * params.train.examples_per_step * params.train.group * params.train.updates
    found: dict[str, tuple[float, float]] = {}
    for stage, count in rollouts_by_stage(params).items():
        low, high = count * least.own * token_s / together, count * most.own * token_s
        if stage == "train":
            low, high = low + trained * least.whole * learned_s, high + trained * most.whole * learned_s
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


def in_words(found: dict[str, tuple[float, float]]) -> str:
    """`about train 20 min to 3.5 h, ...`; empty where there is no estimate."""
    ranges = [f"{stage} {duration(low)} to {duration(high)}" for stage, (low, high) in found.items()]
    return f"; roughly {', '.join(ranges)}, tools and graders not counted" if ranges else ""
