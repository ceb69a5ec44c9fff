"""Estimate whether a run fits into memory and disk, from the model's shape alone.

No weight is loaded: parameters are counted on PyTorch's `meta` device. Stage `train` holds these
all the time. T is the number of trained numbers:

    weights     the learner's. With LoRA in float32 also the sampler's plain copy, without the
                embeddings that both share. In bfloat16 it shares all (rft/models/unmerged.py)
    optimizer   AdamW's two moments, and the start, from which `weights/change` is measured: 3 T.
                An algorithm that needs a reference policy keeps the start as that policy
    ahead       with full weights and train.lag, the sampler's own copy

The larger of these two is added:

    sampling    keys and values of rollout.batch rows x rollout.max_tokens, a copy of a part while
                they grow, a layer's view of them, and the logits of a draw. On a CPU in float32
                also the packed weights (rft/sampling/decode.py). Nothing where a server samples
    learning    gradients (T) and a microbatch's passes (rft/trainer/activations.py)

The sum is compared with what is free now: in the machine and this process's cgroup, or on the GPU.
The disk holds the stages' files, DVC's copy of them, checkpoints (the new one beside the old one)
and the rollout log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft import config
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.errors import UserError
from rft.models import heap
from rft.models.shape import skeleton

if TYPE_CHECKING:
    from rft.trainer.activations import Microbatch

TIGHT = 0.8
GIB = 2**30
MEBIBYTES_OF_LIBRARIES = 480  # torch, transformers and peft, imported
ROOM = 64
"""Positions by which the sampler's slots grow (rft/sampling/kv_cache.py)."""
BYTES_A_TOKEN, BYTES_A_ROLLOUT = 40, 4000  # of the rollout log, in lines and in Parquet


@dataclass(frozen=True, slots=True)
class Shape:
    """What the estimate needs to know about a model. `linear`: inputs + outputs of each layer that
    LoRA would wrap, by name."""

    parameters: int
    shared: int
    """Parameters of the embeddings, and of the head if it has its own. The learner and its plain
    copy share them."""
    linear: dict[str, int]
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def check(setup: Setup) -> Finding:
    params = setup.params
    description = setup.model_config()
    shape = shape_of(description)
    need, disk = memory_need(shape, params, description), disk_need(shape, params)
    where = _device(params.policy)
    free = available_memory(where)
    is_auto = params.train.gradient_checkpointing == "auto" and params.train.processes == 1
    if is_auto and sum(need.values()) > TIGHT * free:  # as training will do
        saving = params.train.model_copy(update={"gradient_checkpointing": True})
        params = params.model_copy(update={"train": saving})
        need = memory_need(shape, params, description)
    free_disk = shutil.disk_usage(Path.cwd()).free

    def again(section: str, key: str, value: int) -> int:
        changed = getattr(params, section).model_copy(update={key: value})
        return sum(memory_need(shape, params.model_copy(update={section: changed}), description).values())

    problems = [
        *_judge(
            "memory" if where == "cpu" else "GPU memory",
            sum(need.values()),
            free,
            lambda: _memory_remedy(need, params, free, again),
            infrastructure=False,
        ),
        *_judge(
            "disk",
            sum(disk.values()),
            free_disk,
            lambda: "Free some space, or keep the DVC cache elsewhere: dvc cache dir.",
            infrastructure=True,
        ),
    ]
    summary = (
        f"{shape.parameters / 1e6:.1f} M parameters need about {_gib(sum(need.values()))} of {_gib(free)} memory "
        f"and {_gib(sum(disk.values()))} of {_gib(free_disk)} disk"
    )
    if is_auto and params.train.gradient_checkpointing is True:
        summary += ", with activations computed again (train.gradient_checkpointing: auto)"
    return together(
        problems,
        summary,
        parameters=shape.parameters,
        memory=need,
        memory_free=free,
        disk=disk,
        disk_free=free_disk,
        device=where,
    )


def shape_of(description: Any) -> Shape:
    """Find the shape in transformers' configuration of a model."""
    import torch

    text = description.get_text_config()
    network = skeleton(description)
    head = network.get_output_embeddings()
    ends = {id(end.weight): end.weight.numel() for end in (network.get_input_embeddings(), head)}
    linear = {
        name: module.in_features + module.out_features
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    heads = text.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        shared=sum(ends.values()),
        linear=linear,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        feed_forward=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocabulary=text.vocab_size,
    )


def num_trained(shape: Shape, section: config.Train) -> int:
    if section.weights == "full":
        return shape.parameters
    targets = section.lora.targets
    wrapped = [
        size
        for name, size in shape.linear.items()
        if targets == "all-linear" or name.rsplit(".", 1)[-1] in targets or name in targets
    ]
    return section.lora.r * sum(wrapped)


def memory_need(shape: Shape, params: config.Params, description: Any) -> dict[str, int]:
    """Estimate the bytes of memory by purpose."""
    from rft.trainer import activations

    train, on_gpu = params.train, _device(params.policy) == "cuda"
    trained, is_lora = num_trained(shape, train), train.weights == "lora"
    width = 4 if params.policy.dtype == "float32" else 2
    sampled_here = params.policy.server is None
    weights = shape.parameters * (width if is_lora else 4)  # what learns is float32
    if is_lora and sampled_here and width == 4:
        weights += (shape.parameters - shape.shared) * width
    ahead = shape.parameters * 4 if not is_lora and sampled_here and train.lag else 0
    rows, held = _slots(shape, params, width if is_lora else 4)
    draw = rows * shape.vocabulary * 20
    micro = microbatch(params)
    passes = activations.peak(description, train, micro, width == 2 and (is_lora or on_gpu), on_gpu)
    gradients = trained * 4
    packs = sampled_here and not on_gpu and (width == 4 or not is_lora)
    packed = (shape.parameters - shape.shared + shape.vocabulary * shape.hidden) * 4 if packs else 0
    sampling, learning = held + draw + packed, passes + gradients
    return {
        "libraries": MEBIBYTES_OF_LIBRARIES * 2**20,
        "weights": weights + ahead,
        "adapter": trained * 4 if is_lora else 0,
        "optimizer": trained * 4 * 3,
        "gradients": gradients if learning > sampling else 0,
        "keys and values": held if sampling >= learning else 0,
        "logits of a draw": draw if sampling >= learning else 0,
        "packed weights": packed if sampling >= learning else 0,
        "activations": passes if learning > sampling else 0,
    }


def _slots(shape: Shape, params: config.Params, width: int) -> tuple[int, int]:
    """Return the rows that are sampled at a time, and the bytes of their keys and values.

    While they grow, half of them exist twice. One layer's are repeated for its query heads.
    """
    rows = params.rollout.batch if params.policy.server is None else 0
    positions = rows * (longest(params) + ROOM) * shape.head_dim * width
    cache = 2 * positions * shape.layers * shape.kv_heads
    return rows, cache + cache // 2 + 2 * positions * shape.heads


def microbatch(params: config.Params) -> Microbatch:
    """Return a microbatch of long rollouts. `own` is all that the policy may write, or the row."""
    from rft.trainer.activations import Microbatch

    rollout, width = params.rollout, longest(params)
    own = min(rollout.max_turns * rollout.max_turn_tokens, width - 1)
    rows = max(1, params.train.microbatch_tokens // width)
    return Microbatch(min(rows, params.train.examples_per_step * params.train.group), width, own)


def longest(params: config.Params) -> int:
    """Return the tokens of a long rollout. Where a server sets the limit, take those of a
    microbatch, because few rollouts fill a context of 32,000."""
    return params.rollout.max_tokens or params.train.microbatch_tokens


def disk_need(shape: Shape, params: config.Params) -> dict[str, int]:
    """Estimate the bytes on disk by purpose. A stage's files are in the worktree and in DVC's
    cache."""
    train = params.train
    trained = num_trained(shape, train)
    out = trained * 4  # what learns is float32, and so is what is saved
    made = shape.parameters * 4 if params.policy.is_warm_started else 0
    return {
        "policy": 3 * made,
        "checkpoints": ((train.keep_checkpoints + 2) * 3 + (train.keep == "best") * 2) * trained * 4,
        "trained weights": 3 * out,
        "rollout logs": num_rollouts(params) * (longest(params) * BYTES_A_TOKEN + BYTES_A_ROLLOUT),
    }


def rollouts_by_stage(params: config.Params) -> dict[str, int]:
    """Count the rollouts of each stage, greedy ones included. The prompt search counts as if no
    candidate were dropped early."""
    validation, train, prompt = params.examples.validation, params.train, params.prompt
    return {
        "baseline": params.baseline.examples * (params.baseline.k + 1),
        "prompt": prompt.rounds * prompt.first_examples * prompt.k * 8 + 2 * validation * prompt.confirm_k,
        "train": train.steps * train.examples_per_step * train.group
        + train.steps // train.validate_every * train.validation_examples,
        "challenger": 3 * params.examples.num_test * (params.challenger.k + 1),
    }


def num_rollouts(params: config.Params) -> int:
    """Count the rollouts of all stages together."""
    return sum(rollouts_by_stage(params).values())


def available_memory(device: str) -> int:
    """Return the bytes that this process could still take."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    return heap.free_memory()


def _judge(what: str, need: int, free: int, remedy: Callable[[], str], infrastructure: bool) -> list[Finding]:
    description = f"{what}: about {_gib(need)} needed, {_gib(free)} free"
    if need > free:
        return [fail(description, remedy(), infrastructure=infrastructure)]
    return [warn(f"{description}: tight", remedy())] if need > TIGHT * free else []


def _memory_remedy(need: dict[str, int], params: config.Params, free: int, again: Callable[..., int]) -> str:
    """Name the largest part, and what helps. `again` returns the bytes with another setting."""
    helps = {
        "weights": "Choose a smaller model"
        + (", or policy.dtype: bfloat16." if params.policy.dtype == "float32" else "."),
        "optimizer": "Set train.weights: lora, or lower train.lora.r.",
        "gradients": "Set train.weights: lora, or lower train.lora.r.",
        "keys and values": "Lower rollout.batch or rollout.max_tokens.",
        "activations": "Lower train.microbatch_tokens or rollout.max_tokens"
        + ("." if params.train.gradient_checkpointing is True else ", or set train.gradient_checkpointing: true."),
        "logits of a draw": "Lower rollout.batch.",
        "packed weights": "Choose a smaller model, or let a server sample (policy.server).",
    }
    largest = max((name for name in need if name in helps), key=lambda name: need[name])
    enough = _enough(largest, params, free, again)
    return f"Most of it ({_gib(need[largest])}) are {largest}. {enough or helps[largest]}"


def _enough(largest: str, params: config.Params, free: int, again: Callable[..., int]) -> str:
    """Find the largest value of the part's setting with which all fits. Empty if there is none."""
    section, key, least = {
        "keys and values": ("rollout", "batch", 1),
        "logits of a draw": ("rollout", "batch", 1),
        "activations": ("train", "microbatch_tokens", max(64, longest(params))),
    }.get(largest, ("", "", 0))
    if not section:
        return ""
    now = value = getattr(getattr(params, section), key)
    while value > least:
        value = max(least, value // 2)
        if (need := again(section, key, value)) <= TIGHT * free:
            return f"Lower {section}.{key} from {now} to {value}: about {_gib(need)} are then needed."
    return ""


def _device(section: config.Policy) -> str:
    import torch

    if section.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "policy.device = 'cuda': PyTorch sees no GPU. Install a CUDA build (RFT_TORCH, see README) or set "
            "policy.device: cpu."
        )
    return "cuda" if section.device != "cpu" and torch.cuda.is_available() else "cpu"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.0f} MiB"
