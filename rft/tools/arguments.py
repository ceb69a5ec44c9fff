"""The JSON schemas of tools, and the check of a call's arguments before anything is sent.

The schema comes from the user or from an MCP server. If it cannot be used, that is a ConfigError.
It names the tool, the place in its schema and, for a row's own tools, the example. A tool whose
arguments are not validated (tools.traits) needs no valid schema. The arguments come from the
policy. Wrong arguments are `Refused`, with a short text that the policy sees.

rft/schema.py says what a schema may be, and reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from jsonschema_rs import ValidationError, Validator

from rft import schema
from rft.errors import ConfigError
from rft.types import ToolCall

REMEDY = (
    "Fix them; or leave the tool out (tools.mcp[].tools lists those to use); or offer it unchecked: tools.traits, "
    "validate: false."
)
MAX_CHARS_FOR_ALL = 10_000
"""For arguments of at most this length, all problems are found, and the first by its place is
named."""
MOST_LEVELS_TO_QUOTE = 50
MAX_PROBLEM_CHARS = 200  # bad arguments must not come back to the policy as a thousand tokens


@dataclass(frozen=True, slots=True)
class Function:
    """A tool's parameters and their compiled schema; if it is None, nothing is validated."""

    parameters: Mapping[str, Any]
    validator: Validator | None


def read_tool(tool: Any, where: str, is_validated: Callable[[str], bool] = lambda name: True) -> tuple[str, Function]:
    """Read a Chat-Completions tool, and return its name and function. Raises ConfigError, naming
    `where`."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ConfigError(
            f"{where}: a tool is {clip_text(json.dumps(tool))}, "
            'expected {"type": "function", "function": {"name": ...}}.'
        )
    parameters = {} if function.get("parameters") is None else function["parameters"]
    if not is_validated(name):
        return name, Function(parameters if isinstance(parameters, Mapping) else {}, None)
    try:
        return name, _compiled(json.dumps(parameters))
    except ValueError as error:
        raise ConfigError(
            f"{where}: the parameters of tool {name!r} are not a JSON schema of arguments: {error}. {REMEDY}"
        ) from None


@lru_cache(maxsize=4096)  # cached by content, because all rows of a data set may have the same few schemas
def _compiled(text: str) -> Function:
    """Compile a schema of arguments. Raises ValueError, saying where and why, if it is not one."""
    parameters = json.loads(text)
    if not isinstance(parameters, dict):
        raise ValueError("expected an object")
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ValueError(f"type: {clip_text(json.dumps(kinds))}, and arguments are always an object")
    return Function(parameters, schema.compiled(parameters))


class Refused(Exception):
    """A call that is not sent; the policy sees why."""


def prepare(
    call: ToolCall, functions: Mapping[str, Function], defaults: Mapping[str, Any], validate: bool = True
) -> str:
    """Return the arguments to send. Raises Refused with what the policy should fix. Without
    `validate` any JSON object is accepted."""
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
    if validate and function.validator is not None:
        _validate(call.name, arguments, function.validator)
    return json.dumps(arguments, ensure_ascii=False) if missing else call.arguments


def _validate(name: str, arguments: dict[str, Any], validator: Validator) -> None:
    try:
        problems = _problems(validator, arguments)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold: read as another character
        whole = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace")
        problems = _problems(validator, json.loads(whole))
    except ValueError:  # jsonschema-rs reads at most 255 levels
        raise Refused(f"invalid arguments for {name}: they are nested too deeply") from None
    if problems:
        place, message = min(problems)
        raise Refused(f"invalid arguments for {name}: {place or 'arguments: '}{clip_text(message)}")


def _problems(validator: Validator, arguments: Any) -> list[tuple[str, str]]:
    """List the problems, each with its place and a message. For long arguments only the first
    problem is found, because each costs 10 us and 80 kB can hold 40,000. If they are also deep, the
    message says only that there is one, because a problem's message may quote the whole at each
    level."""
    if validator.is_valid(arguments):
        return []
    found: Iterable[ValidationError] = []
    if len(json.dumps(arguments)) <= MAX_CHARS_FOR_ALL:
        found = validator.iter_errors(arguments)
    elif _depth(arguments) > MOST_LEVELS_TO_QUOTE:
        return [("", "they do not fit the tool's schema, and are too long and too deep to say where")]
    else:
        try:
            validator.validate(arguments)
        except ValidationError as problem:
            found = [problem]
    return [(schema.place(problem.instance_path), problem.message) for problem in found]


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def _parse(call: ToolCall) -> dict[str, Any]:
    """Read strict JSON: NaN and Infinity, which Python accepts, are refused."""
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
    text = re.sub(r"[\ud800-\udfff]", "?", text)  # JSON can hold a lone surrogate, but a file cannot
    return text if len(text) <= MAX_PROBLEM_CHARS else text[:MAX_PROBLEM_CHARS] + "..."


__all__ = ["Function", "Refused", "clip_text", "prepare", "read_tool"]
