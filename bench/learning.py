"""The figures of the trainer on the ICD-10 recipe: learning from any seed, and a step's time.

`learning_seeds` repeats warm start and RFT (all weights, the recipe's seed prompt, no search) for
five seeds. Each is measured on the same 288 unseen notes. A seed's gain has a paired interval over
notes, and the mean gain a two-level bootstrap over seeds and notes.

`step_profile` reads the clock of one such training: the time of each phase, and the rest, which
belongs to no phase.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench import icd10
from bench.measure import Figure, Part

SEEDS = range(5)
CLAIMED = ("sampling", "tools", "forward", "backward")
"""Decoding and prefill are both `sampling`."""


def learning_seeds(args: list[str]) -> Figure:
    """F1 gain at temperature 1 over 5 seeds of warm start and RFT, its interval, and each seed's
    own, significant at 5 %."""
    from rft import stats

    pairs = []
    for seed in SEEDS:
        with icd10.workspace(seed, search=False):
            pairs.append((icd10.trained("full", seed).sampled, icd10.warmed().sampled))
    gain = stats.gain_over_seeds(pairs)
    parts = [
        Part("F1 gain at temperature 1, mean over seeds", gain.value, "F1", low=gain.low, high=gain.high, n=gain.n),
        Part("its interval's low end", gain.low, "F1", at_least=0.0, n=gain.n),
    ]
    for seed, (after, before) in zip(SEEDS, pairs, strict=True):
        own = stats.paired_gain(after, before)
        parts += [
            Part(f"seed {seed}: gain", own.value, "F1", low=own.low, high=own.high, n=own.n),
            Part(f"seed {seed}: low end of its 95 % interval", own.low, "F1", at_least=0.0, n=own.n),
            Part(f"seed {seed}: F1 before", icd10.mean(before), "F1", n=own.n),
        ]
    return Figure(tuple(parts))


def step_profile(args: list[str]) -> Figure:
    """Where a step's time goes in the ICD-10 training, adding up to 100 %. Time outside forward,
    backward, decoding and tools: under 15 %."""
    with icd10.workspace(search=False):
        icd10.trained("full", 0)
        steps = json.loads(Path("runs/full-multiplied-0/timing.json").read_text())["steps"]
    seconds = {
        key.removeprefix("time/").removesuffix("_s"): sum(step[key] for step in steps)
        for key in steps[0]
        if key.startswith("time/")
    }
    whole = seconds.pop("step")
    shares = {name: value / whole for name, value in seconds.items()}
    outside = sum(share for name, share in shares.items() if name not in CLAIMED)
    parts = [
        Part("outside forward, backward, decoding and tools", outside, "share", at_most=0.15, n=len(steps)),
        Part("sum of all phases", sum(shares.values()), "share", at_least=0.999, at_most=1.001, n=len(steps)),
        Part("seconds a step", whole / len(steps), "s", n=len(steps)),
        *(Part(name, share, "share", n=len(steps)) for name, share in sorted(shares.items(), key=lambda one: -one[1])),
    ]
    return Figure(tuple(parts), {"mode": "deterministic"})


FIGURES = {"learning_seeds": learning_seeds, "step_profile": step_profile}
