"""`response_format`, the form of the final answer: from params.yaml, or from a row, which wins.

    read(value, where)         checks it and returns the Chat-Completions form. Takes both forms:
        Chat Completions       {type: json_schema, json_schema: {name, strict, schema}}
        Responses              {type: json_schema, name, strict, schema}
    chosen(own, configured)    the form that a rollout must follow; None for a free answer
    with_instruction(...)      adds the format in words to the messages, where we render them

A chat endpoint gets the format in the request and constrains the answer itself. We render the
prompt in this process, and for the token routes of vLLM and SGLang. There the format is in the
prompt, because a constraint on sampled tokens would hold for every turn and forbid tool calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rft.errors import ConfigError

TYPES = ("text", "json_object", "json_schema")
_KEYS = ("name", "description", "strict", "schema")
MAX_SHOWN_CHARS = 200


def read(value: Any, where: str) -> dict[str, Any] | None:
    """Return the Chat-Completions form, or None for None. Raises ConfigError, which begins with
    `where`, such as "train.jsonl:3"."""
    try:
        return None if value is None else normalized(value)
    except ValueError as error:
        raise ConfigError(f"{where}: response_format: {error}.") from None


def normalized(value: Any) -> dict[str, Any]:
    """Return the Chat-Completions form. Raises ValueError that says what is wrong and what to
    write."""
    if not isinstance(value, dict):
        forms = "{type: text}, {type: json_object} or {type: json_schema, ...}"
        raise ValueError(f"{_shown(value)} is not an object. Write {forms}")
    kind, rest = value.get("type"), {key: each for key, each in value.items() if key != "type"}
    if kind not in TYPES:
        raise ValueError(f"type is {_shown(kind)}. Write one of {', '.join(TYPES)}")
    if kind != "json_schema":
        _refuse_unknown(rest, (), f"type {kind}")
        return {"type": kind}
    if "json_schema" in rest:
        _refuse_unknown(rest, ("json_schema",), "type json_schema in the Chat Completions form")
        rest = rest["json_schema"]
        if not isinstance(rest, dict):
            raise ValueError(f"json_schema is {_shown(rest)}. Write {{name: ..., schema: {{...}}}}")
    _refuse_unknown(rest, _KEYS, "a json_schema")
    name, strict, description = rest.get("name"), rest.get("strict"), rest.get("description")
    if not isinstance(name, str) or not name:
        raise ValueError(f"the schema's name is {_shown(name)}. Give it one, such as name: answer")
    if not isinstance(strict, bool | None):
        raise ValueError(f"strict is {_shown(strict)}. Write true or false")
    if not isinstance(description, str | None):
        raise ValueError(f"description is {_shown(description)}. Write a text")
    schema = rest.get("schema")
    if not isinstance(schema, dict):
        form = "{type: object, properties: {...}}"
        raise ValueError(f"schema is {_shown(schema)}. Give it a JSON Schema, such as {form}")
    try:
        text = json.dumps(schema)
    except TypeError as error:  # YAML knows dates, JSON does not
        raise ValueError(f"schema holds a value that JSON cannot hold: {error}. Put it in quotes") from None
    if problem := _problem(text):
        raise ValueError(f"schema is not a valid JSON Schema: {problem}. Fix it")
    given = {"name": name, "description": description, "strict": strict, "schema": schema}
    return {"type": kind, "json_schema": {key: each for key, each in given.items() if each is not None}}


def chosen(own: dict[str, Any] | None, configured: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the row's `own` format, or else the configured one. None: any text is allowed."""
    found = configured if own is None else own
    return None if found is None or found["type"] == "text" else found


def instruction(response_format: dict[str, Any]) -> str:
    """Put the format in words, for the final answer only: tool calls before it stay free."""
    if response_format["type"] == "json_object":
        return "Write your final answer as one JSON object, and nothing else."
    schema = json.dumps(response_format["json_schema"]["schema"], ensure_ascii=False, separators=(",", ":"))
    return f"Write your final answer as JSON that follows this JSON Schema, and nothing else:\n{schema}"


def with_instruction(messages: Sequence[dict[str, Any]], response_format: dict[str, Any]) -> list[dict[str, Any]]:
    """Append the instruction to the system message, or add it as one."""
    text, told = instruction(response_format), list(messages)
    place = next((n for n, message in enumerate(told) if message["role"] in ("system", "developer")), None)
    if place is None:
        return [{"role": "system", "content": text}, *told]
    content = told[place].get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": text}]
    else:
        content = f"{content}\n\n{text}" if content else text
    told[place] = {**told[place], "content": content}
    return told


def words(response_format: dict[str, Any]) -> tuple[str, ...]:
    """List the words that a prompt with this format must contain: the names of all properties. They
    are missing if a template drops the schema."""
    if response_format["type"] == "json_object":
        return ("json",)
    schema = response_format["json_schema"]
    return tuple(map(str, schema["schema"].get("properties") or (schema["name"],)))


@lru_cache(maxsize=256)  # by content: every row of a data set may carry the same one
def _problem(schema: str) -> str:
    from rft.schema import compiled  # imported here, because only a schema needs it

    try:
        compiled(json.loads(schema))
    except ValueError as error:
        return str(error)
    return ""


def _refuse_unknown(given: dict[str, Any], known: Sequence[str], what: str) -> None:
    if unknown := [key for key in given if key not in known]:
        remedy = f"Known here: {', '.join(known)}" if known else "Remove it"
        raise ValueError(f"{what} has no key {_shown(unknown[0])}. {remedy}")


def _shown(value: Any) -> str:
    return _clipped(json.dumps(value, ensure_ascii=False, default=str))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
