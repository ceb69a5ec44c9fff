"""What a policy wrote, read by the rules of its family: nothing that is broken becomes an answer,
and nothing good is lost beside it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.chat import formats
from rft.chat.formats import FAMILIES, Declared, Format, Mistral
from rft.errors import UserError
from rft.types import Message, Reading
from tests import families

KNOWN: dict[str, Format] = {**FAMILIES, "mistral v11": Mistral(named=True)}
TAGS = [tag for one in KNOWN.values() for tag in (*one.markup, *one.ends, *one.closes)]
PIECES = [
    *TAGS,
    '{"name": "f", ',
    '"arguments": {}}',
    '"parameters": {}}',
    "<tool_call>\n",
    "\n</tool_call>",
    " to=functions.f",
    "json",
    "; ",
    "f",
    "[",
]

GOOD = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"q": 1}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"q": 1}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}}]',
    "mistral v11": '[TOOL_CALLS]f[ARGS]{"q": 1}',
    "gpt-oss": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"q": 1}',
}


def function_call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


# -- reading ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", KNOWN)
def test_a_call_is_read(family: str) -> None:
    (call,) = KNOWN[family].read(GOOD[family], 3).calls
    assert (call.call_id, call.name, call.arguments, call.problem) == ("call_3_0", "f", '{"q": 1}', "")


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", f"<think>\nLet me see.\n</think>\n\n{GOOD['hermes']}"),
        ("mistral", f"[THINK]Let me see.[/THINK]{GOOD['mistral']}"),
        ("gpt-oss", f"<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant{GOOD['gpt-oss']}"),
    ],
)
def test_reasoning_is_no_content(family: str, text: str) -> None:
    reading = KNOWN[family].read(text, 0)
    assert (reading.reasoning, reading.content, len(reading.calls), reading.problem) == ("Let me see.", "", 1, "")


@pytest.mark.parametrize(
    ("family", "text", "content"),
    [
        ("hermes", "<think>\n<tool_call>?\n</think>\n\n I20.9 ", " I20.9 "),
        ("hermes", " I20.9 \n", " I20.9 \n"),
        ("llama3", ' {"codes": ["I20.9"]} ', ' {"codes": ["I20.9"]} '),
        ("llama3", 'The record is {"name": "Bob"}.', 'The record is {"name": "Bob"}.'),
        ("mistral", "I20.9 [sic]", "I20.9 [sic]"),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>I20.9",
            "I20.9",
        ),
        ("gpt-oss", "<|channel|>final<|message|>", ""),
    ],
)
def test_an_answer_is_read(family: str, text: str, content: str) -> None:
    reading = KNOWN[family].read(text, 0)
    assert (reading.content, reading.calls, reading.problem) == (content, (), "")


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"q": 1}}'),
        ("llama3", 'Wait.<|python_tag|>{"type": "function", "name": "f", "parameters": {"q": 1}}'),
        ("mistral", 'Wait.[TOOL_CALLS][{"name": "f", "arguments": {"q": 1}, "id": "abcdefghi"}]'),
        ("mistral", 'Wait.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"q": 1}'),
        ("gpt-oss", ' to=functions.f<|channel|>commentary json<|message|>{"q": 1}<|call|>'),
        ("gpt-oss", f"<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant{GOOD['gpt-oss']}<|call|>"),
    ],
)
def test_other_ways_to_write_the_same_call(family: str, text: str) -> None:
    reading = KNOWN[family].read(text, 0)
    assert [(call.name, call.arguments, call.problem) for call in reading.calls] == [("f", '{"q": 1}', "")]
    assert reading.content in ("", "Wait.")


# -- TRL's traps -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>\n{oops}"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        ("hermes", f"{GOOD['hermes']}\n<tool_call>\n"),
        ("hermes", "</tool_call>"),
        ("hermes", "<think>\nI will never stop"),
        ("hermes", "I20.9</think> or not"),
        ("llama3", '{"name": "f", "parameters": {"q": }}'),
        ("llama3", '{"name": "f"'),
        ("llama3", 'I call {"name": "f", "parameters": {}} now'),
        ("llama3", '{"name": "f", "parameters": {}} and so on'),
        ("llama3", "I20.9<|start_header_id|>user<|end_header_id|>"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}'),
        ("mistral", 'f[ARGS]{"q": 1}'),
        ("mistral", "[TOOL_RESULTS] 1[/TOOL_RESULTS]"),
        ("gpt-oss", "I20.9"),
        ("gpt-oss", ""),
        ("gpt-oss", "<|channel|>final"),
        ("gpt-oss", "<|channel|>analysis<|message|>I will never answer."),
        ("gpt-oss", "<|channel|>secret<|message|>I20.9"),
        ("gpt-oss", "<|channel|>final<|message|>I20.9<|channel|>final<|message|>I20.8"),
        ("gpt-oss", f"{GOOD['gpt-oss']}<|call|><|start|>assistant<|channel|>final<|message|>I20.9"),
    ],
)
def test_trap_a_broken_call_never_decodes_to_a_final_answer(family: str, text: str) -> None:
    reading = KNOWN[family].read(text, 0)
    assert reading.problem or any(call.problem for call in reading.calls)
    assert reading.content == ""


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", f"{GOOD['hermes']}\n<tool_call>\n{{oops}}\n</tool_call>\n{GOOD['hermes']}"),
        (
            "hermes",
            f'{GOOD["hermes"]}\n<tool_call>\n{{"name": "f", "arguments": "{{}}"}}\n</tool_call>\n{GOOD["hermes"]}',
        ),
        ("llama3", f'{GOOD["llama3"]}; {{"name": "f", "arguments": {{}}}}; {GOOD["llama3"]}'),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}}, {"name": "g"}, {"name": "f", "arguments": {"q": 1}}]',
        ),
        ("mistral", f"{GOOD['mistral v11']}[TOOL_CALLS]g[ARGS]{{oops}}{GOOD['mistral v11']}"),
        (
            "gpt-oss",
            f"{GOOD['gpt-oss']}<|call|><|start|>assistant<|channel|>commentary "
            f"to=python<|message|>x<|call|><|start|>assistant{GOOD['gpt-oss']}",
        ),
    ],
)
def test_trap_one_bad_call_drops_no_good_parallel_ones(family: str, text: str) -> None:
    reading = KNOWN[family].read(text, 0)
    assert reading.problem == ""
    assert [bool(call.problem) for call in reading.calls] == [False, True, False]
    assert [call.call_id for call in reading.calls] == ["call_0_0", "call_0_1", "call_0_2"]


def test_what_stands_behind_the_break_of_a_row_of_calls_is_one_bad_call() -> None:
    calls = (
        FAMILIES["llama3"].read(f'{GOOD["llama3"]}; {{"name": "f", "parameters": {{oops}}; {GOOD["llama3"]}', 0).calls
    )
    assert [bool(call.problem) for call in calls] == [False, True]


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity", '"\\ud800"', "9" * 5000, "[" * 100_000])
@pytest.mark.parametrize("family", KNOWN)
def test_arguments_that_no_wire_can_carry_are_a_problem(family: str, number: str) -> None:
    reading = KNOWN[family].read(GOOD[family].replace("1}", f"{number}}}"), 0)
    assert reading.problem or reading.calls[0].problem


def test_trap_a_template_is_not_recognized_by_its_exact_source() -> None:
    for name, family in families.FAMILIES.items():
        source = (families.TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        changed = families.build(name, "{#- mine -#}" + re.sub(r"(?<![|\w])message(?!\w)", "one", source))
        assert formats.from_tokenizer(changed).name == family.format


# -- properties ------------------------------------------------------------------------------------
@pytest.mark.slow
@given(st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join)))
def test_any_text_is_read_and_markup_is_never_content(text: str) -> None:
    for family in KNOWN.values():
        reading = family.read(text, 0)
        assert not (reading.problem and (reading.content or reading.calls))
        assert not any(tag in reading.content for tag in family.markup)
        for call in reading.calls:
            assert call.problem or isinstance(json.loads(call.arguments), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.text(), JSON | st.sampled_from([tag for tag in TAGS if tag not in formats.HERMES.ends]), max_size=3
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.from_regex(r"\A[\w-]{1,12}\Z"), ARGUMENTS), min_size=1, max_size=3))
def test_what_is_written_is_read_again(calls: list[tuple[str, dict[str, Any]]]) -> None:
    message: Message = {"role": "assistant", "content": "", "tool_calls": [function_call(*call) for call in calls]}
    for family in KNOWN.values():
        reading = family.read(family.write(message), 0)
        assert [(call.name, json.loads(call.arguments), call.problem) for call in reading.calls] == [
            (*call, "") for call in calls
        ]


@given(st.from_regex(r"\A[^<\[{|]{1,40}\Z"), st.from_regex(r"\A\w[^<\[{|]{0,40}\Z"))
def test_reasoning_and_answer_are_read_again(content: str, reasoning: str) -> None:
    reasoning = reasoning.strip("\n")
    for family in KNOWN.values():
        thought = "" if family.name == "llama3" else reasoning
        reading = family.read(family.write({"role": "assistant", "content": content, "reasoning_content": thought}), 0)
        expected = Reading(content.lstrip("\n") if family.name in ("hermes", "mistral") else content, (), thought)
        assert reading == expected


# -- which format ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_folders_template_says_its_format(name: str) -> None:
    found = formats.from_tokenizer(families.tokenizer(name))
    assert found.name == families.FAMILIES[name].format
    assert formats.from_tokenizer(families.tokenizer(name), found.name).name == found.name
    assert not isinstance(found, Mistral) or found.named == (name == "mistral_v11")


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message.role }}: {{ message.content }}<|im_end|>{% endfor %}",
        "{% for message in messages %}{% if message.tool_calls %}{{ raise_exception('no tools') }}{% endif %}{% "
        "endfor %}",
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] "
        "%}<tool_call>\n<function={{ call.function.name }}>"
        "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>{{ value }}</parameter>{% endfor "
        "%}{% endfor %}{% endfor %}",
    ],
)
def test_an_unknown_format_is_refused_with_the_known_names(template: str) -> None:
    tokenizer = families.build("qwen2_5", template)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(
        UserError, match=r"some/model: .*policy\.tool_format to one of hermes, llama3, mistral, gpt-oss"
    ):
        formats.from_tokenizer(tokenizer)
    assert formats.from_tokenizer(tokenizer, "hermes") is formats.HERMES


@given(st.text())
def test_ids_of_mistral_have_nine_characters_and_stay_apart(call_id: str) -> None:
    made = FAMILIES["mistral"].call_id(call_id)
    assert len(made) == 9
    assert made.isascii()
    assert made.isalnum()
    assert FAMILIES["mistral"].call_id("call_1_11") != FAMILIES["mistral"].call_id("call_11_1")


# -- transformers' own parser ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def declared() -> Format:
    """Qwen3's, as transformers' own server has it."""
    tokenizer = families.build("qwen3")
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
        },
    }
    return formats.from_tokenizer(tokenizer)


def test_a_tokenizer_that_declares_its_format_is_read_by_transformers(declared: Format) -> None:
    assert isinstance(declared, Declared)
    reading = declared.read(f"<think>\nHm.\n</think>\n\n{GOOD['hermes']}\n{GOOD['hermes']}", 1)
    assert (reading.reasoning, reading.content, reading.problem) == ("Hm.", "", "")
    assert [(call.call_id, call.arguments, call.problem) for call in reading.calls] == [
        ("call_1_0", '{"q": 1}', ""),
        ("call_1_1", '{"q": 1}', ""),
    ]
    assert declared.read("I20.9", 0) == Reading("I20.9")
    assert (
        declared.read(
            declared.write({"role": "assistant", "content": "", "tool_calls": [function_call("f", {"q": 1})]}), 0
        )
        .calls[0]
        .name
        == "f"
    )


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {}}',
        "<tool_call>\n{oops}\n</tool_call>",
        "I20.9\n</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        '<tool_call>\n["f"]\n</tool_call>',
        "<think>\nI will never stop",
        "I20.9<|im_start|>user\nthanks",
    ],
)
def test_trap_what_transformers_parser_lets_through_is_a_problem_here(declared: Format, text: str) -> None:
    reading = declared.read(text, 0)
    assert reading.problem or any(call.problem for call in reading.calls)
    assert reading.content == ""


def test_transformers_parser_never_raises_here(declared: Format) -> None:
    @given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join))
    def never(text: str) -> None:
        declared.read(text, 0)

    never()
