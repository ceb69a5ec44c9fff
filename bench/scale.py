"""The arithmetic of docs/scale.md: where does the time of a step go at 4 B and 32 B parameters?

The GPUs are not here, so nothing is timed. A model's shape comes from its configuration. Work and
bytes come from the same functions that `rft doctor speed` uses (rft/doctor/speed.py), and a GPU's
limits from its data sheet. The share of these limits that a real system reaches is a stated
assumption: SHARE_OF_FLOPS, SHARE_OF_BYTES. On a machine with these GPUs, use `rft doctor speed` and
the timings of a run (`data/train/timing.json`) instead.

A step has EXAMPLES groups of GROUP rollouts. Each rollout has the prompt, the policy's own tokens
and the tools' answers. Sampler and learner each compute a group's prompt once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.measure import Figure, Part

EXAMPLES, GROUP = 64, 8
PROMPT, OWN, TOOLS = 1500, 800, 1200
"""Tokens of a rollout: the opening, what the policy says, what tools answer."""
FLOPS, BYTES_PER_S, LINK = 989e12, 3.35e12, 450e9
"""H100 SXM by its data sheet: bfloat16 without sparsity, HBM3, NVLink in one direction."""
SHARE_OF_FLOPS, SHARE_OF_BYTES = 0.4, 0.5
DISK = 1e9
"""Bytes per second of the shared disk over which the adapter goes."""
RANK = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """`replicas` of the sampler, each on `tensor` GPUs with `rows` rollouts at a time. `learners`
    is the number of GPUs that learn, with the weights divided among them."""

    name: str
    shape: dict[str, Any]
    tied: bool
    replicas: int
    tensor: int
    rows: int
    learners: int


PLANS = (
    Plan(
        "Qwen3 4 B, 8 GPUs",
        {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
        tied=True, replicas=4, tensor=1, rows=64, learners=4,
    ),
    Plan(
        "Qwen3 32 B, 16 GPUs",
        {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64},
        tied=False, replicas=4, tensor=2, rows=64, learners=8,
    ),
)  # fmt: skip


def scale_plan(args: list[str]) -> Figure:
    """Arithmetic of docs/scale.md, not timed: seconds of a step's phases at 4 B and 32 B on H100s,
    and what travels."""
    return Figure(
        tuple(Part(f"{plan.name}: {name}", value, unit) for plan in PLANS for name, (value, unit) in rows(plan).items())
    )


FIGURES = {"scale_plan": scale_plan}


def rows(plan: Plan) -> dict[str, tuple[float, str]]:
    """Return what docs/scale.md shows of a plan: name -> value and unit."""
    from transformers import Qwen3Config

    from rft import config
    from rft.doctor import speed
    from rft.doctor.capacity import num_trained, shape_of

    told = Qwen3Config(
        **plan.shape, num_key_value_heads=8, head_dim=128, vocab_size=151_936, tie_word_embeddings=plan.tied
    )
    shape = shape_of(told)
    lora = config.Train.model_validate({"lora": {"r": RANK, "alpha": 2 * RANK}})
    weights, adapter = shape.parameters * 2.0, num_trained(shape, lora) * 4.0
    rollouts, whole = EXAMPLES * GROUP, PROMPT + OWN + TOOLS
    flops, bytes_per_s = FLOPS * SHARE_OF_FLOPS, BYTES_PER_S * SHARE_OF_BYTES

    gpus = plan.replicas * plan.tensor
    read, _ = speed.work(shape, PROMPT, EXAMPLES, 1, 2)
    answers, _ = speed.work(shape, TOOLS, rollouts, 1, 2)
    reading_s = (read.flop + answers.flop) / (gpus * flops)
    _, write = speed.work(shape, PROMPT + TOOLS // 2, plan.rows, OWN, 2)
    waves = rollouts / (plan.replicas * plan.rows)
    writing_s = waves * max(write.flop / (plan.tensor * flops), write.read / (plan.tensor * bytes_per_s))

    body = shape.parameters - shape.shared
    distinct = EXAMPLES * PROMPT + rollouts * (OWN + TOOLS)
    head = shape.vocabulary * shape.hidden * rollouts * OWN
    attending = 2 * shape.layers * shape.heads * shape.head_dim * rollouts * (whole**2 - PROMPT**2)
    # forward, forward again for activations that were not kept, and gradients of the activations
    learning_s = 3 * (2 * (body * distinct + head) + attending) / (plan.learners * flops)
    microbatches = rollouts * whole / (plan.learners * 4 * 8192)
    gathering_s = 3 * microbatches * weights * (1 - 1 / plan.learners) / LINK

    kept = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2 * whole
    held = weights / plan.learners + 4 * adapter + 2 * shape.hidden * shape.layers * 4 * 8192
    return {
        "weights in bfloat16": (weights / 1e9, "GB"),
        "sampler, keys and values of one rollout": (kept / 1e9, "GB"),
        "sampler, memory of a GPU": ((weights + plan.rows * kept) / plan.tensor / 1e9, "GB"),
        "learner, memory of a GPU": (held / 1e9, "GB"),
        "learner, memory of the leader's GPU": ((held + weights) / 1e9, "GB"),
        "adapter, once a step": (adapter / 1e9, "GB"),
        "reading prompts and tool results": (reading_s, "s"),
        "saying": (writing_s, "s"),
        "learning": (learning_s, "s"),
        "gathering weights, beside learning": (gathering_s, "s"),
        "bringing the adapter": (adapter / DISK, "s"),
        "a step without overlap": (reading_s + writing_s + learning_s + adapter / DISK, "s"),
        "share of sampling": ((reading_s + writing_s) / (reading_s + writing_s + learning_s + adapter / DISK), ""),
        "a step with lag 1": (max(reading_s + writing_s, learning_s + adapter / DISK), "s"),
    }
