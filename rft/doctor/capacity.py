"""Will it fit? Memory and disk, from the model's shape alone: no weight is loaded, parameters are
counted on PyTorch's `meta` device.

Memory peaks in one of two places, and the larger counts, on top of the weights (with LoRA twice:
the learner's and the sampler's plain copy):

    sampling    keys and values of rollout.batch rows x rollout.max_tokens, a working copy of them,
                and the logits of a draw; nothing here where a server samples
    learning    gradients, AdamW's two moments, the start and the last state of what is trained;
                activations of a microbatch

Activations are the rough part: values that backward needs, a token and layer, counted from the
shape of a Llama-like block. Against it stands what is free now, in the machine and in this
process's cgroup, or on the GPU. Disk holds the shelves, DVC's copy of them, checkpoints (the new
one beside the old) and the rollout log.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft import config
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.errors import UserError

TIGHT = 0.8
GIB = 2**30
MEBIBYTES_OF_LIBRARIES = 700  # torch, transformers and peft, imported
BYTES_A_TOKEN, BYTES_A_ROLLOUT = 40, 4000  # of the rollout log, in lines and in Parquet


@dataclass(frozen=True, slots=True)
class Shape:
    """What the estimate needs to know of a model. `linear`: inputs + outputs of each layer that
    LoRA would wrap, by name."""

    parameters: int
    linear: dict[str, int]
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def look(setup: Setup) -> Finding:
    params = setup.params
    shape = shape_of(setup.model_config())
    need, disk = memory_need(shape, params), disk_need(shape, params)
    where = _device(params.policy)
    free = available_memory(where)
    free_disk = shutil.disk_usage(Path.cwd()).free
    problems = [
        *_judge(
            "memory" if where == "cpu" else "GPU memory",
            sum(need.values()),
            free,
            _memory_remedy(need, params),
            infrastructure=False,
        ),
        *_judge(
            "disk",
            sum(disk.values()),
            free_disk,
            "Free some space, or keep the DVC cache elsewhere: dvc cache dir.",
            infrastructure=True,
        ),
    ]
    words = (
        f"{shape.parameters / 1e6:.1f} M parameters need about {_gib(sum(need.values()))} of {_gib(free)} memory "
        f"and {_gib(sum(disk.values()))} of {_gib(free_disk)} disk"
    )
    return together(
        problems,
        words,
        parameters=shape.parameters,
        memory=need,
        memory_free=free,
        disk=disk,
        disk_free=free_disk,
        device=where,
    )


def shape_of(description: Any) -> Shape:
    """From transformers' configuration of a model."""
    import torch
    from transformers import AutoModelForCausalLM

    text = description.get_text_config()
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(description)
    head = network.get_output_embeddings()
    linear = {
        name: module.in_features + module.out_features
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    heads = text.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
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


def memory_need(shape: Shape, params: config.Params) -> dict[str, int]:
    """Bytes by what they are for."""
    rollout, trained = params.rollout, num_trained(shape, params.train)
    width = 4 if params.policy.dtype == "float32" else 2
    is_lora = params.train.weights == "lora"
    weights = shape.parameters * width * (2 if is_lora else 1)
    state = trained * (4 if is_lora else width) * 5  # gradient, two moments, the start, the state before the step
    rows = rollout.batch if params.policy.server is None else 0
    cache = 2 * rows * (_longest(params) + 1) * shape.layers * shape.kv_heads * shape.head_dim * width
    draw = rows * shape.vocabulary * 20
    sampling, learning = (
        2 * cache + draw,
        _activations(shape, max(params.train.microbatch_tokens, _longest(params)), width),
    )
    return {
        "libraries": MEBIBYTES_OF_LIBRARIES * 2**20,
        "weights": weights,
        "adapter": trained * 4 if is_lora else 0,
        "optimizer": state,
        "keys and values": 2 * cache if sampling >= learning else 0,
        "logits of a draw": draw if sampling >= learning else 0,
        "activations": learning if learning > sampling else 0,
    }


def _longest(params: config.Params) -> int:
    """Tokens of a long rollout. Where a server sets the limit, those of a microbatch: few rollouts
    fill a context of 32,000."""
    return params.rollout.max_tokens or params.train.microbatch_tokens


def _activations(shape: Shape, tokens: int, width: int) -> int:
    """Of a microbatch, or of one rollout that is longer. The head runs on the policy's own tokens,
    here half of all."""
    block = 8 * shape.hidden + 4 * shape.feed_forward + 4 * (shape.heads + shape.kv_heads) * shape.head_dim
    return tokens * (shape.layers * block * width + shape.vocabulary * 4 * 2)


def disk_need(shape: Shape, params: config.Params) -> dict[str, int]:
    """Bytes by what they are for. A shelf lies in the worktree and in DVC's cache."""
    train, width = params.train, 4 if params.policy.dtype == "float32" else 2
    trained = num_trained(shape, train)
    is_lora = train.weights == "lora"
    out = trained * (4 if is_lora else width)
    made = shape.parameters * 4 if params.policy.is_warm_started else 0
    return {
        "policy": 3 * made,
        "checkpoints": (train.keep_checkpoints + 1 + (train.keep == "best")) * 3 * trained * 4,
        "trained weights": 3 * out,
        "rollout logs": num_rollouts(params) * (_longest(params) * BYTES_A_TOKEN + BYTES_A_ROLLOUT),
    }


def num_rollouts(params: config.Params) -> int:
    """Of a whole ladder, greedy ones included; the prompt search is counted as if no candidate were
    dropped early."""
    validation, train, prompt = params.examples.validation, params.train, params.prompt
    return (
        params.baseline.examples * (params.baseline.k + 1)
        + prompt.rounds * prompt.first_examples * prompt.k * 8
        + 2 * validation * prompt.confirm_k
        + train.steps * train.examples_per_step * train.group
        + train.steps // train.validate_every * train.validation_examples
        + 3 * params.examples.num_test * (params.challenger.k + 1)
    )


def available_memory(device: str) -> int:
    """Bytes that this process could still take."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    import psutil

    return min([psutil.virtual_memory().available, *_cgroup()])


def _cgroup() -> list[int]:
    """What a container leaves us (cgroup v2); the machine's own number knows nothing of it."""
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return []
    return [] if limit == "max" else [int(limit) - int(used)]


def _judge(what: str, need: int, free: int, remedy: str, infrastructure: bool) -> list[Finding]:
    words = f"{what}: about {_gib(need)} needed, {_gib(free)} free"
    if need > free:
        return [fail(words, remedy, infrastructure=infrastructure)]
    return [warn(f"{words}: tight", remedy)] if need > TIGHT * free else []


def _memory_remedy(need: dict[str, int], params: config.Params) -> str:
    """What helps against the largest part."""
    helps = {
        "weights": "Choose a smaller model"
        + (", or policy.dtype: bfloat16." if params.policy.dtype == "float32" else "."),
        "optimizer": "Set train.weights: lora, or lower train.lora.r.",
        "keys and values": "Lower rollout.batch or rollout.max_tokens.",
        "activations": "Lower rollout.max_tokens, or choose a smaller model.",
        "logits of a draw": "Lower rollout.batch.",
    }
    largest = max((name for name in need if name in helps), key=lambda name: need[name])
    return f"Most of it ({_gib(need[largest])}) are {largest}. {helps[largest]}"


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
