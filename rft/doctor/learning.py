"""Make one optimizer step in memory, with the run's model and settings, and check its effect.

One group samples one turn on one example. The first turn gets advantage +1, and turns with other
tokens get -1. The trainer's optimizer makes one step with the plain policy gradient, from which
every on-policy algorithm starts. Nothing is graded, and nothing is kept.

    agreement   trainer and sampler give the same log-probabilities to the sampled tokens. Otherwise
                every ratio in the loss is wrong from the start
    change      some trained weight has other bytes than before. An lr below the float's resolution
                changes none
    effect      with LoRA, the weights that sample hold what the step learned: a cosine of at least
                0.99 (rft/models/effect.py). Full weights sample as they are, and at least one in a
                hundred of them must move. Rounding takes the same from every later step. Zeros are
                not counted, because any addend changes them
    base        with LoRA, no weight of the base model moved
    distance    how far the step moved the policy: the KL divergence of the sampled tokens, in nats
                per token. At the default rate of the embedded policy it is 0.01. Policies that
                moved by 0.2 in their first step collapsed

The decoding speed of a whole batch and the time of the step give the hours of each stage
(rft/doctor/hours.py).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rft import config
from rft.algorithms.ratio import ratio_minus_1
from rft.chat.dialogue import opening_of
from rft.doctor import hours, rate
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup

MAX_GROUP = 8
MAX_NEW = 32
MAX_BATCH, TIMED = 64, 6
"""Most rows and tokens whose decoding is timed."""
FELT = 0.01
FAR, MEANT, SURE = 0.1, 0.01, 1e-3
"""In nats per token: a first step that is too long, a good one, and an entropy. At or below that
entropy a policy says the same each time, and its distance means nothing."""
AGREEMENT = {"float32": (1e-3, 0.05), "bfloat16": (0.25, 1.0)}
"""By dtype: the largest difference that is fine, and the largest that is only a warning."""


def check(setup: Setup) -> Finding:
    import torch

    from rft.models import effect, heap, weights
    from rft.sampling.engine import Engine
    from rft.trainer import rates
    from rft.trainer.learner import Learner
    from rft.trainer.logprobs import own_logprobs
    from rft.trainer.packing import layout

    params = setup.params
    device = weights.prepare_process(params.policy)
    network, chat = setup.network(device)
    learner = Learner(network, params.train, params.rollout.max_turn_tokens, device)
    section = learner.section
    is_lora = section.weights == "lora"
    sampler = Engine(weights.sampler_copy(learner.model), chat, device)
    start = [parameter.detach().clone() for parameter in learner.parameters]
    before = _base_digests(learner.model) if is_lora else {}
    behavior = sampler.decoding_in(section.decoding)
    samples = _group(setup, behavior)
    decoded = _decoded_per_s(setup, behavior)

    began = time.monotonic()
    learner.model.train()
    planned = layout([[one] for one in samples], device)
    advantage_B = torch.tensor([one.advantage for one in planned.samples], device=device)
    with heap.Steps(learner.model).one():
        scored = own_logprobs(learner.model, planned, section.temperature)
        gain_N = advantage_B[planned.row_N] * scored.logprobs_N
        (-gain_N / (len(samples) * params.rollout.max_turn_tokens)).sum().backward()
    sampled_logprobs_N = torch.tensor([value for one in planned.samples for value in one.logprobs], device=device)
    mismatch = (scored.logprobs_N.detach() - sampled_logprobs_N).abs().max().item()
    norm = torch.nn.utils.clip_grad_norm_(learner.parameters, section.clip_grad).item()
    learner.optimizer.step()
    with torch.no_grad():
        gap_N = own_logprobs(learner.model, planned, section.temperature).logprobs_N - scored.logprobs_N.detach()
    distance = (ratio_minus_1(gap_N) - gap_N).mean().item()
    speed = hours.Speed(decoded, sum(len(one.ids) for one in samples) / (time.monotonic() - began))
    sampled = sum(one.num_own for one in samples) / len(samples)
    typical = hours.typical(setup, chat, samples[0].prompt, sampled)
    stages = hours.by_stage(params, speed, typical)

    changed = sum(int((now.detach() != then).sum()) for now, then in zip(learner.parameters, start, strict=True))
    total = sum(then.numel() for then in start)
    rounded = ("train.decoding", section.decoding)
    exact = ("policy.dtype", params.policy.dtype)
    problems = [
        *_agreement(mismatch, *(exact if section.decoding == "float32" else rounded)),
        *_change(section, norm, changed, lambda: _moved(learner.model, start)),
        *(_distance(section, distance) if scored.entropy_N.mean() > SURE else ()),
        *rate.of_training(params.train, rates.width_of(network.config)),
    ]
    kept = 1.0 if changed else None
    if is_lora:
        weights.sync(learner.model, sampler.model)
        kept = effect.kept(effect.by_adapter(learner.model), effect.of_sampler(learner.model, sampler.model))
        problems += [*_kept(section, kept, params.policy.dtype), *_base(before, _base_digests(learner.model))]
    facts = {
        "effect_kept": kept,
        "logprob_mismatch": mismatch if math.isfinite(mismatch) else None,
        "grad_norm": norm if math.isfinite(norm) else None,
        "lr": section.lr,
        "step_kl": distance if math.isfinite(distance) else None,
        "weights_changed": changed,
        "weights_trained": total,
        "tokens": len(sampled_logprobs_N),
        "hours": {stage: [round(seconds / 3600, 4) for seconds in ends] for stage, ends in stages.items()},
    }
    description = (
        f"{changed} of {total} trained weights changed by one step; sampler and trainer agree within {mismatch:.1e}"
    )
    description += f"; the step moved the policy by {distance:.2g} nats per token (lr {section.lr:g})"
    description += hours.describe(stages)
    return together(problems, description, **facts)


def _group(setup: Setup, sampler: Any) -> list[Any]:
    """Sample a group of single turns, whose advantages do not come from grades."""
    from rft.trainer.packing import TrainingSample

    rollout, section = setup.params.rollout, setup.params.train
    example = setup.rows["train"][0]
    first = opening_of(example, setup.recipe.prompts.seed, rollout)
    size = min(section.group, MAX_GROUP)
    seeds = [(section.seed, 1, 0, n) for n in range(size)]
    session = sampler.session([first] * size, seeds, section.temperature, rollout.max_tokens)
    prompt = list(session.pending[0])
    turns = session.sample(list(range(size)), min(rollout.max_turn_tokens, MAX_NEW))
    return [
        TrainingSample(
            [*prompt, *one.ids],
            [False] * len(prompt) + [True] * len(one.ids),
            list(one.logprobs),
            1.0 if one.ids == turns[0].ids else -1.0,
        )
        for one in turns
    ]


def _decoded_per_s(setup: Setup, sampler: Any) -> float:
    """Measure the decoding of a few tokens of a whole batch, because a wide batch costs little more
    than a narrow one. A row's first token comes with its prompt, so it is not counted."""
    rollout, section = setup.params.rollout, setup.params.train
    first = opening_of(setup.rows["train"][0], setup.recipe.prompts.seed, rollout)
    size = min(rollout.batch, MAX_BATCH)
    session = sampler.session([first] * size, [(section.seed, 2, n) for n in range(size)], 1.0, rollout.max_tokens)
    turns = session.sample(list(range(size)), min(rollout.max_turn_tokens, TIMED))
    return max(1, sum(len(one.ids) - 1 for one in turns)) / sum(one.seconds for one in turns)


def _agreement(mismatch: float, key: str, dtype: str) -> Iterator[Finding]:
    fine, limit = AGREEMENT[dtype]
    description = f"sampler and trainer differ by up to {mismatch:.2g} in a log-probability ({dtype})"
    if not mismatch <= limit:  # NaN is not an agreement
        yield fail(
            description,
            f"The model runs differently with a cache than without: try {key}: float32, and report which model it is.",
        )
    elif mismatch > fine:
        yield warn(description, f"Try {key}: float32, or a lower train.lr.")


def _change(section: config.Train, norm: float, changed: int, moved: Callable[[], float]) -> Iterator[Finding]:
    """Judge whether the step changed weights. `moved` returns the share of full weights that it
    moved. `_kept` judges LoRA."""
    lost, remedy = (
        f"train.lr = {section.lr:g} is lost in rounding",
        "Raise train.lr: 1e-4 to 1e-2 is usual for LoRA, 1e-6 to 1e-4 for full weights.",
    )
    if not math.isfinite(norm):
        yield fail("the gradient is not finite", "Lower train.temperature towards 1, or try policy.dtype: float32.")
    elif norm == 0:
        yield fail(
            "the gradient is zero: the policy is sure of each of its tokens",
            "Raise train.temperature, or warm-start the policy less.",
        )
    elif not changed:
        yield fail(f"one step changed no weight: {lost}", remedy)
    elif section.weights == "lora":
        return
    elif (share := moved()) < FELT:
        yield fail(f"one step moves {share:.2%} of the weights that are sampled with: most of {lost}", remedy)


def _distance(section: config.Train, distance: float) -> Iterator[Finding]:
    """Judge `distance`, how far the step moved the policy, in nats per token."""
    if not distance <= FAR:  # NaN counts as far
        better = section.peak_lr * math.sqrt(MEANT / distance) if math.isfinite(distance) else section.peak_lr / 100
        yield warn(
            f"one step with train.lr = {section.lr:g} moves the policy by {distance:.2g} nats per token: training is "
            "likely to collapse",
            f"Lower train.lr to about {better:.1g}.",
        )


def _kept(section: config.Train, kept: float | None, dtype: str) -> Iterator[Finding]:
    """Judge `kept`, the cosine of what the step learned and what of it reached the sampler."""
    from rft.models.effect import AT_LEAST

    if kept is not None and not kept >= AT_LEAST:
        yield fail(
            f"the cosine between what one step learns and what reaches the sampler is {kept:.3f}, below {AT_LEAST} "
            f"({dtype}): train.lr = {section.lr:g} is lost in rounding",
            "Raise train.lr: 1e-5 to 1e-2 is usual for LoRA.",
        )


def _moved(learner: Any, start: Sequence[Any]) -> float:
    """Return the share of full weights that moved, without zeros, which any addend changes."""
    moved, total = 0, 0
    for now, then in zip(learner.parameters(), start, strict=True):
        there = then != 0
        moved += int(((now.detach() != then) & there).sum())
        total += int(there.sum())
    return moved / max(total, 1)


def _base_digests(learner: Any) -> dict[str, str]:
    """Hash the base model's weights, which the sampler may share."""
    import torch

    found: dict[str, str] = {}
    for name, tensor in learner.base_model.model.named_parameters():
        if "lora_" not in name:
            data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
            found[name.replace(".base_layer", "")] = hashlib.sha256(data).hexdigest()
    return found


def _base(before: dict[str, str], after: dict[str, str]) -> Iterator[Finding]:
    for name, digest in after.items():
        if digest != before[name]:
            yield fail(
                f"the step changed {name}, a weight of the base model",
                "LoRA must leave the base alone; report which model it is.",
            )
            return
