"""FSDP2: weights, gradients and optimizer state in as many parts as there are processes.

It is for models that do not fit otherwise.

    accelerate launch --config_file infra/fsdp2.yaml -m rft train

asks for it in every process's environment, which accelerate's plugin reads. Each decoder layer is
one unit, gathered when it is computed and freed after. What learns is a sharded twin of the
learner's plain model. The sampler, the adapter's file and the checkpoint need whole weights, so the
plain model is updated after each step. It is on the leader's device, and in the followers' main
memory.

Gathering is a collective, so all processes must do the same number of passes: a process with fewer
microbatches runs passes without weight. Gradients are summed, as without shards
(rft/trainer/distributed.py).
"""

from __future__ import annotations

import copy
import os
from types import MethodType
from typing import Any

import torch

from rft.errors import ConfigError
from rft.trainer.logprobs import Scored, own_logprobs
from rft.trainer.packing import Layout


def wanted() -> bool:
    """Tell whether the launcher asks for it. Raises ConfigError for FSDP's first version."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() != "true":
        return False
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        what = f"the launcher's configuration says fsdp_version: {version}"
        raise ConfigError(f"{what}. Only 2 is supported: start from infra/fsdp2.yaml.")
    return True


def sharded(plain: Any) -> Any:
    """Make a sharded twin of `plain`. Parameters keep names and order."""
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    twin = copy.deepcopy(plain)
    for unit in [*twin.get_decoder().layers, twin]:
        fully_shard(unit, reshard_after_forward=bool(plugin.reshard_after_forward))
    for unit in twin.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo has no mean
    twin.scored = MethodType(_scored, twin)
    register_fsdp_forward_method(twin, "scored")
    return twin


def score(twin: Any, layout: Layout, temperature: float) -> Scored:
    return Scored(*twin.scored(layout, temperature))


def _scored(twin: Any, layout: Layout, temperature: float) -> tuple[torch.Tensor, ...]:
    """Return a tuple of tensors that are not views: otherwise FSDP's hooks for the backward are
    lost."""
    found = own_logprobs(twin, layout, temperature)
    return found.logprobs_N.clone(), found.entropy_N, found.hidden_NE.clone()


def whole(value: Any) -> Any:
    """Gather the tensor of which this process holds a part; return anything else as it is. This is
    a collective."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def part(value: Any, like: Any) -> Any:
    """Return this process's part of a whole tensor, cut as `like` is."""
    if not hasattr(like, "placements") or not torch.is_tensor(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
