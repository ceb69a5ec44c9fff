"""Cases that both decide: the gate, and the rule of bench/gate_rule.py.

A case is a world of one history, with the reports of its two candidates. Cases differ in what a
decision can depend on: the gain, the size, the rollouts, the looks, slices that are small or lose,
a guard that is crossed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gate_rule import OURS, Arm, Habit, Rule, World, decisions

NAMES = {1: "promote", 0: "inconclusive", -1: "reject"}
HABITS = (
    Habit(),
    Habit(gain=0.05),
    Habit(gain=0.15),
    Habit(gain=0.2),
    Habit(gain=0.2, slice_gain=-0.2),
    Habit(gain=0.15, greedy=-0.15),
    Habit(gain=0.15, tokens=1.5),
    Habit(gain=0.2, hacks=0.1),
)
SLICES = ((100, 90, 60, 8, 5), (160, 40), (29,) * 10, (12, 7, 6), (90, 3, 2))


@dataclass(frozen=True, slots=True)
class Case:
    gate: Any
    slices: tuple[int, ...]
    champion: Arm
    prompted: Arm
    trained: Arm


def cases(gate: Any, num: int, seed: int = 0) -> Iterator[Case]:
    for number in range(num):
        rng = np.random.default_rng([seed, number])
        slices = SLICES[number % len(SLICES)]
        world = World(rng, 1, slices, k=(1, 4)[number % 2])
        habit = HABITS[number % len(HABITS)]
        weaker = HABITS[(number // len(HABITS)) % len(HABITS)]
        looks = (1, 5, gate.looks)[number % 3]
        settings = gate.model_copy(update={"looks": looks, "max_hack_rate": 0.05 + 4 / sum(slices)})
        yield Case(settings, slices, world.champion(), world.candidate(weaker), world.candidate(habit))


def agree(case: Case, rule: Rule = OURS) -> bool:
    """Whether the gate and the rule come to the same decision about the same candidate."""
    found, trained = decisions(case.gate, case.slices, case.champion, case.prompted, case.trained, rule)
    real = decided(case)
    return (real.decision, real.candidate) == (
        NAMES[int(found[0])],
        "challenger" if trained[0] else "champion_new_prompt",
    )


def decided(case: Case) -> Any:
    """Return the gate's own decision."""
    from rft import reports
    from rft.gate.decide import decide

    arms = [
        _arm("champion", case.champion, case.slices),
        _arm("champion_new_prompt", case.prompted, case.slices),
        _arm("challenger", case.trained, case.slices),
    ]
    source = reports.HackSource(declared=True, flagged=["scripted"], tried=1)
    drift = reports.DriftReport(
        verdict="continue", reason="", features=[], contracts=[], num_reference=1, num_current=1
    )
    baseline = reports.BaselineReport(readiness="ready", reason="", sampled=arms[0].sampled, greedy=arms[0].greedy)
    prompt = reports.PromptReport(
        winner=reports.PromptSettings(name="new", system=""), found=True, reason="", candidates=[], num_rollouts=0
    )
    train = reports.TrainReport(trained=True, reason="", weights="lora")
    challenger = reports.ChallengerReport(test_sha256="", arms=arms, hack_source=source)
    return decide(case.gate, drift, baseline, prompt, train, challenger, {})


def _arm(name: Any, arm: Arm, slices: Sequence[int]) -> Any:
    from rft.reports import Arm as Reported

    hacked = arm.hacked_HE[0]
    sampled = _evaluation(arm.rewards_HEK[0], arm.tokens_HEK[0], hacked, slices)
    greedy = _evaluation(arm.greedy_HE[0][:, None], arm.tokens_HEK[0][:, :1], hacked, slices)
    return Reported(name=name, prompt_sha256="", weights_sha256="", sampled=sampled, greedy=greedy)


def _evaluation(rewards_EK: Any, tokens_EK: Any, hacked_E: Any, slices: Sequence[int]) -> Any:
    from rft.reports import Evaluation, Row

    k = rewards_EK.shape[1]
    names = [f"s{number}" for number, size in enumerate(slices) for _ in range(size)]
    rows = [
        Row(
            example_id=f"{number:05d}",
            slice=names[number],
            rewards=rewards,
            scores=rewards,
            solved=[reward == 1 for reward in rewards],
            tool_calls=[2] * k,
            tokens=[0] * k,
            context_tokens=[int(count) for count in tokens],
            cached_tokens=[0] * k,
            turns=[3] * k,
            unreadable_calls=[0] * k,
            stop_reasons=["completed"] * k,
            hacks=int(hacks),
        )
        for number, (rewards, tokens, hacks) in enumerate(
            zip(rewards_EK.tolist(), tokens_EK.tolist(), hacked_E.tolist(), strict=True)
        )
    ]
    return Evaluation(
        name="",
        temperature=1.0,
        k=k,
        examples_sha256="",
        metrics={},
        max_at_k=[],
        shares={},
        stop_reasons={},
        tool_calls={},
        unscored=0,
        rows=rows,
    )
