"""Messages to tokens and back: nothing that was sampled is encoded twice, and a broken call is
never an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import forks
from rft import config
from rft.chat.renderer import Chat, ParseError, assistant_text, parse_calls, prefix_problems
from rft.errors import UserError
from rft.reports import PromptSettings
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.scale import UNIT
from rft.types import Example, Grade, Message, Scored, StopReason, ToolCall
from tests import families, small_policy, tiny_recipe
from tests.scripted_policy import ScriptedTurn, scripted

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": " k0001"}}\n</tool_call>'
PARAMETERS = {
    "type": "object",
    "properties": {"key": {"type": "string", "description": "the key"}},
    "required": ["key"],
}
TOOLS = [
    {"type": "function", "function": {"name": "lookup", "description": "Looks a key up.", "parameters": PARAMETERS}}
]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))[1]


def family(name: str, template: str | None = None) -> Chat:
    return Chat(families.tokenizer(name) if template is None else families.build(name, template), TOOLS)


def dialogue(outputs: list[str]) -> list[dict]:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "lookup", "arguments": '{"key": " k0001"}'}}
        for n in range(len(outputs))
    ]
    return [
        {"role": "system", "content": " be brief"},
        {"role": "user", "content": "value of k0001"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": call["id"], "content": output}
            for call, output in zip(calls, outputs, strict=True)
        ),
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
        assert "tool_call>" in text or "think>" in text


def test_assistant_text_and_its_calls_are_inverse():
    calls = [
        {"type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in parse_calls(f"{CALL}\n{CALL}")
    ]
    assert assistant_text({"role": "assistant", "content": "", "tool_calls": calls}) == f"{CALL}\n{CALL}"


@pytest.mark.slow
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\u241e")), min_size=1, max_size=3))
def test_a_rollout_token_by_token_reads_like_the_template(outputs: list[str]):
    chat = test_a_rollout_token_by_token_reads_like_the_template.chat  # type: ignore[attr-defined]
    messages = dialogue(outputs)
    ids, loss_mask = chat.dialogue_ids(messages)
    whole = chat.tokenizer.apply_chat_template(messages, tools=chat.tools, tokenize=False)
    assert chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == whole.removesuffix("\n")
    assert len(ids) == len(loss_mask)


@pytest.fixture(autouse=True)
def _give_chat(chat: Chat) -> None:
    test_a_rollout_token_by_token_reads_like_the_template.chat = chat  # type: ignore[attr-defined]


def test_the_mask_covers_what_the_policy_says_and_its_end(chat: Chat):
    ids, loss_mask = chat.dialogue_ids(dialogue(["9153"]))
    spoken = [token for token, own in zip(ids, loss_mask, strict=True) if own]
    assert (
        chat.tokenizer.decode(spoken)
        == '<tool_call>\n{"name": "lookup", "arguments": {"key": " k0001"}}\n</tool_call><|im_end|>9153<|im_end|>'
    )


def test_fixed_pieces_are_one_token_each(chat: Chat):
    assert len(chat.encode('<tool_call>\n{"name": "lookup", "arguments": {"key": "')) == 1
    assert len(chat.encode('"}}\n</tool_call>')) == 1


def test_a_tokenizer_without_a_template_is_refused(chat: Chat, tmp_path: Path):
    chat.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    from transformers import AutoTokenizer

    with pytest.raises(UserError, match="chat template"):
        Chat(AutoTokenizer.from_pretrained(tmp_path), [])


# -- families --------------------------------------------------------------------------------------
BETWEEN = {
    "qwen2_5": (
        "\n<|im_start|>user\n<tool_response>\n "
        "a\n\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ),
    "qwen3": (
        "\n<|im_start|>user\n<tool_response>\n "
        "a\n\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ),
    "llama3": (
        '<|start_header_id|>ipython<|end_header_id|>\n\n" '
        'a\\n"<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"b"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral_v3": (
        '[TOOL_RESULTS] {"content": " a\\n", "call_id": "667848c66"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": "b", "call_id": "22b6a9894"}[/TOOL_RESULTS]'
    ),
    "mistral_v11": "[TOOL_RESULTS] a\n[/TOOL_RESULTS][TOOL_RESULTS]b[/TOOL_RESULTS]",
    "gpt_oss": (
        '<|start|>functions.lookup to=assistant<|channel|>commentary<|message|>" a\\n"<|end|>'
        '<|start|>functions.other to=assistant<|channel|>commentary<|message|>"b"<|end|><|start|>assistant'
    ),
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_what_stands_between_two_turns_is_the_templates_own(name: str):
    chat = family(name)
    ids = chat.tool_result_ids(
        [ToolCall("call_0_0", "lookup", "{}"), ToolCall("call_0_1", "other", "{}")], [" a\n", "b"]
    )
    assert chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == BETWEEN[name]
    assert chat.tool_result_ids([ToolCall("call_0_0", "", "", "not JSON")], ["Error: not JSON"]), (
        "a call without a name is answered too"
    )


@pytest.mark.parametrize("name", families.FAMILIES)
@settings(max_examples=30)
@given(
    outputs=st.lists(st.text(alphabet=st.characters(codec="utf-8")), min_size=1, max_size=2),
    query=st.text(st.characters(codec="utf-8")),
)
def test_replies_and_context_grow_as_the_template_would_write_them(name: str, outputs: list[str], query: str):
    """The prompt, what was sampled and the replies, token by token, read like the template's own
    rendering of the same messages."""
    chat = family(name)
    if name in ("llama3", "gpt_oss"):  # their templates write one call a turn
        outputs = outputs[:1]
    message: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [called(n, query) for n in range(len(outputs))],
    }
    opening: list[Message] = [{"role": "user", "content": "value of k0001"}]
    text, reading = chat.read([*chat.encode(chat.format.write(message)), chat.end_ids[-1]], 0)
    assert [json.loads(call.arguments) for call in reading.calls] == [{"key": query}] * len(outputs)
    ours = chat.render(opening) + text + END_OF_CALLS[name]
    ours += chat.tokenizer.decode(chat.tool_result_ids(reading.calls, outputs), clean_up_tokenization_spaces=False)
    tools = [
        {"role": "tool", "tool_call_id": call.call_id, "content": output}
        for call, output in zip(reading.calls, outputs, strict=True)
    ]
    theirs = chat.render([*opening, message, *tools])
    # the recipient on the other side of the channel, and a type without its mark: the model's way
    # and the template's
    if name == "gpt_oss":
        theirs = theirs.replace(
            " to=functions.lookup<|channel|>commentary json",
            "<|channel|>commentary to=functions.lookup <|constrain|>json",
        )
    if name == "mistral_v3":  # the template writes ids that no policy wrote
        theirs = theirs.replace(', "id": "667848c66"}', "}").replace(', "id": "22b6a9894"}', "}")
    assert ours == theirs


def called(n: int, query: str) -> dict[str, Any]:
    arguments = json.dumps({"key": query}, ensure_ascii=False)
    return {"id": f"call_0_{n}", "type": "function", "function": {"name": "lookup", "arguments": arguments}}


END_OF_CALLS = {
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "mistral_v3": "</s>",
    "mistral_v11": "</s>",
    "gpt_oss": "<|call|>",
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_turn_ends_with_any_of_its_families_ends(name: str):
    chat = family(name)
    known = {"llama3": {"<|eot_id|>", "<|eom_id|>"}, "gpt_oss": {"<|return|>", "<|call|>"}}.get(
        name, {families.FAMILIES[name].end}
    )
    assert {chat.tokenizer.convert_ids_to_tokens(token) for token in chat.end_ids} == known
    assert chat.end_id == chat.tokenizer.eos_token_id
    ids = chat.encode("value")
    assert [chat.text([*ids, end]) for end in chat.end_ids] == ["value"] * len(chat.end_ids)
    assert chat.text(ids) == "value", "a turn that was cut has none"


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_recorded_dialogue_becomes_tokens_as_a_rollout_would_have_them(name: str):
    chat = family(name)
    messages = [
        message | ({"tool_call_id": "call_0_0"} if message["role"] == "tool" else {}) for message in dialogue(["9153"])
    ]
    messages[2] = {**messages[2], "tool_calls": [called(0, " k0001")]}
    ids, loss_mask = chat.dialogue_ids(messages)
    spoken = [token for token, own in zip(ids, loss_mask, strict=True) if own]
    turns = [
        chat.format.write(messages[2]),
        END_OF_CALLS[name],
        chat.format.write(messages[-1]),
        families.FAMILIES[name].end,
    ]
    assert chat.tokenizer.decode(spoken, clean_up_tokenization_spaces=False) == "".join(turns)
    assert ids[: len(chat.prompt_ids(messages[:2]))] == chat.prompt_ids(messages[:2])
    assert chat.dialogue_text(messages) == chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_dialogue_with_a_second_question_is_the_policys_only_where_it_speaks(chat: Chat):
    messages = [*dialogue(["9153"]), {"role": "user", "content": "and k0002?"}, {"role": "assistant", "content": "17"}]
    ids, loss_mask = chat.dialogue_ids(messages)
    assert chat.tokenizer.decode(ids) == chat.tokenizer.apply_chat_template(
        messages, tools=chat.tools, tokenize=False
    ).removesuffix("\n")
    assert chat.tokenizer.decode([token for token, own in zip(ids, loss_mask, strict=True) if own]).endswith(
        "9153<|im_end|>17<|im_end|>"
    )


# -- templates that begin the message themselves ---------------------------------------------------
def thinking(opened: str) -> Chat:
    source = (families.TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    return family(
        "qwen3",
        source.replace(
            "'<|im_start|>assistant\\n' -}}{%- endif -%}\n",
            f"'<|im_start|>assistant\\n{opened}' -}}}}{{%- endif -%}}\n",
        ),
    )


def test_reasoning_that_the_template_opened_is_closed_by_the_policy():
    chat = thinking("<think>\\n")
    text, reading = chat.read([*chat.encode("Look it up.\n</think>\n\n9153"), chat.end_id], 0)
    assert text == "Look it up.\n</think>\n\n9153"
    assert (reading.reasoning, reading.content) == ("Look it up.", "9153")
    assert chat.read(chat.encode("Look it up, and"), 0)[1].problem
    question: Message = {"role": "user", "content": "value of k0001"}
    thought = [question, {"role": "assistant", "content": "9153", "reasoning_content": "Look it up."}]
    assert chat.dialogue_text(thought).endswith("assistant\n<think>\nLook it up.\n</think>\n\n9153<|im_end|>")
    assert chat.dialogue_text([question, {"role": "assistant", "content": "9153"}]).endswith(
        "assistant\n<think>\n\n</think>\n\n9153<|im_end|>"
    )


def test_a_template_that_wants_no_reasoning_writes_it_empty():
    chat = thinking("<think>\\n\\n</think>\\n\\n")
    assert chat.read([*chat.encode("9153"), chat.end_id], 0)[1].content == "9153"
    messages: list[Message] = [{"role": "user", "content": "value of k0001"}, {"role": "assistant", "content": "9153"}]
    assert chat.dialogue_text(messages).endswith("assistant\n<think>\n\n</think>\n\n9153<|im_end|>")


# -- templates that do not keep their prefix -------------------------------------------------------
def test_the_embedded_template_keeps_its_prefix(chat: Chat):
    assert [problem for problem in prefix_problems(chat) if not problem.startswith("reasoning")] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("qwen3", "reasoning before a later question: earlier turns are written differently later"),
        ("gpt_oss", "reasoning before a later question: earlier turns are written differently later"),
        ("mistral_v3", "odd whitespace and unicode: earlier turns are written differently later"),
        ("mistral_v3", "tool calls: a turn is not written as sampled"),
        ("llama3", "two calls in a turn: the template refuses"),
        ("llama3", "odd whitespace and unicode: a turn is not written as sampled"),
    ],
)
def test_a_template_that_rewrites_what_was_said_is_found(name: str, wanted: str):
    assert [problem for problem in prefix_problems(family(name)) if problem.startswith(wanted)]


def test_a_prompt_that_changes_every_day_is_found():
    source = (families.TEMPLATES / "qwen2_5.jinja").read_text(encoding="utf-8")
    dated = source.replace(
        "'<|im_start|>system\\n'", "'<|im_start|>system\\nToday: ' + strftime_now('%d %b %Y') + '\\n'"
    )
    assert [problem for problem in prefix_problems(family("qwen2_5", dated)) if "today's date" in problem]
    assert not [problem for problem in prefix_problems(family("qwen2_5")) if "today's date" in problem]


def test_a_template_without_an_end_of_turn_is_refused():
    chat = family(
        "qwen2_5", (families.TEMPLATES / "qwen2_5.jinja").read_text(encoding="utf-8").replace("<|im_end|>", "")
    )
    with pytest.raises(UserError, match="end token"):
        chat.tool_result_ids([ToolCall("call_0_0", "lookup", "{}")], ["9153"])


# -- TRL's other traps -----------------------------------------------------------------------------
def test_trap_one_length_setting_means_one_thing():
    """What a turn may take, what a rollout may take, and what the loss divides by have names of
    their own."""
    limits = config.Rollout(max_tokens=1000, max_turn_tokens=10)
    assert (limits.max_tokens, limits.max_turn_tokens) == (1000, 10)
    with pytest.raises(ValueError, match="max_completion_length"):
        config.Rollout.model_validate({"max_completion_length": 10})


class NoTools:
    """A tool client that nothing may be sent to."""

    async def start(self, context: Any) -> None: ...

    async def end(self, context: Any, stop: Any) -> None: ...

    async def release(self, context: Any) -> None: ...

    async def call_all(self, calls: Any, context: Any, defaults: Any, arrived: Any) -> list[Any]:
        assert not calls, "sent"
        return []


class Zero:
    scale = UNIT

    async def grade(self, *told: Any) -> Grade:
        return Scored(0.0)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_trap_a_turn_cut_at_the_limit_ends_there_though_its_call_is_complete(name: str):
    chat = family(name)
    ids = chat.encode(chat.format.write({"role": "assistant", "content": "", "tool_calls": [called(0, "k0001")]}))
    text, reading = chat.read(ids, 0)
    assert len(reading.calls) == 1
    policy = scripted(ScriptedTurn(text, ended=False, ids=tuple(ids), logprobs=(-1.0,) * len(ids), reading=reading))
    requests = [Request(Example("n", ({"role": "user", "content": "k0001?"},), None), 0)]
    conditions = Conditions(PromptSettings(name="seed", system="", max_turns=4), 1.0, (0,), config.Rollout())
    (done,) = asyncio.run(run_rollouts(policy, cast(Any, NoTools()), cast(Any, Zero()), requests, conditions, {}))
    assert (done.stop_reason, len(done.turns), done.turns[0].results, done.reward) == (
        StopReason.max_tokens,
        1,
        (),
        0.0,
    )


# -- forks -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_our_own_context_never_forks_and_a_fork_elsewhere_is_never_trained_on(name: str):
    kept, anew, uncut = forks.played(name)
    assert (kept.forks, kept.unmarked, kept.silent) == (0, 0, 0)
    assert kept.turns >= 28
    assert anew.forks > 10
    assert anew.forks >= uncut.forks > 0
    assert (anew.unmarked, anew.silent, uncut.unmarked, uncut.silent) == (0, 0, 0, 0)


def test_a_fork_that_nobody_marks_is_counted(monkeypatch: pytest.MonkeyPatch):
    """The figure finds forks by itself: a loop that marks none is found out."""
    monkeypatch.setattr("rft.types.Trajectory.num_forks", 0)
    kept, anew, _ = forks.played("mistral_v11")
    assert (kept.silent, kept.unmarked) == (0, 0)
    assert anew.silent == anew.unmarked > 3
