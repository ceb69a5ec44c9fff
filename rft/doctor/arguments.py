"""What a tool is called with when nobody has sampled yet.

The recipe's own calls come first: those of its demonstrations, then of its exploits. A tool that
neither calls gets the smallest arguments that its JSON schema allows. These are valid but seldom
sensible, so a tool that refuses them (4xx) is alive, and no more is known.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rft.chat import renderer as chat
from rft.doctor.setup import Setup
from rft.errors import UserError
from rft.grading.preflight import fill
from rft.types import ToolCall

NUM_DIALOGUES = 32
_DEEPEST = 8


def own_calls(setup: Setup) -> list[list[ToolCall]]:
    """The calls that the recipe makes, one list per dialogue: demonstrations, then exploits."""
    dialogues = [[*_from_exploit(setup, exploit.turns[0])] for exploit in setup.recipe.exploits if exploit.turns]
    return [*demonstrated(setup), *(calls for calls in dialogues if calls)]


def demonstrated(setup: Setup) -> list[list[ToolCall]]:
    """The calls of the demonstrations. They should work; an exploit's may be wrong on purpose."""
    dialogues = [[*_from_messages(messages)] for messages in demonstrations(setup)]
    return [calls for calls in dialogues if calls]


def one_call(name: str, parameters: Mapping[str, Any], own: Sequence[Sequence[ToolCall]]) -> tuple[ToolCall, bool]:
    """A call of this tool, and whether it is the recipe's own."""
    for call in (call for calls in own for call in calls):
        if call.name == name:
            return call, True
    return ToolCall("call_0_0", name, json.dumps(smallest(parameters))), False


def smallest(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The smallest value that fits the schema: required properties, shortest text, least number."""
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


def demonstrations(setup: Setup) -> Iterator[list[dict[str, Any]]]:
    if (setup.recipe.folder / "demonstrations.py").exists():
        yield from islice(setup.recipe.demonstrations(NUM_DIALOGUES, setup.params.policy.seed), NUM_DIALOGUES)


def _from_messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for turn, message in enumerate(messages):
        for n, call in enumerate(message.get("tool_calls") or []):
            yield ToolCall(f"call_{turn}_{n}", call["function"]["name"], call["function"]["arguments"])


def _from_exploit(setup: Setup, template: str) -> Iterator[ToolCall]:
    """The calls of an exploit's first turn, as far as the first example fills it."""
    example = setup.rows["train"][0]
    notes = [str(message["content"]) for message in example.messages if message["role"] == "user"]
    with contextlib.suppress(UserError, chat.ParseError):  # needs an earlier turn's result, or is broken on purpose
        values = {"note": notes[-1] if notes else "", **setup.recipe.exploit_values(example)}
        text = fill(template, values, "exploits.jsonl")
        yield from chat.parse_calls(text)
