"""The embedded policy: a Qwen3 model of about a million parameters that learns on two CPU cores.

It really learns, so the whole ladder runs with it anywhere, without a download. The same code loads
`Qwen/Qwen3-4B`. Two things let such a small model use tools after minutes of warm start:

*The tokenizer.* The format is exactly Hermes, but each fixed piece of the wrapper is one added
token, so the JSON of a call is well formed without constrained decoding. The recipe adds pieces of
its own (`vocabulary` in demonstrations.py, such as code categories). Words carry their leading
space everywhere, so that a word has the same tokens in note, query and hit.

*Structured initialization* (an option, for models built from scratch only). From plain random
weights a model of this size does not discover copying within the budget: next-token accuracy on
repeated random strings stays at 28 % after 96 core-seconds. So `_write_copying` writes two heads
into the otherwise random weights. Layer 0 gets a previous-token head. Layer 1 gets an induction
head, which finds the last place of the current token and copies what followed. The rest is learned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rft.config import Architecture

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

TEMPLATE = r"""
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{{- '<|im_start|>system\n' + system }}
{%- if tools %}
    {{- '\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' }}
    {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or turns[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or turns[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
            {%- set arguments = call.function.arguments if call.function.arguments is string else call.function.arguments | tojson %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + arguments + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""  # noqa: E501 (a template: each byte of it counts)


def build_tokenizer(texts: Iterable[str], tools: list[dict[str, Any]], vocabulary: list[str], merges: int) -> Any:
    """Train a byte-level BPE on `texts`, and add one token for each fixed piece of template, calls
    and recipe vocabulary."""
    bpe = Tokenizer(models.BPE())
    words = Regex(r" ?[\p{L}]+|\.[0-9A-Z]+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    steps = [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    bpe.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(  # type: ignore[call-arg]
        vocab_size=256 + merges,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([PAD, START, END])
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    pieces = [*_template_pieces(tokenizer, tools), *_call_pieces(tools), *vocabulary]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in dict.fromkeys(pieces)])
    return tokenizer


def _template_pieces(tokenizer: Any, tools: list[dict[str, Any]]) -> list[str]:
    """Find the fixed text between what varies: system prompt, user message, tool results."""
    marks = ["\u241e1", "\u241e2", "\u241e3", "\u241e4"]
    messages = [
        {"role": "system", "content": marks[0]},
        {"role": "user", "content": marks[1]},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": marks[2]},
        {"role": "tool", "content": marks[3]},
    ]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    pieces = []
    for mark in marks:
        piece, text = text.split(mark)
        pieces.append(piece)
    pieces.append(text)
    opening, assistant = pieces[2].split(f"{START}assistant\n")
    reply = assistant.removeprefix(END)  # what follows an assistant's own end token
    return [pieces[0], pieces[1], f"{opening}{START}assistant\n", reply, pieces[3], pieces[4]]


def _call_pieces(tools: list[dict[str, Any]]) -> list[str]:
    """Return a call up to its first argument's value, and its end. `\"}}` closes a call whose last
    argument is a string."""
    pieces = ['"}}\n</tool_call>', "}}\n</tool_call>", '"}}\n</tool_call>\n']
    for tool in tools:
        function = tool["function"]
        names = list(function["parameters"].get("properties", {}))
        if names:
            pieces.append(f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {{"{names[0]}": "')
        pieces += [f'", "{name}": ' for name in names[1:]]
    return pieces


def build_model(architecture: Architecture, tokenizer: Any, seed: int) -> Any:
    """Build an untrained Qwen3ForCausalLM, a function of its config and the seed."""
    a = architecture
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=a.hidden,
        intermediate_size=a.feed_forward,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_dim,
        max_position_embeddings=a.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        attention_dropout=0.0,
    )
    model = Qwen3ForCausalLM(config)
    if a.structured_init:
        _write_copying(model)
    return model


@torch.no_grad()
def _write_copying(model: Any) -> None:
    """Write a previous-token head (layer 0, head 0) and an induction head (layer 1, one query head
    per KV head).

    The residual stream is divided. Dimension 0 is a constant that every embedding carries, `slot`
    is empty at the start, and `code` identifies the token by random numbers.

    Layer 0: all tokens have the same query and the same key. The query's rotary phases are turned
    back by one position, so the score peaks one position earlier. The value copies the previous
    token's code into the slot.

    Layer 1: the query is the current token's code, and the key is the slot. Both are on the slow
    rotary pairs, where position hardly turns them. The value copies the found token's embedding,
    and the tied head turns it into that token's logit.

    This needs slow pairs: rope_theta 1e6, head_dim 48. Sharpness comes from the scale of q_norm and
    k_norm (QK scores are normalized).
    """
    config = model.config
    hidden, dim, half = config.hidden_size, config.head_dim, config.head_dim // 2
    width = dim // 2  # of a token's code
    slot, code = torch.arange(1, 1 + width), torch.arange(1 + width, 1 + 2 * width)
    slow = torch.cat([torch.arange(half // 2, half), torch.arange(half + half // 2, dim)])
    fast = torch.arange(0, 4)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, 0.5)
    embedding[:, 0] = 3.0
    embedding[:, slot] = 0.0
    phase = 1e6 ** (-fast.double() / half)

    first = model.model.layers[0].self_attn
    key = torch.zeros(dim)
    key[fast] = 1.0
    query = torch.zeros(dim)
    query[fast], query[fast + half] = torch.cos(phase).float(), -torch.sin(phase).float()
    for weight, head, vector in ((first.k_proj.weight, 0, key), (first.q_proj.weight, 0, query)):
        block = weight[head * dim : (head + 1) * dim]
        block.zero_()
        block[:, 0] = vector
    first.q_norm.weight.fill_(3.0)
    first.k_norm.weight.fill_(3.0)
    _route(first, head=0, kv_head=0, read=code, write=slot, gain=1.0)

    second = model.model.layers[1].self_attn
    heads_per_kv = config.num_attention_heads // config.num_key_value_heads
    content = torch.arange(1 + width, hidden)
    for kv in range(config.num_key_value_heads):
        head = kv * heads_per_kv
        q_block = second.q_proj.weight[head * dim : (head + 1) * dim]
        k_block = second.k_proj.weight[kv * dim : (kv + 1) * dim]
        q_block.zero_()
        k_block.zero_()
        q_block[slow, code] = 1.0
        k_block[slow, slot] = 1.0
        part = content[kv * dim : (kv + 1) * dim]
        _route(second, head=head, kv_head=kv, read=part, write=part, gain=2.0)
    second.q_norm.weight.fill_(2.0)
    second.k_norm.weight.fill_(2.0)


def _route(attention: Any, head: int, kv_head: int, read: torch.Tensor, write: torch.Tensor, gain: float) -> None:
    """Copy what the head attends to from residual dimensions `read` to `write`."""
    dim = attention.head_dim
    value = attention.v_proj.weight[kv_head * dim : (kv_head + 1) * dim]
    out = attention.o_proj.weight[:, head * dim : (head + 1) * dim]
    value.zero_()
    out.zero_()
    lanes = torch.arange(len(read))
    value[lanes, read] = 1.0
    out[write, lanes] = gain
