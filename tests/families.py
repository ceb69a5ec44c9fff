"""Tokenizers of the families that people use: byte-level BPE of a few hundred merges, with each
family's own special tokens and a chat template of tests/templates. Small, but with what matters
here: control tokens that are one token each, and text that can be cut in more than one way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class Family:
    format: str
    end: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    """Added tokens that are not special, as Qwen's <tool_call>."""
    start: str | None = None


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
_HARMONY = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)
_MISTRAL = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
_MISTRAL_11 = (*_MISTRAL, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")

FAMILIES = {
    "qwen2_5": Family("hermes", "<|im_end|>", _CHATML, _QWEN[:2]),
    "qwen3": Family("hermes", "<|im_end|>", _CHATML, _QWEN),
    "llama3": Family("llama3", "<|eot_id|>", _LLAMA, start="<|begin_of_text|>"),
    "mistral_v3": Family("mistral", "</s>", _MISTRAL, start="<s>"),
    "mistral_v11": Family("mistral", "</s>", _MISTRAL_11, start="<s>"),
    "gpt_oss": Family("gpt-oss", "<|return|>", _HARMONY, start="<|startoftext|>"),
}

TEXTS = (
    'I look it up. The code is {"name": "lookup", "arguments": {"key": "k0001"}} I20.9 and {"query": "angina '
    'pectoris", "n": 3}',
    "which value has the key? angina pectoris, asthma, the words of a note and their codes; a result: nothing found "
    "\n\n  9153",
)


@cache
def tokenizer(name: str) -> Any:
    """The same one each time: leave it as it is, or take `build`."""
    return build(name)


def build(name: str, template: str | None = None, texts: Iterable[str] = TEXTS, merges: int = 300) -> Any:
    if template is None:
        template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return build_of(FAMILIES[name], template, texts, merges)


def build_of(family: Family, template: str, texts: Iterable[str] = TEXTS, merges: int = 300) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )  # type: ignore[call-arg]
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens(list(family.special))
    bpe.add_tokens([AddedToken(token, normalized=False) for token in family.added])
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=family.start,
        eos_token=family.end,
        pad_token=family.special[0],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made
