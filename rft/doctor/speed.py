"""Measure how fast this machine samples and learns with the configured model: `rft doctor speed`.

    read     tokens of prompts, before a row writes anything
    say      tokens that the rows of a batch write side by side
    learn    tokens of rollouts, through forward, backward and the optimizer's step

Dialogues are as long as the recipe's rendered openings and its demonstrations. Their tokens are
random. So only the rollouts of a group share a prompt, nothing ends early, and no tool or grader is
asked. The engine and the learner are those of stage `train`. A single row shows what a row costs,
and then each measurement takes as many rows as fit into BUDGET_S.

Each speed is compared with the time that the arithmetic alone would take, and with the time to read
the weights (rft/doctor/machine.py). This counts as work:

    read     two operations per parameter and token, the head once per prompt
    say      two per parameter; the weights are read once per token of the whole batch, with all
             keys and values
    learn    only tokens that differ: two for forward, two for backward, and another two for weights
             that learn; the head only for tokens that the policy wrote

Attention is added. On average it attends to half of a dialogue. rft/doctor/hours.py computes the
time of a run at this speed. The command leaves no file behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rft import config
from rft.chat.dialogue import opening_of
from rft.doctor import hours, machine
from rft.doctor.capacity import Shape, longest, num_trained, shape_of
from rft.doctor.finding import Skip
from rft.doctor.hours import Typical
from rft.doctor.machine import Limits, Work
from rft.doctor.setup import Setup
from rft.errors import UserError
from rft.models import heap, weights
from rft.sampling.engine import Engine, Session
from rft.trainer.learner import Learner
from rft.trainer.logprobs import own_logprobs
from rft.trainer.packing import TrainingSample, layout, microbatches

BUDGET_S = 10.0
"""Seconds for each of the three. All together take about a minute."""
NEW = 64
MAX_ROWS = 64
OPENINGS = 64
"""Examples whose openings are measured for their length."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens, the seconds that they took, and the work that they needed."""

    name: str
    tokens: int
    seconds: float
    work: Work
    rows: int

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds

    def share(self, limits: Limits) -> float:
        """Return how much of the time this work needs at least. 1 is the machine's limit."""
        return self.work.floor_s(limits) / self.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """All that `rft doctor speed` reports."""

    model: str
    parameters: int
    device: str
    dtype: str
    threads: int
    limits: Limits
    by_threads: dict[int, float]
    """Operations per second by number of threads; empty on a GPU."""
    forward: str
    """Name of the forward pass that samples."""
    decoding: str
    """Number format of its products, if `dtype` is float32. The limits are measured in `dtype`."""
    rates: tuple[Rate, ...]
    typical: Typical
    prompt: int
    stages: dict[str, tuple[float, float]]
    """Seconds of each stage, typical and at most."""


class Endless:
    """A chat for dialogues whose words do not matter: no token ends a turn."""

    end_ids: frozenset[int] = frozenset()

    def read(self, ids: Sequence[int], turn: int) -> tuple[str, Any]:
        return "", None


def measure(setup: Setup, tell: Callable[[str], None] = lambda message: None) -> Found:
    """Measure all. `tell` gets the name of each next part. Raises UserError if a server samples, or
    if there is no model."""
    params = setup.params
    if params.policy.server is not None:
        raise UserError(
            "params.yaml: policy.server: a server samples, with a speed of its own. `rft doctor speed` measures the "
            "in-process policy: --set policy.server=null."
        )
    device = weights.prepare_process(params.policy)
    dtype = getattr(torch, params.policy.dtype)
    tell("the model, and how long the recipe's dialogues are")
    try:
        network, chat = setup.network(device)
    except Skip as skip:
        raise UserError(f"{skip}. {skip.remedy}") from None
    prompt, typical = _lengths(setup, chat)
    tell("the machine: products and reading")
    limits = machine.limits(device, dtype)
    by_threads = machine.threads() if device.type == "cpu" else {}
    shape = shape_of(setup.model_config())
    learner = Learner(network, params.train, params.rollout.max_turn_tokens, device)
    policy = Engine(weights.sampler_copy(learner.model), Endless(), device)  # type: ignore[arg-type]
    engine = policy.decoding_in(params.train.decoding)
    tell("sampling")
    read, write = sampling(engine, shape, prompt, min(params.rollout.batch, MAX_ROWS), params.train.seed)
    tell("learning")
    learn = learning(learner, shape, prompt, typical)
    speed = hours.Speed(write.per_s, learn.per_s)
    return Found(
        model=setup.model_source.description,
        parameters=shape.parameters,
        device=device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        dtype=params.policy.dtype,
        threads=torch.get_num_threads(),
        limits=limits,
        by_threads=by_threads,
        forward=type(engine.forward).__name__,
        decoding=params.train.decoding,
        rates=(read, write, learn),
        typical=typical,
        prompt=prompt,
        stages=hours.by_stage(params, speed, typical),
    )


def _lengths(setup: Setup, chat: Any) -> tuple[int, Typical]:
    """Return the tokens of a mean opening, and of a typical rollout."""
    rollout, seed = setup.params.rollout, setup.recipe.prompts.seed
    openings = [opening_of(row, seed, rollout) for row in setup.rows["train"][:OPENINGS]]
    lengths = [len(chat.prompt_ids(list(one.messages), one.tools, one.response_format)) for one in openings]
    prompt = round(sum(lengths) / len(lengths))
    typical = hours.typical(setup, chat, prompt, rollout.max_turn_tokens)
    limit = longest(setup.params)
    if prompt + 2 > limit:
        what = f"a mean opening of the recipe takes {prompt} tokens, rollout.max_tokens = {limit}"
        raise UserError(f"{what}. Raise rollout.max_tokens, or shorten the system prompt or the tools' descriptions.")
    return prompt, Typical(min(typical.own, limit - prompt), min(typical.whole, limit))


# -- sampling --------------------------------------------------------------------------------------
def sampling(engine: Engine, shape: Shape, prompt: int, rows: int, seed: int, new: int = NEW) -> tuple[Rate, Rate]:
    """Measure reading and writing, with at most `rows` different prompts of `prompt` random tokens
    and at most `new` tokens each."""
    new = min(new, engine.max_positions - prompt)
    if new < 2:
        problem = f"prompts of {prompt} tokens fill the model's {engine.max_positions} positions"
        raise UserError(f"{problem}. Shorten the system prompt or the tools' descriptions.")
    one_s, token_s, _ = _dialogues(engine, prompt, 1, min(3, new), seed)
    rows = max(1, min(rows, int(BUDGET_S / 2 / one_s)))
    new = min(new, max(2, int(BUDGET_S / token_s)))
    reading_s, writing_s, written = _dialogues(engine, prompt, rows, new, seed + 1)
    size = next(engine.model.parameters()).element_size()
    to_read, to_write = work(shape, prompt, rows, written, size)
    return Rate("read", rows * prompt, reading_s, to_read, rows), Rate("say", rows * written, writing_s, to_write, rows)


def work(shape: Shape, prompt: int, rows: int, written: int, size: int) -> tuple[Work, Work]:
    """Count the work to read `rows` prompts, and to write `written` tokens after each. `size`: the
    bytes of a number."""
    head, body = shape.vocabulary * shape.hidden, _body(shape)
    attending = 2 * shape.layers * shape.heads * shape.head_dim
    reading = Work(rows * (2 * body * prompt + 2 * head + attending * prompt**2), (body + head) * size)
    seen = written * prompt + written * (written + 1) / 2  # what the tokens of a row look back on
    held = 2 * shape.layers * shape.kv_heads * shape.head_dim * size * rows * seen
    flop = 2 * (body + head) * rows * written + 2 * attending * rows * seen
    return reading, Work(flop, (body + head) * size * written + held)


def _dialogues(engine: Engine, prompt: int, rows: int, new: int, seed: int) -> tuple[float, float, int]:
    """Return the seconds of reading the prompts, the seconds of writing, and how many tokens each
    row wrote. For a single row, the seconds of writing are per token. The time of reading includes
    the first token."""
    vocabulary = engine.model.config.get_text_config().vocab_size
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, vocabulary, prompt).tolist() for _ in range(rows)]
    session = Session(engine, prompts, [(seed, row) for row in range(rows)], 1.0, engine.max_positions)
    for row in range(rows):
        session.begin(row, new)
    began = time.perf_counter()
    session.advance()
    read = time.perf_counter()
    written = 0
    while session.speaking:
        session.advance()
        written += 1
    writing_s = time.perf_counter() - read
    return read - began, writing_s / written if rows == 1 else writing_s, written


def _body(shape: Shape) -> int:
    """Count the parameters by which every token is multiplied: all but embeddings and head."""
    return shape.parameters - shape.shared


# -- learning --------------------------------------------------------------------------------------
def learning(learner: Learner, shape: Shape, prompt: int, typical: Typical) -> Rate:
    """Measure one step on groups as large as train.group. It has one microbatch, or as many
    rollouts as fit into the time."""
    section = learner.section
    samples = rollouts(section, prompt, typical, section.group, shape.vocabulary)
    steps = heap.Steps(learner.model)
    learned_s(learner, steps, samples[:1])  # warms up: AdamW makes its moments
    one_s = learned_s(learner, steps, samples[:1])
    fit = max(1, int(BUDGET_S / one_s))
    most = min(fit, max(section.group, section.microbatch_tokens // len(samples[0].ids)))
    samples = rollouts(section, prompt, typical, most, shape.vocabulary)
    seconds = learned_s(learner, steps, samples)
    head, body = shape.vocabulary * shape.hidden, _body(shape)
    own = sum(one.num_own for one in samples)
    groups = -(-len(samples) // section.group)
    length = len(samples[0].ids)
    distinct = groups * prompt + len(samples) * (length - prompt)
    attended = groups * prompt**2 + len(samples) * (length**2 - prompt**2)
    attention = 2 * shape.layers * shape.heads * shape.head_dim * attended
    times = 3 if section.weights == "full" else 2
    flop = times * 2 * (body * distinct + head * own) + 3 * attention
    trained = num_trained(shape, section)
    # AdamW reads and writes two moments and the weight, and reads the gradient
    read = 2 * (body + head) * 4 + trained * 4 * 7
    return Rate("learn", sum(len(one.ids) for one in samples), seconds, Work(flop, read), len(samples))


def rollouts(
    section: config.Train, prompt: int, typical: Typical, number: int, vocabulary: int
) -> list[TrainingSample]:
    """Draw rollouts of a typical length: a prompt for each group, then tokens of tools and of the
    policy."""
    draw = np.random.default_rng(section.seed)
    own = max(1, round(typical.own))
    others = max(0, round(typical.whole) - prompt - own)
    made: list[TrainingSample] = []
    for place in range(number):
        if place % section.group == 0:
            shared = draw.integers(0, vocabulary, prompt).tolist()
        rest = draw.integers(0, vocabulary, others + own).tolist()
        mask = [False] * (prompt + others) + [True] * own
        made.append(TrainingSample([*shared, *rest], mask, [], 1.0 if place % 2 else -1.0))
    return made


def learned_s(learner: Learner, steps: heap.Steps, samples: list[TrainingSample]) -> float:
    """Time one step of the plain policy gradient, from which every on-policy algorithm starts."""
    section = learner.section
    began = time.perf_counter()
    learner.model.train()
    with steps.one():
        for rows in microbatches(samples, section.microbatch_tokens, learner.packing_width):
            planned = layout(rows, learner.device)
            advantage_B = torch.tensor([one.advantage for one in planned.samples], device=learner.device)
            scored = own_logprobs(learner.model, planned, section.temperature)
            (-(advantage_B[planned.row_N] * scored.logprobs_N).sum() / len(scored.logprobs_N)).backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters, section.clip_grad)
        learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return time.perf_counter() - began
