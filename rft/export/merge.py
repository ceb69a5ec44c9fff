"""Merge a base model and what was trained on it: in float32, cast once at the end, and measured.

A small change may be lost in the cast: bfloat16 has eight bits, and a change of less than half of
the last one moves a weight not at all. So the export says how far training and cast moved the
weights, and how much of the learned change is left: the cosine between the change as learned and
the change in the files, over all trained weights. 1: all of it. Near 0: serve the adapter, or
float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rft import config, reports
from rft.errors import UserError
from rft.models import weights
from rft.models.source import Source
from rft.models.weights import Weights


class Moved(reports.Report):
    """The largest changes of a single weight. `kept`: the cosine; None when nothing was trained."""

    by_training: float
    by_cast: float
    kept: float | None


@torch.no_grad()
def write(source: Source, kind: Weights, folder: Path | None, target: Path, dtype: str) -> Moved:
    """Write a model folder with its tokenizer; return what moved."""
    device = torch.device("cpu")
    network, tokenizer = weights.load(source, config.Policy(dtype="float32", device="cpu"), device)
    cast = getattr(torch, dtype)
    learned = _Cosine()
    for base, delta in _changes(network, kind, folder):
        learned.add(delta, (base + delta).to(cast).float() - base.to(cast).float())
    whole = weights.with_weights(network, kind, folder, device)
    moves = (float((each - each.to(cast).float()).abs().max()) for each in whole.parameters() if each.numel())
    by_cast = max(moves, default=0.0)
    if not math.isfinite(by_cast):
        raise UserError(f"--dtype {dtype}: some weights are larger than it can hold. Choose bfloat16 or float32.")
    whole.to(cast).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return Moved(by_training=learned.largest, by_cast=by_cast, kept=learned.value)


def _changes(network: Any, kind: Weights, folder: Path | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(base, what training adds) of each trained weight, in float32. The network is not changed."""
    if kind == "none" or folder is None:
        return
    from safetensors import safe_open

    if kind == "full":
        base = network.state_dict()
        with safe_open(folder / "model.safetensors", framework="pt") as trained:
            for name in trained.keys():  # noqa: SIM118
                if name in base:
                    yield base[name], trained.get_tensor(name).float() - base[name]
        return
    yield from weights.adapter_changes(network, folder)


class _Cosine:
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
        if not self._ours:
            return None
        return self._dot / math.sqrt(self._ours * self._theirs) if self._theirs else 0.0
