"""Messages to tokens and back: nothing that was sampled is encoded twice, and a broken call is never an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.chat import Chat, ParseError, assistant_message, assistant_text, parse_calls
from tests import small_policy, tiny_recipe

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": " k0001"}}\n</tool_call>'


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))[1]


def dialogue(outputs: list[str]) -> list[dict]:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "lookup", "arguments": '{"key": " k0001"}'}} for n in range(len(outputs))]
    return [
        {"role": "system", "content": " be brief"},
        {"role": "user", "content": "value of k0001"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": output} for call, output in zip(calls, outputs, strict=True)),
        {"role": "assistant", "content": "9153"},
    ]


def test_reads_several_calls_in_order():
    calls = parse_calls(f"{CALL}\n{CALL}", turn=2)
    assert [call.call_id for call in calls] == ["call_2_0", "call_2_1"]
    assert json.loads(calls[0].arguments) == {"key": " k0001"}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}, "more": 1}\n</tool_call>',
        f"{CALL}\n<tool_call>\n",
        "</tool_call>",
        "<tool_call>\n" + "[" * 100_000 + "\n</tool_call>",
    ],
)
def test_a_broken_call_is_an_error_not_an_answer(text: str):
    with pytest.raises(ParseError):
        parse_calls(text)


@given(st.text())
def test_any_text_parses_or_is_refused(text: str):
    try:
        assert "<tool_call>" not in text or parse_calls(text)
    except ParseError:
        assert "tool_call>" in text


def test_assistant_text_and_message_are_inverse():
    message = assistant_message(f"{CALL}\n{CALL}", parse_calls(f"{CALL}\n{CALL}"))
    assert assistant_text(message) == f"{CALL}\n{CALL}"


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\u241e")), min_size=1, max_size=3))
def test_a_rollout_token_by_token_reads_like_the_template(outputs: list[str]):
    chat = test_a_rollout_token_by_token_reads_like_the_template.chat  # type: ignore[attr-defined]
    messages = dialogue(outputs)
    ids, mine = chat.dialogue_ids(messages)
    whole = chat.tokenizer.apply_chat_template(messages, tools=chat.tools, tokenize=False)
    assert chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == whole.removesuffix("\n")
    assert len(ids) == len(mine)


@pytest.fixture(autouse=True)
def _give_chat(chat: Chat) -> None:
    test_a_rollout_token_by_token_reads_like_the_template.chat = chat  # type: ignore[attr-defined]


def test_the_mask_covers_what_the_policy_says_and_its_end(chat: Chat):
    ids, mine = chat.dialogue_ids(dialogue(["9153"]))
    spoken = [token for token, own in zip(ids, mine, strict=True) if own]
    assert chat.tokenizer.decode(spoken) == '<tool_call>\n{"name": "lookup", "arguments": {"key": " k0001"}}\n</tool_call><|im_end|>9153<|im_end|>'


def test_fixed_pieces_are_one_token_each(chat: Chat):
    assert len(chat.encode('<tool_call>\n{"name": "lookup", "arguments": {"key": "')) == 1
    assert len(chat.encode('"}}\n</tool_call>')) == 1


def test_a_tokenizer_without_a_template_is_refused(chat: Chat, tmp_path: Path):
    from rft.errors import UserError

    chat.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    from transformers import AutoTokenizer

    with pytest.raises(UserError, match="chat template"):
        Chat(AutoTokenizer.from_pretrained(tmp_path), [])
