"""The figure `decoding_bfloat16`: does a policy learn as well from rollouts sampled in bfloat16?

It also measures what `train.decoding` gains. The ICD-10 agent, warm-started once, is trained with
all weights by three seeds, once with each format. Each is judged in float32 on the same 288 unseen
notes at temperature 1. The difference is paired by note and seed, with a two-level bootstrap. It
must not be worse than `WORSE`. The trainings' own metrics say how far the samplers'
log-probabilities were from the policy's, and how often an importance weight met its cap.

The speed is measured on SmolLM2: the rows of `real_speed`, in both formats by turns. The embedded
policy gains nothing, because its products are small.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench import icd10, real_speed
from bench.measure import Figure, Part
from bench.smollm import FOLDER

WORSE = 0.05
"""By how much F1 the interval's low end may be below float32's."""
FASTER = 1.2
ROUNDS = 3


def decoding_bfloat16(args: list[str]) -> Figure:
    """F1 after RFT, sampled in bfloat16 minus in float32, 3 seeds, 288 unseen notes (low end >=
    -0.05), and tokens/s of SmolLM2 over float32's (>= 1.2)."""
    from rft.kernels import onednn

    if not onednn.has_bfloat16():
        return Figure((Part("F1 after RFT", None, n=0, reason="this processor has no products in bfloat16"),))
    return Figure((*_learned(), *_speeds()))


FIGURES = {"decoding_bfloat16": decoding_bfloat16}


def _learned() -> list[Part]:
    from rft import stats

    with icd10.workspace(search=False):
        before = icd10.warmed()
        exact = [icd10.trained("full", seed) for seed in icd10.SEEDS]
        low = [icd10.trained("full", seed, decoding="bfloat16") for seed in icd10.SEEDS]
        steps = [one for seed in icd10.SEEDS for one in _metrics(Path(f"runs/full-multiplied-{seed}-bfloat16"))]
    gain = stats.gain_over_seeds([(ours.sampled, theirs.sampled) for ours, theirs in zip(low, exact, strict=True)])
    gaps = [one["logprob_mismatch"] for one in steps if "logprob_mismatch" in one]
    capped = [one["importance/truncated"] for one in steps if "importance/truncated" in one]
    name = "F1 after RFT, sampled in bfloat16 minus in float32"
    return [
        Part(name, gain.value, "F1", low=gain.low, high=gain.high, n=gain.n),
        Part("its interval's low end", gain.low, "F1", at_least=-WORSE, n=gain.n),
        Part("F1 before", icd10.mean(before.sampled), "F1", n=len(before.sampled)),
        *(
            Part(f"F1 after, {label}, seed {seed}", icd10.mean(one.sampled), "F1", n=len(one.sampled))
            for label, runs in (("float32", exact), ("bfloat16", low))
            for seed, one in zip(icd10.SEEDS, runs, strict=True)
        ),
        Part("largest difference of a log-probability, median of steps", statistics.median(gaps), n=len(gaps)),
        Part("tokens whose weight met the cap", statistics.mean(capped), "share", n=len(capped)),
    ]


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _speeds() -> list[Part]:
    if not FOLDER.exists():
        return [Part("tokens/s over float32's", None, n=0, reason=f"{FOLDER} is not there: `make model`")]
    exact, prompts = real_speed.smollm()
    low = exact.decoding_in("bfloat16")
    seconds: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for engine in (exact, low):
        real_speed.ours(engine, prompts[:4])
    for _ in range(ROUNDS):
        seconds.append((real_speed.ours(exact, prompts), real_speed.ours(low, prompts)))

    def ratio(name: str, side: slice, at_least: float | None = None) -> Part:
        ratios = [sum(theirs[side]) / sum(ours[side]) for theirs, ours in seconds]
        middle = statistics.median(ratios)
        return Part(name, middle, "times", at_least=at_least, low=min(ratios), high=max(ratios), n=len(ratios))

    return [
        ratio("SmolLM2, 32 rows: tokens/s over float32's", slice(0, 2), FASTER),
        ratio("of these, until the first token", slice(0, 1)),
        ratio("of these, after the first token", slice(1, 2)),
    ]
