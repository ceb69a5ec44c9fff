"""An adapter beside the weights instead of in them, for weights that are not float32.

A LoRA adapter changes a weight by far less than bfloat16 can hold. If one step at a learning rate
of 1e-5 is merged there, the cosine between what was learned and what is served is about 0.1. So the
base weight stays as it is, and the low-rank path runs beside it:

    y = x W^T + (x down^T) up^T          `up` is scaled by alpha / r

`down` and `up` have the weight's own number format, in which a server keeps an adapter too. They
are cast from float32, with a relative error of 2^-9, which leaves a cosine of 0.99999. The low-rank
part is added to the product before the sum is rounded. If it were added to a rounded output, its
part below half of the last digit would be lost each time.

    beside       peft's wrapped layers -> Unmerged, in place
    twin         what the sampler decodes with: the learner's own base weights, and a copy of the
                 adapter
    follow       copies the learner's present adapter into its twin
    save_stacked saves an adapter that was trained on another one as one adapter of the base model

An adapter can be trained on top of another one: peft wraps an Unmerged layer like any linear layer.
Side by side, both are one adapter, whose rank is the sum of the two.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional


class Unmerged(torch.nn.Linear):
    """A linear layer with a low-rank path. It shares the weight of the layer that it replaces."""

    down: torch.Tensor
    """R x inputs."""
    up: torch.Tensor
    """Outputs x R."""

    def __init__(self, base: torch.nn.Linear, down: torch.Tensor, up: torch.Tensor):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.register_buffer("down", down.to(self.weight))
        self.register_buffer("up", up.to(self.weight))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = input.reshape(-1, self.in_features)
        low = functional.linear(functional.linear(x, self.down), self.up)
        y = torch.addmm(low, x, self.weight.T)
        y = y if self.bias is None else y + self.bias  # pyright: ignore[reportUnnecessaryComparison]
        return y.view(*input.shape[:-1], self.out_features)


def holds(model: Any) -> bool:
    """Tell whether an adapter runs beside this model's weights."""
    return any(isinstance(module, Unmerged) for module in model.modules())


def beside(network: Any) -> Any:
    """Replace the layers that peft wrapped, in place; return the network."""
    for name, layer in list(_wrapped(network)):
        _put(network, name, Unmerged(layer.get_base_layer(), *_paths(layer)))
    network.__dict__.pop("peft_config", None)  # else peft would see an adapter under the next one
    return network.requires_grad_(False)


def twin(learner: Any) -> Any:
    """Make a model that samples with the learner's weights. Base weights are shared, not copied."""
    inner = learner.base_model.model
    shared = {id(frozen): frozen for frozen in inner.parameters() if not frozen.requires_grad}
    return beside(copy.deepcopy(inner, shared)).eval()


@torch.no_grad()
def follow(learner: Any, sampler: Any) -> None:
    """Copy the learner's present adapter to its twin."""
    plain = dict(sampler.named_modules())
    for name, layer in _wrapped(learner.base_model.model):
        down, up = _paths(layer)
        plain[name].down.copy_(down)
        plain[name].up.copy_(up)


def is_stacked(learner: Any) -> bool:
    """Tell whether the adapter that learns is on top of another one."""
    return hasattr(learner, "peft_config") and holds(learner)


@torch.no_grad()
def save_stacked(learner: Any, folder: Path) -> None:
    """Rewrite the adapter that peft saved in `folder` as one of the base model, together with the
    one below it."""
    from safetensors.torch import save_file

    paths = {name: _paths(layer) for name, layer in _layers(learner.base_model.model)}
    rank = max(len(down) for down, _ in paths.values())
    state: dict[str, torch.Tensor] = {}
    for name, (down, up) in paths.items():
        missing = rank - len(down)
        state[f"base_model.model.{name}.lora_A.weight"] = _kept(functional.pad(down, (0, 0, 0, missing)))
        state[f"base_model.model.{name}.lora_B.weight"] = _kept(functional.pad(up, (0, missing)))
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    path = folder / "adapter_config.json"
    # alpha / r is 1: each `up` is scaled already
    settings = json.loads(path.read_text()) | {"r": rank, "lora_alpha": rank}
    settings["target_modules"] = _targets(learner.base_model.model, set(paths))
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().cpu().contiguous()


def _targets(network: Any, adapted: set[str]) -> list[str]:
    """Name the adapted layers: by their last names, if that names no other layer."""
    last = {name.rsplit(".", 1)[-1] for name in adapted}
    same = {name for name, _ in _linear(network) if name.rsplit(".", 1)[-1] in last}
    return sorted(last if same == adapted else adapted)


def _linear(network: Any) -> Iterator[tuple[str, Any]]:
    """Yield the network's linear layers, wrapped or not, by their names without a wrapper."""
    wrapped = tuple(f"{name}." for name, _ in _wrapped(network))
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.startswith(wrapped):
            yield name, module
    yield from _wrapped(network)


def _layers(network: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers that have an adapter, one that learns or one below it."""
    for name, module in _linear(network):
        if isinstance(module, Unmerged) or hasattr(module, "lora_A"):
            yield name, module


def _wrapped(network: Any) -> Iterator[tuple[str, Any]]:
    for name, module in network.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield name, module


def _paths(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all low-rank paths of a layer as one, in float32: its base's path, then its own."""
    if isinstance(layer, Unmerged):
        return layer.down.float(), layer.up.float()
    down = layer.lora_A["default"].weight.detach().float()
    up = layer.lora_B["default"].weight.detach().float() * layer.scaling["default"]
    base = layer.get_base_layer()
    if isinstance(base, Unmerged):
        down, up = torch.cat((base.down.float(), down)), torch.cat((base.up.float(), up), 1)
    return down, up


def _put(network: Any, name: str, module: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)
