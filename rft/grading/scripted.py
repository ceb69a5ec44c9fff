"""Make tool calls without a model, for checks before anything is sampled.

The recipe's own calls come first: those of its demonstrations, then those of its exploits. A tool
that neither calls gets the smallest arguments that its JSON schema allows. These are valid but
seldom sensible: if a tool refuses them (4xx), we know only that it is alive.

`fill` puts an example's values into the placeholders of an exploit (rft/grading/preflight.py).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rft.chat import renderer as chat
from rft.errors import UserError
from rft.recipe import Recipe
from rft.types import Example, ToolCall

NUM_DIALOGUES = 32
_DEEPEST = 8
_PLACEHOLDER = re.compile(r"\{([a-z_]+)(:json)?\}")


def own_calls(recipe: Recipe, example: Example, seed: int) -> list[list[ToolCall]]:
    """Return the recipe's calls, one list per dialogue: demonstrations, then those exploits that
    the example's values fill."""
    dialogues = [[*_from_exploit(recipe, exploit.turns[0], example)] for exploit in recipe.exploits if exploit.turns]
    return [*demonstrated(recipe, seed), *(calls for calls in dialogues if calls)]


def demonstrated(recipe: Recipe, seed: int) -> list[list[ToolCall]]:
    """Return the calls of the demonstrations. They should work; an exploit's may be wrong on
    purpose."""
    dialogues = [[*_from_messages(messages)] for messages in demonstrations(recipe, seed)]
    return [calls for calls in dialogues if calls]


def one_call(name: str, parameters: Mapping[str, Any], own: Sequence[Sequence[ToolCall]]) -> tuple[ToolCall, bool]:
    """Return a call of this tool, and whether it is the recipe's own."""
    for call in (call for calls in own for call in calls):
        if call.name == name:
            return call, True
    return ToolCall("call_0_0", name, json.dumps(smallest(parameters))), False


def smallest(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Return the smallest value that fits the schema: required properties, shortest text, least
    number."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {} if depth == 0 else None
    root = schema if root is None else root
    if "$ref" in schema:
        return smallest(_resolve(root, schema["$ref"]), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            rest = {name: value for name, value in schema.items() if name != key}
            return smallest({**schema[key][0], **rest}, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema or depth == 0 else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known = schema.get("properties", {})
        return {name: smallest(known.get(name, {}), root, depth + 1) for name in schema.get("required", [])}
    if kind == "array":
        return [smallest(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number"):
        return _number(schema, kind)
    return {"string": "a" * max(1, schema.get("minLength", 1)), "boolean": False}.get(kind)


def _number(schema: Mapping[str, Any], kind: str) -> int | float:
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema["exclusiveMinimum"] + step if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - step if "exclusiveMaximum" in schema else None)
    value = 0 if high is None else min(0, high)
    value = value if low is None else low
    rounded = -(-value // step) * step  # the next multiple
    if kind == "integer":
        return int(rounded)
    return rounded if "multipleOf" in schema else value


def _resolve(root: Mapping[str, Any], pointer: str) -> Any:
    found: Any = root
    for part in pointer.removeprefix("#").strip("/").split("/"):
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found


def demonstrations(recipe: Recipe, seed: int) -> Iterator[list[dict[str, Any]]]:
    if recipe.has_demonstrations:
        yield from islice(recipe.demonstrations(NUM_DIALOGUES, seed), NUM_DIALOGUES)


def _from_messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for turn, message in enumerate(messages):
        for n, call in enumerate(message.get("tool_calls") or []):
            yield ToolCall(f"call_{turn}_{n}", call["function"]["name"], call["function"]["arguments"])


def _from_exploit(recipe: Recipe, template: str, example: Example) -> Iterator[ToolCall]:
    """Yield the calls of an exploit's first turn."""
    with contextlib.suppress(UserError, chat.ParseError):  # needs an earlier turn's result, or is broken on purpose
        yield from chat.parse_calls(fill(template, values_of(recipe, example), "exploits.jsonl"))


# -- placeholders ----------------------------------------------------------------------------------
def placeholders(text: str) -> set[str]:
    return {found[1] for found in _PLACEHOLDER.finditer(text)}


def values_of(recipe: Recipe, example: Example) -> dict[str, Any]:
    """Return the placeholders' values; for an example without a target only those that all examples
    have."""
    notes = [str(message["content"]) for message in example.messages if message["role"] == "user"]
    return {"note": notes[-1] if notes else "", **({} if example.target is None else recipe.exploit_values(example))}


def fill(text: str, values: Mapping[str, Any], where: str) -> str:
    """Put values into the text's placeholders. Raises UserError for a name without a value."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise UserError(
                f"{where}: {found[0]} has no value. Known here: {', '.join(sorted(values))}; exploit_values in "
                "examples.py can add it."
            )
        known = values[found[1]]
        return known if isinstance(known, str) and not found[2] else json.dumps(known, ensure_ascii=False)

    return _PLACEHOLDER.sub(value, text)
