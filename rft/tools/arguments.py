"""The JSON schemas of tools, and the check of a call's arguments before anything is sent.

The user writes the schema: one that cannot be used is a ConfigError that names the tool and, for a
row's own tools, the example. The policy writes the arguments: what is wrong with them is `Refused`,
with a short text that it sees. Nothing is fetched for a `$ref`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from rft.errors import ConfigError
from rft.types import ToolCall

MAX_PROBLEM_CHARS = 200  # the policy's nonsense must not come back to it as a thousand tokens


@dataclass(frozen=True, slots=True)
class Function:
    """A tool's parameters and their compiled schema."""

    parameters: Mapping[str, Any]
    validator: Draft202012Validator


def read_tool(tool: Any, where: str) -> tuple[str, Function]:
    """Read a Chat-Completions tool: its name and function. Raises ConfigError, naming `where`."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ConfigError(
            f"{where}: a tool is {clip_text(json.dumps(tool))}, "
            'expected {"type": "function", "function": {"name": ...}}.'
        )
    parameters = function.get("parameters")
    try:
        return name, _compiled(json.dumps({} if parameters is None else parameters))
    except SchemaError as error:
        raise ConfigError(
            f"{where}: the parameters of tool {name!r} are not a JSON schema: "
            f"{error.json_path}: {clip_text(error.message)}."
        ) from None


@lru_cache(maxsize=4096)  # by content: every row of a data set may carry the same few
def _compiled(text: str) -> Function:
    parameters = json.loads(text)
    if not isinstance(parameters, dict):
        raise SchemaError("expected an object")
    format_checker = Draft202012Validator.FORMAT_CHECKER  # checks regular expressions too
    Draft202012Validator.check_schema(parameters, format_checker=format_checker)
    validator = Draft202012Validator(parameters, registry=Registry())  # a registry of our own fetches nothing
    try:
        validator.is_valid({})
    except RecursionError:
        raise SchemaError("it refers to itself without end") from None
    except Unresolvable as error:
        raise SchemaError(f"it refers to something that is not in it: {error}") from None
    return Function(parameters, validator)


class Refused(Exception):
    """A call that is not sent; the policy sees why."""


def prepare(
    call: ToolCall, functions: Mapping[str, Function], defaults: Mapping[str, Any], validate: bool = True
) -> str:
    """Return the arguments to send. Raises Refused with what the policy should fix. Without
    `validate` any JSON object will do."""
    function = functions.get(call.name)
    if function is None:
        raise Refused(f"unknown tool {clip_text(call.name)!r}; known tools: {', '.join(functions)}")
    known = function.parameters.get("properties", {})
    required = function.parameters.get("required", [])
    if defaults and (unknown := sorted(set(defaults) - set(known))):
        raise ConfigError(f"tool_defaults: {call.name} has no arguments {unknown}; it has {sorted(known)}.")
    arguments = _parse(call)
    missing = {name: value for name, value in defaults.items() if name not in arguments and name not in required}
    if missing:
        arguments = {**arguments, **missing}
    if validate:
        _validate(call.name, arguments, function.validator)
    return json.dumps(arguments, ensure_ascii=False) if missing else call.arguments


def _validate(name: str, arguments: dict[str, Any], validator: Draft202012Validator) -> None:
    try:
        problems = sorted(validator.iter_errors(arguments), key=lambda error: (error.json_path, error.message))
    except RecursionError:
        raise Refused(f"invalid arguments for {name}: nested too deeply") from None
    except Unresolvable as error:
        raise ConfigError(
            f"tool {name!r}: its schema refers to something that is not in it: {error}. "
            "Write the definition into the schema."
        ) from None
    if problems:
        where = problems[0].json_path.removeprefix("$").removeprefix(".") or "arguments"
        raise Refused(f"invalid arguments for {name}: {where}: {clip_text(problems[0].message)}")


def _parse(call: ToolCall) -> dict[str, Any]:
    """Read strict JSON: NaN and Infinity, which Python would take, are refused."""
    try:
        arguments = _STRICT.decode(call.arguments)
    except (ValueError, RecursionError):
        raise Refused(f"the arguments of {call.name} are not JSON") from None
    if not isinstance(arguments, dict):
        raise Refused(f"the arguments of {call.name} must be a JSON object")
    return arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)


def clip_text(text: str) -> str:
    text = re.sub(r"[\ud800-\udfff]", "?", text)  # a lone surrogate can be in JSON, and in no file
    return text if len(text) <= MAX_PROBLEM_CHARS else text[:MAX_PROBLEM_CHARS] + "..."


__all__ = ["Function", "Refused", "clip_text", "prepare", "read_tool"]
