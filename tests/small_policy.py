"""A policy small enough for tests: the embedded architecture, built from the tiny recipe's
demonstrations, not trained unless asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rft import config, recipe
from rft.chat.renderer import Chat
from rft.models import embedded
from rft.stages import policy
from rft.tools.signatures import schemas
from rft.trainer.sft_samples import sft_samples

ARCHITECTURE = config.Architecture(
    layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, feed_forward=64, max_positions=256, merges=60
)


def build(
    recipe_folder: Path, seed: int = 0, steps: int = 0, work: Path | None = None, structured: bool = True
) -> tuple[Any, Chat]:
    """(model, chat); with `steps`, warm-started for as many."""
    ours = recipe.load(config.Recipe(path=str(recipe_folder)))
    demonstrations = list(ours.demonstrations(256, 0))
    tools = schemas(ours)
    tokenizer = embedded.build_tokenizer(policy.texts(demonstrations), tools, ours.vocabulary(), ARCHITECTURE.merges)
    chat = Chat(tokenizer, tools)
    network = embedded.build_model(ARCHITECTURE.model_copy(update={"structured_init": structured}), tokenizer, seed)
    if steps:
        assert work is not None
        section = config.Policy(
            architecture=ARCHITECTURE, warm_start=config.WarmStart(demonstrations=256, steps=steps, batch=8, lr=4e-3)
        )
        policy.warm_start(network, sft_samples(chat, demonstrations, None)[0], section, work, device())
    return network.eval(), chat


def save(network: Any, chat: Chat, folder: Path) -> Path:
    network.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    return folder


def device() -> torch.device:
    return torch.device("cpu")
