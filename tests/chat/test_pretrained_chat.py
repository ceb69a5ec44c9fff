"""Chat of the families in tests/pretrained.py: what a policy writes reads back as calls, thoughts
stay in an append-only context, and every end token that the model names ends a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rft.chat.renderer import Chat, prefix_problems
from rft.models import weights
from rft.types import Message, ToolCall
from tests import families, pretrained

PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "A value.", "parameters": PARAMETERS}}]
NAMES = list(pretrained.PRETRAINED)
QUESTION: Message = {"role": "user", "content": "value of k0001"}


def chat_of(name: str) -> Chat:
    return Chat(pretrained.tokenizer(name, speaks=False), TOOLS)


def call(arguments: str, number: int = 0) -> dict[str, Any]:
    return {"id": f"call_0_{number}", "type": "function", "function": {"name": "lookup", "arguments": arguments}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", ['{"key": "k0001"}', '{"key": "é \\"漢\\"\\n<|im_end|><|eot_id|>"}', "{}"])
def test_what_the_policy_wrote_reads_back_as_its_calls(name: str, arguments: str):
    chat = chat_of(name)
    spoken: Message = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
    ids, loss_mask = chat.dialogue_ids([QUESTION, spoken])
    own = [token for token, is_own in zip(ids, loss_mask, strict=True) if is_own]
    (read,) = chat.read(own, 0)[1].calls
    assert (read.name, json.loads(read.arguments), read.problem) == ("lookup", json.loads(arguments), "")


@pytest.mark.parametrize("name", NAMES)
def test_a_start_token_is_there_once_and_only_where_the_template_writes_it(name: str):
    chat, start = chat_of(name), pretrained.PRETRAINED[name].tokens.start
    prompt = chat.prompt_ids([QUESTION])
    reply = chat.tool_result_ids([ToolCall("call_0_0", "lookup", "{}")], ["9153"])
    if name == "llama3":
        token = chat.tokenizer.convert_tokens_to_ids(start)
        assert chat.tokenizer("x").input_ids[0] == token, "the tokenizer adds one to any text"
        assert (prompt.index(token), prompt.count(token), reply.count(token)) == (0, 1, 0)
    assert chat.tokenizer.decode(prompt, clean_up_tokenization_spaces=False) == chat.render([QUESTION])


@pytest.mark.parametrize("name", NAMES)
def test_plain_dialogues_of_tool_calls_keep_their_prefix(name: str):
    assert [problem for problem in prefix_problems(chat_of(name)) if problem.startswith("tool calls")] == []


# -- the model's own ends --------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_each_end_that_the_model_names_ends_a_turn(name: str, tmp_path: Path):
    """The text of the second one must not become a part of the answer."""
    one = pretrained.PRETRAINED[name]
    ours = pretrained.tokenizer(name, speaks=False)
    ends = [ours.eos_token_id, ours.convert_tokens_to_ids(one.other_end)]
    ours.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": ends[0]}))
    before = Chat(weights.tokenizer(str(tmp_path)), TOOLS)
    assert ends[1] not in before.end_ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    chat = Chat(weights.tokenizer(str(tmp_path)), TOOLS)
    assert chat.end_id == before.end_id == ends[0]
    assert set(chat.end_ids) == {*before.end_ids, *ends}
    text, reading = chat.read([*chat.encode("9153"), ends[1]], 0)
    assert (text, reading.content) == ("9153", "9153")
    called = chat.format.write({"role": "assistant", "content": "", "tool_calls": [call("{}")]})
    assert [one.problem for one in chat.read([*chat.encode(called), ends[1]], 0)[1].calls] == [""]
    results = [ToolCall("call_0_0", "lookup", "{}")], ["9153"]
    assert chat.tool_result_ids(*results) == before.tool_result_ids(*results)


def test_the_ends_in_config_json_count_where_there_is_no_generation_config(tmp_path: Path):
    ours = pretrained.tokenizer("qwen3", speaks=False)
    ours.save_pretrained(tmp_path)
    other = ours.convert_tokens_to_ids("<|endoftext|>")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": other}))
    assert other in Chat(weights.tokenizer(str(tmp_path)), TOOLS).end_ids


# -- thoughts --------------------------------------------------------------------------------------
THOUGHTFUL: Message = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "Look it up.",
    "tool_calls": [call('{"key": "k0001"}')],
}


def test_a_thought_before_a_call_stays_in_the_context_of_the_next_turn():
    """The template drops it once there is a later question; a rollout never takes a token back."""
    chat = chat_of("qwen3")
    result: Message = {"role": "tool", "tool_call_id": "call_0_0", "content": "9153"}
    answer: Message = {"role": "assistant", "content": "9153", "reasoning_content": "I have it."}
    ids, loss_mask = chat.dialogue_ids([QUESTION, THOUGHTFUL, result, answer])
    opening = len(chat.prompt_ids([QUESTION]))
    first = ids[opening : opening + loss_mask[opening:].index(False)]
    text, reading = chat.read(first, 0)
    assert text.startswith("<think>\nLook it up.\n</think>\n\n<tool_call>")
    assert (reading.reasoning, reading.content, len(reading.calls)) == ("Look it up.", "", 1)
    whole = chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert whole.count("<think>") == 2
    assert whole == chat.render([QUESTION, THOUGHTFUL, result, answer], start=False).removesuffix("\n")
    assert any(one.startswith("reasoning before a later question") for one in prefix_problems(chat))


def test_without_thinking_each_turn_begins_behind_an_empty_thought():
    """As `enable_thinking: false` makes the template do."""
    source = (families.TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    tokenizer = families.build("qwen3", "{%- set enable_thinking = false -%}" + source)
    chat = Chat(tokenizer, TOOLS)
    empty = "<think>\n\n</think>\n\n"
    assert chat.render([QUESTION]).endswith(f"<|im_start|>assistant\n{empty}")
    reply = chat.tool_result_ids([ToolCall("call_0_0", "lookup", "{}")], ["9153"])
    assert tokenizer.decode(reply, clean_up_tokenization_spaces=False).endswith(f"<|im_start|>assistant\n{empty}")
    text, reading = chat.read([*chat.encode("9153"), chat.end_id], 1)
    assert (text, reading.content, reading.reasoning, reading.problem) == ("9153", "9153", "", "")
    spoken: Message = {"role": "assistant", "content": "", "tool_calls": [call('{"key": "k0001"}')]}
    ids, loss_mask = chat.dialogue_ids([QUESTION, spoken])
    own = [token for token, is_own in zip(ids, loss_mask, strict=True) if is_own]
    assert not tokenizer.decode(own).startswith("<think>"), "the template wrote it, not the policy"
    assert len(chat.read(own, 0)[1].calls) == 1


def test_without_thinking_a_recorded_thought_is_not_taught():
    """A demonstration's thought behind the empty one would read as an error."""
    source = (families.TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    chat = Chat(families.build("qwen3", "{%- set enable_thinking = false -%}" + source), TOOLS)
    ids, loss_mask = chat.dialogue_ids([QUESTION, THOUGHTFUL])
    own = [token for token, is_own in zip(ids, loss_mask, strict=True) if is_own]
    reading = chat.read(own, 0)[1]
    assert (reading.problem, len(reading.calls)) == ("", 1)
