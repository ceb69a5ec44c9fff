"""Merge a base model and its trained weights in float32, cast once, and measure what is lost.

A cast may lose a small change. bfloat16 has eight bits, and a change of less than half of the last
bit does not move a weight. So the export says how far training and cast moved the weights, and how
much of the learned change is left. This is the cosine between the change as learned and the change
in the files, over all trained weights (rft/models/effect.py). A cast that loses some of the change
is refused. An adapter beside its base loses nothing, and neither does float32.
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
from rft.models.effect import AT_LEAST, Cosine
from rft.models.source import Source
from rft.models.weights import Weights


class Moved(reports.Report):
    """The largest changes of a single weight. `kept`: the cosine, or None if nothing was
    trained."""

    by_training: float
    by_cast: float
    kept: float | None


@torch.no_grad()
def write(source: Source, kind: Weights, folder: Path | None, target: Path, dtype: str, judged: str) -> Moved:
    """Write a model folder with its tokenizer, and return how far weights moved. The base weights
    are rounded to the format `judged`, as when they were judged. Raises UserError for a cast that
    would lose what was learned."""
    device = torch.device("cpu")
    network, tokenizer = weights.load(source, config.Policy(dtype="float32", device="cpu"), device)
    network = network.to(getattr(torch, judged)).float()
    cast = getattr(torch, dtype)
    learned = Cosine()
    for base, delta in _changes(network, kind, folder):
        learned.add(delta, (base + delta).to(cast).float() - base.to(cast).float())
    if learned.value is not None and not learned.value >= AT_LEAST:
        remedy = "Choose --dtype float32" + (
            ", or leave --merge out: the adapter is exported as it was trained." if kind == "lora" else "."
        )
        what = f"--dtype {dtype}: of what was learned, only a cosine of {learned.value:.3f} would be in these weights"
        raise UserError(f"{what}, below {AT_LEAST}. {remedy}")
    whole = weights.with_weights(network, kind, folder, device)
    moves = (float((each - each.to(cast).float()).abs().max()) for each in whole.parameters() if each.numel())
    by_cast = max(moves, default=0.0)
    if not math.isfinite(by_cast):
        raise UserError(f"--dtype {dtype}: some weights are larger than it can hold. Choose bfloat16 or float32.")
    whole.to(cast).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return Moved(by_training=learned.largest, by_cast=by_cast, kept=learned.value)


def _changes(network: Any, kind: Weights, folder: Path | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (base, what training adds) of each trained weight, in float32. The network is not
    changed."""
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
