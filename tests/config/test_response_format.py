"""What the final answer must look like: read strictly, and stated in the prompts that we render."""

from __future__ import annotations

from typing import Any

import pytest

from rft import config
from rft.chat.dialogue import opening_of
from rft.chat.renderer import Chat
from rft.config import response_format
from rft.errors import ConfigError
from rft.reports import PromptSettings
from rft.types import Example, Opening
from tests import families, tiny_recipe

SCHEMA = {
    "type": "object",
    "properties": {"diagnosis_code": {"type": "string"}, "päck": {"type": "integer"}},
    "required": ["diagnosis_code"],
}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
USER = {"role": "user", "content": "Which code is angina?"}
SYSTEM = {"role": "system", "content": "Be brief."}
PARAMETERS = {"type": "object", "properties": {"key": {"type": "string", "description": "the key"}}}
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "", "parameters": PARAMETERS}}]
STATES = (
    "{%- if response_format %}Answer as {{ response_format.json_schema.name }}: {{ "
    "response_format.json_schema.schema | tojson }}\n{%- endif %}"
)


# -- reading ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (CHAT_FORM, CHAT_FORM),
        ({"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}, CHAT_FORM),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "strict": None, "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        ),
    ],
)
def test_both_published_forms_become_one(given: Any, read: Any):
    assert response_format.read(given, "train.jsonl:3") == read
    assert response_format.read(read, "train.jsonl:3") == read


BAD: list[tuple[Any, str]] = [
    ("json", r'"json" is not an object'),
    ({}, "type is null. Write one of text, json_object, json_schema"),
    ({"type": "xml"}, 'type is "xml". Write one of'),
    ({"type": "json_object", "schema": {}}, 'type json_object has no key "schema"'),
    ({"type": "json_schema"}, "name is null"),
    ({"type": "json_schema", "json_schema": "x"}, 'json_schema is "x"'),
    ({"type": "json_schema", "json_schema": {"name": "a"}}, "schema is null. Give it a JSON Schema"),
    (
        {"type": "json_schema", "name": "a", "schema": {}, "json_schema": {"name": "a", "schema": {}}},
        'has no key "name"',
    ),
    (
        {"type": "json_schema", "name": "a", "schema": {"type": "objekt"}},
        r'schema is not a valid JSON Schema: type: "objekt" is not valid',
    ),
    (
        {"type": "json_schema", "name": "a", "schema": {"properties": {"a": 3}}},
        r"not a valid JSON Schema: properties\.a: 3",
    ),
    ({"type": "json_schema", "name": "a", "schema": {"pattern": "("}}, "not a valid JSON Schema"),
    ({"type": "json_schema", "name": "a", "schema": {"const": {1, 2}}}, "a value that JSON cannot hold: .*quotes"),
    ({"type": "json_schema", "name": "a", "schema": {}, "strict": "yes"}, 'strict is "yes"'),
    (
        {"type": "json_schema", "name": "a", "schemas": {}},
        'no key "schemas". Known here: name, description, strict, schema',
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_is_none_names_where_and_what(given: Any, message: str):
    with pytest.raises(ConfigError, match=rf"^train\.jsonl:3: response_format: .*{message}"):
        response_format.read(given, "train.jsonl:3")


@pytest.mark.parametrize(("given", "message"), BAD[1:])
def test_params_yaml_is_checked_when_it_is_read(given: Any, message: str, tmp_path: Any):
    with pytest.raises(ConfigError, match=rf"^params\.yaml: 'rollout\.response_format': .*{message}"):
        tiny_recipe.params(tmp_path, rollout={"response_format": given})


def test_the_rows_own_wins(tmp_path: Any):
    responses_form = {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}
    limits = tiny_recipe.params(tmp_path, rollout={"response_format": responses_form}).rollout
    prompt = PromptSettings(name="seed", system="", max_turns=4)

    def opened(own: Any, limits: config.Rollout = limits) -> Opening:
        return opening_of(Example("n", (USER,), None, response_format=own), prompt, limits)

    assert opened(None) == Opening((USER,), None, CHAT_FORM, "n")
    assert opened({"type": "json_object"}).response_format == {"type": "json_object"}
    assert opened({"type": "text"}).response_format is None
    assert opened(None, config.Rollout()).response_format is None


# -- in the prompt ---------------------------------------------------------------------------------
def chat(name: str, template: str | None = None) -> Chat:
    return Chat(families.tokenizer(name) if template is None else families.build(name, template), TOOLS)


def source(name: str) -> str:
    return (families.TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "gpt_oss"])
@pytest.mark.parametrize("opened", [[USER], [SYSTEM, USER]], ids=["no system", "system"])
@pytest.mark.parametrize("wanted", [CHAT_FORM, {"type": "json_object"}], ids=["schema", "object"])
def test_a_template_that_knows_no_format_is_told_in_the_system_message(
    name: str, opened: list[Any], wanted: dict[str, Any]
):
    ours = chat(name)
    text = response_format.instruction(wanted)
    system = {"role": "system", "content": f"Be brief.\n\n{text}" if len(opened) > 1 else text}
    assert ours.render(opened, answer_format=wanted) == ours.render([system, USER])
    assert text in ours.render(opened, answer_format=wanted)
    if wanted is CHAT_FORM:
        assert (
            '{"type":"object","properties":{"diagnosis_code":{"type":"string"},"päck":{"type":"integer"}},"required":["diagnosis_code"]}'
            in text
        )
    assert opened in ([USER], [SYSTEM, USER]), "the row's messages stay as they are"


@pytest.mark.parametrize(
    "opened", [[USER], [SYSTEM, USER], [{"role": "user", "content": "diagnosis_code and päck, as answer"}]]
)
def test_a_template_that_knows_the_format_states_it_itself(opened: list[Any]):
    ours, plain = chat("qwen3", STATES + source("qwen3")), chat("qwen3")
    text = ours.render(opened, answer_format=CHAT_FORM)
    assert text.startswith("Answer as answer: {")
    assert response_format.instruction(CHAT_FORM) not in text
    assert text.endswith(plain.render(opened)), "and nothing else changes"


def test_a_template_that_knows_of_json_says_so_itself():
    ours = chat("qwen3", "{%- if response_format %}Answer in JSON.\n{%- endif %}" + source("qwen3"))
    assert ours.render([USER], answer_format={"type": "json_object"}).startswith("Answer in JSON.")


@pytest.mark.parametrize(
    "states",
    [
        "{%- if response_format %}Answer in JSON.{%- endif %}",  # changes the text, and never says the schema
        "{%- if response_format %}Answer as {{ response_format.json_schema.name }}.{%- endif %}",
        "{%- if response_format %}{{ raise_exception('no such format') }}{%- endif %}",
    ],
)
def test_a_template_that_does_not_state_the_schema_gets_the_instruction(states: str):
    ours = chat("qwen3", states + source("qwen3"))
    for opened in ([USER], [{"role": "user", "content": "diagnosis_code and päck, as answer"}]):
        assert ours.render(opened, answer_format=CHAT_FORM) == chat("qwen3").render(
            response_format.with_instruction(opened, CHAT_FORM)
        )


@pytest.mark.parametrize("name", families.FAMILIES)
def test_without_a_format_the_prompt_is_the_templates_own(name: str):
    ours = chat(name)
    plain = ours.tokenizer.apply_chat_template([SYSTEM, USER], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert ours.render([SYSTEM, USER]) == plain
    assert (
        ours.prompt_ids([SYSTEM, USER]) == ours.encode(plain) == ours.opening_ids([Opening((SYSTEM, USER))], 10_000)[0]
    )


def test_an_opening_with_a_format_is_longer_by_it():
    ours = chat("qwen3")
    plain, told = ours.opening_ids([Opening((SYSTEM, USER)), Opening((SYSTEM, USER), None, CHAT_FORM)], 10_000)
    assert told == ours.prompt_ids([SYSTEM, USER], None, CHAT_FORM)
    assert len(told) > len(plain)


def test_the_instruction_joins_the_message_that_leads():
    wanted = {"type": "json_object"}
    text = response_format.instruction(wanted)
    developer = {"role": "developer", "content": "Be brief."}
    parts = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert response_format.with_instruction([developer, USER], wanted) == [
        {"role": "developer", "content": f"Be brief.\n\n{text}"},
        USER,
    ]
    assert response_format.with_instruction([parts, USER], wanted)[0]["content"] == [
        *parts["content"],
        {"type": "text", "text": text},
    ]
    assert response_format.with_instruction([{"role": "system", "content": ""}, USER], wanted)[0]["content"] == text
