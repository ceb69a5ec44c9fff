"""Small random models in the shapes of families that people bring: Qwen3, Llama 3, SmolLM.

A folder is what a hub would give: sharded safetensors, a config, a generation_config.json with its
list of end tokens, a tokenizer that was trained here and has the family's special tokens, and a
chat template of our own wording in the family's form. The vocabulary has 150,000 rows, most of them
padding that no tokenizer knows, as in the real ones.

A model of random weights never ends a turn. So one dimension of the residual stream is nearly
constant, and the head's rows for a few tokens are larger there: the turn's end, a second end that
only generation_config.json names, and one added token that spells a whole call. With that a rollout
has turns, calls, tool results and answers, and its words still depend on the context.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests import families
from tests.families import Family

VOCABULARY = 150_000
MAX_POSITIONS = 8192
KEY = "k0003"


@dataclass(frozen=True)
class Pretrained:
    """One family. `call`: how it writes a call, with KEY as its argument."""

    tokens: Family
    template: str
    shape: dict[str, Any]
    call: str
    tied: bool
    other_end: str
    """An end token that the model's generation_config.json names beside the turn's own."""
    pad: str | None
    config: dict[str, Any] = field(default_factory=dict)
    adds_start: bool = False
    """Whether the tokenizer itself puts a start token before each text that it encodes."""


_HERMES_CALL = f'<tool_call>\n{{"name": "lookup", "arguments": {{"key": "{KEY}"}}}}\n</tool_call>'
_LLAMA_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}

PRETRAINED = {
    "qwen3": Pretrained(
        tokens=families.FAMILIES["qwen3"],
        template="qwen3",
        shape={"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        call=_HERMES_CALL,
        tied=False,
        other_end="<|endoftext|>",
        pad="<|endoftext|>",
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "llama3": Pretrained(
        tokens=families.FAMILIES["llama3"],
        template="llama3",
        shape={"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2},
        call=f'{{"name": "lookup", "parameters": {{"key": "{KEY}"}}}}',
        tied=False,
        other_end="<|end_of_text|>",
        pad=None,
        config={"rope_parameters": _LLAMA_SCALING},
        adds_start=True,
    ),
    "smollm": Pretrained(
        tokens=Family("hermes", "<|im_end|>", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), start="<|im_start|>"),
        template="smollm",
        shape={"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
        call=_HERMES_CALL,
        tied=True,
        other_end="<|endoftext|>",
        pad="<|im_end|>",
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    ),
}


def tokenizer(name: str, speaks: bool = True) -> Any:
    """Train the family's tokenizer. `speaks`: with the added token that spells a whole call."""
    from tokenizers import AddedToken, normalizers, processors

    one = PRETRAINED[name]
    template = (families.TEMPLATES / f"{one.template}.jinja").read_text(encoding="utf-8")
    made = families.build_of(one.tokens, template)
    made.pad_token = one.pad
    backend = made.backend_tokenizer
    if name == "qwen3":
        backend.normalizer = normalizers.NFC()
    if one.adds_start:
        start = one.tokens.start
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, made.convert_tokens_to_ids(start))]
        )
    if speaks:
        made.add_tokens([AddedToken(one.call, normalized=False)])
    return made


def network(name: str, ours: Any, seed: int = 0) -> Any:
    """Build the model for this tokenizer, a function of the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    one = PRETRAINED[name]
    kinds: tuple[Any, Any] = (Qwen3Config, Qwen3ForCausalLM) if name == "qwen3" else (LlamaConfig, LlamaForCausalLM)
    ends = [ours.eos_token_id, ours.convert_tokens_to_ids(one.other_end)]
    description = kinds[0](
        vocab_size=VOCABULARY,
        intermediate_size=56,
        num_hidden_layers=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=one.tied,
        initializer_range=0.1,
        bos_token_id=ours.bos_token_id,
        eos_token_id=ends,
        pad_token_id=ours.pad_token_id,
        **one.shape,
        **one.config,
    )
    torch.manual_seed(seed)
    built = kinds[1](description)
    with torch.no_grad():
        for parameter_name, parameter in built.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        _let_speak(built, ours, ends, ours.convert_tokens_to_ids(one.call))
    built.generation_config.eos_token_id = ends
    return built.eval()


def _let_speak(built: Any, ours: Any, ends: list[int], call: int) -> None:
    """Give every embedding the same first dimension, and the head's rows a larger one for what
    should be said often."""
    rows = [built.get_input_embeddings().weight]
    if not built.config.tie_word_embeddings:
        rows.append(built.get_output_embeddings().weight)
    for weight in rows:
        weight.normal_(0, 0.2)
        weight[:, 0] = 4.0
        weight[: len(ours), 0] = 4.75
        weight[ends, 0] = 5.05
        weight[call, 0] = 5.1
    built.model.norm.weight[0] = 3.0


def make(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the model folder, its weights in several shards."""
    ours = tokenizer(name)
    network(name, ours, seed).save_pretrained(folder, max_shard_size="12MB")
    ours.save_pretrained(folder)
    assert len(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]) > 10
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder
