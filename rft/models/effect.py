"""How much of what was learned is in the weights that are used.

It is the cosine between two changes of the same base model: the change that was learned, and that
of the weights that sample, are judged, exported or served.

A change is taken over all weights, with what an unmerged adapter adds to them. Weights are compared
rather than logits. Logits in bfloat16 carry the noise of every activation's rounding, which hides
the effect of one small step however faithful the weights are. That noise has no bias, and every
policy has it. But what rounding takes from a weight is missing at every token.

A cosine of 1 means that nothing is lost. Below `AT_LEAST`, a change counts as lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from rft.models.unmerged import Unmerged

AT_LEAST = 0.99

Change = tuple[str, torch.Tensor]
"""A parameter's name in the plain model, and what is added to it."""


class Cosine:
    """The cosine of two changes, added up weight by weight."""

    def __init__(self) -> None:
        self._dot = self._ours = self._theirs = 0.0
        self.largest = 0.0

    def add(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.largest = max(self.largest, float(one.abs().max()))
        one, other = one.double().flatten(), other.double().flatten()
        self._dot += float(one @ other)
        self._ours += float(one @ one)
        self._theirs += float(other @ other)

    @property
    def value(self) -> float | None:
        """None: nothing was learned."""
        if not self._ours:
            return None
        return self._dot / math.sqrt(self._ours * self._theirs) if self._theirs else 0.0


def kept(learned: Iterable[Change], there: Iterable[Change]) -> float | None:
    """Return the cosine of what was learned and what is there. A weight that only one side names
    counts as unchanged on the other."""
    found, cosine = dict(there), Cosine()
    for name, change in learned:
        other = found.pop(name, None)
        cosine.add(change, torch.zeros_like(change) if other is None else other)
    for change in found.values():
        cosine.add(torch.zeros_like(change), change)
    return cosine.value


@torch.no_grad()
def by_adapter(learner: Any) -> Iterator[Change]:
    """Yield what a learner's adapter adds to each weight, in float32."""
    for name, module in learner.base_model.model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield f"{name}.weight", module.get_delta_weight("default").float()


@torch.no_grad()
def between(network: Any, base: Any) -> Iterator[Change]:
    """Yield how a plain network differs from its base, which may have adapters beside it too."""
    theirs = dict(base.named_modules())
    for name, module in network.named_modules():
        for key, now in module.named_parameters(recurse=False):
            base_module = theirs[name]
            plain = now.float() - base_module.get_parameter(key).float()
            yield f"{name}.{key}", _change(module, base_module) if key == "weight" else plain


@torch.no_grad()
def of_sampler(learner: Any, sampler: Any) -> Iterator[Change]:
    """Yield what the sampler adds to each weight that the learner has an adapter for."""
    plain = dict(sampler.named_modules())
    for name, module in learner.base_model.model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield f"{name}.weight", _change(plain[name], module.get_base_layer())


def _change(now: Any, base: Any) -> torch.Tensor:
    change = now.weight.double() - base.weight.double()
    return (change + _low(now, change) - _low(base, change)).float()


def _low(module: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(module, Unmerged):
        return module.up.double() @ module.down.double()
    return torch.zeros_like(like)
