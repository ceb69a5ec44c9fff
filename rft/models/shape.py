"""The shape of a model, without its weights.

On PyTorch's `meta` device tensors have a size and no memory, so a model of any size is built in a
second.

    skeleton         the whole model, or one of another number of layers
    num_parameters   how many numbers its weights have; tied weights count once
    num_positions    how many tokens a dialogue may have
"""

from __future__ import annotations

import copy
from typing import Any


def skeleton(description: Any, layers: int | None = None) -> Any:
    """Build a model without memory. `description`: transformers' configuration of it; `layers`:
    None for all."""
    import torch
    from transformers import AutoModelForCausalLM

    if layers is not None:
        description = copy.deepcopy(description)
        text = description.get_text_config()
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = (list(text.layer_types) * layers)[:layers]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(description, attn_implementation="sdpa", dtype=torch.float32)


def num_parameters(description: Any) -> int:
    """Count the parameters of the model that `description` (transformers' configuration)
    describes."""
    return sum(parameter.numel() for parameter in skeleton(description).parameters())


def num_positions(description: Any) -> int | None:
    """Return how many tokens a dialogue may have; None if the description does not say.

    If all layers look back through a window (Mistral 7B v0.1), it is the window. Up to there
    attention is full, and sampling and learning know no other attention.
    """
    text = description.get_text_config()
    told = (getattr(text, "max_position_embeddings", None), _window(text))
    return min((limit for limit in told if limit is not None), default=None)


def _window(text: Any) -> int | None:
    """Return the window that all layers have; None for layers of several kinds, which the sampler
    refuses."""
    return None if getattr(text, "layer_types", None) else getattr(text, "sliding_window", None)
