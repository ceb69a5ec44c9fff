"""Estimates the memory that a microbatch needs, by running its passes on tensors without data.

A formula for the tensors that a backward needs would be a formula per architecture, and wrong after
the next release of a library. So the trainer's own passes run on PyTorch's `meta` device, where
tensors have a size and no bytes. They run the model's own code and LoRA's, and the sizes of all
tensors that are alive at once are added up. One pass over two layers and one over four tell what
each further layer adds to what is saved for the backward. What comes and goes on top of that is
taken from the pass over four.

Attention is set to the fused kernel, which all devices use except `meta`. On a GPU the head is
fused too (rft/kernels): its logits are left out here, and what it holds instead is added.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rft import config
from rft.kernels import linear_logprobs
from rft.models import heap, shape, weights
from rft.trainer import forward
from rft.trainer.packing import Layout, TrainingSample, layout

SLAB = 2**27 * 2
"""Bytes that the fused head holds at most for a part of the logits' gradient (rft/kernels)."""


LOGITS = 2**30
"""More bytes than the head and the loss take, which work in chunks."""
TIGHT = 0.85
"""The share of the free memory that may be needed: the estimate is up to 15 % too low
(`real_memory`)."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows of `width` tokens, of which the policy wrote the last `own`."""

    rows: int
    width: int
    own: int


def peak(description: Any, section: config.Train, micro: Microbatch, bfloat16: bool, on_gpu: bool) -> int:
    """Return the bytes that the passes hold at most, beyond weights and gradients."""
    layers = description.get_text_config().num_hidden_layers
    two, four = (_traced(description, section, micro, bfloat16, on_gpu, number) for number in (2, 4))
    layer, passing = (four.saved - two.saved) // 2, four.most - four.saved
    if section.gradient_checkpointing is not True:
        return two.saved + (layers - 2) * layer + passing
    kept = micro.rows * micro.width * description.get_text_config().hidden_size * (2 if bfloat16 else 4)
    return two.saved - layer + layers * kept + passing  # one layer at a time is computed again


def shortage(
    model: Any, section: config.Train, micro: Microbatch, device: torch.device, first: bool
) -> tuple[int, int] | None:
    """Return the bytes that learning from such a microbatch takes, and those that are free; None if
    it fits. `first`: the optimizer's moments must still be made."""
    text, learning = model.config.get_text_config(), [one for one in model.parameters() if one.requires_grad]
    trained = sum(one.numel() for one in learning) * 4
    beside = trained * (3 if first else 1)
    free = _free(device)
    feed_forward = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    a_layer = micro.rows * micro.width * (40 * text.hidden_size + 10 * feed_forward) * 4
    if a_layer * text.num_hidden_layers + LOGITS + beside < free:  # even this upper bound fits
        return None
    bfloat16 = next(model.parameters()).dtype == torch.bfloat16
    need = peak(model.config, section, micro, bfloat16, device.type == "cuda") + beside
    return (need, free) if need > TIGHT * free else None


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return heap.free_memory()


def _traced(
    description: Any, section: config.Train, micro: Microbatch, bfloat16: bool, on_gpu: bool, layers: int
) -> Held:
    network = shape.skeleton(description, layers)
    network = network.to(torch.bfloat16) if bfloat16 else network
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        network = weights.trainable(network, section)
    for parameter in network.parameters():
        if parameter.requires_grad:  # gradients are counted elsewhere
            parameter.register_post_accumulate_grad_hook(_forget)
    planned = _layout(micro)
    decoder, head = network.get_decoder(), network.get_output_embeddings()
    if head.weight.requires_grad:
        head.weight.grad = torch.empty_like(head.weight)  # which the head adds to (rft/kernels)
    with _Fused(), Held(network) as held:
        if forward.knows(decoder):
            hidden_NE = forward.own_hidden(decoder, planned, _places(micro))
        else:
            seen = decoder(input_ids=planned.ids_RT, use_cache=False)
            hidden_NE = seen.last_hidden_state.flatten(0, 1)[planned.predictor_N]
        if on_gpu:
            held.saved = held.now
            held.most += min(SLAB, hidden_NE.shape[0] * head.weight.shape[0] * 2) + hidden_NE.numel() * 8
            hidden_NE.sum().backward()
        else:
            logprobs_N, _ = linear_logprobs(hidden_NE, head.weight, planned.ids_N, section.temperature, in_place=True)
            held.saved = held.now
            logprobs_N.sum().backward()
    return held


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _layout(micro: Microbatch) -> Layout:
    one = TrainingSample(
        ids=[0] * micro.width,
        loss_mask=[False] * (micro.width - micro.own) + [True] * micro.own,
        logprobs=[0.0] * micro.own,
        advantage=1.0,
    )
    return layout([[one]] * micro.rows, torch.device("meta"))


def _places(micro: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what rft/trainer/forward.py would read from the layout."""
    with torch.device("meta"):
        rows = torch.zeros(micro.rows, micro.own, dtype=torch.long)
        return rows, rows.flatten()


class _Fused(TorchFunctionMode):
    """Attention as the fused kernel computes it. Questions about a tensor's values, which `meta`
    cannot answer, are answered with yes: transformers asks whether rows are unpacked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args[:3])[0]
        if func is torch.Tensor.__bool__:
            return True
        return func(*args, **(kwargs or {}))


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that are made in its block: those that exist `now`, the
    `most` at a time, and those that are `saved` when the backward begins. The network's own
    weights, with views of them, and gradients that exist already do not count."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.most = self.saved = self.now = 0
        there = [*network.parameters(), *network.buffers()]
        there += [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in there}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return made

    def _count(self, storage: Any) -> None:
        place = storage._cdata
        if place not in self._sizes:
            self._sizes[place] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._free, place)

    def _free(self, place: int) -> None:
        self.now -= self._sizes.pop(place, 0)
