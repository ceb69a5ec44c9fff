"""Check whether the arguments of tool calls fit the tools' schemas.

A snapshot keeps the shape of each call: the tool's name, and the structure of its arguments as
DuckDB names it, `find_order{"number":"VARCHAR"}`. A window has few distinct shapes, so each is
checked once, whatever the number of calls. A shape holds no values. So a value that breaks an
enumeration or a pattern is not seen here; the tool itself refuses it, which is a tool error.

A shape keeps objects with their keys, lists with the structure of their items, and the primitive
types. `"JSON"` stands for a value without a structure: an empty object, or items of several types.
A shape that is too long or too deep to keep (rft/traffic/shapes.py) is counted as not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

FITS = "as the schema says"
UNKNOWN_TOOL = "unknown tool"
NOT_JSON = "not a JSON object"
MISSING = "missing argument"
UNKNOWN = "unknown argument"
WRONG_TYPE = "wrong type"
NOT_CHECKED = "not checked"
OUTCOMES = (FITS, MISSING, UNKNOWN, WRONG_TYPE, NOT_JSON, UNKNOWN_TOOL, NOT_CHECKED)

Schema = Mapping[str, Any]

_CUT = re.compile(r"\.\.\. [0-9a-f]{12}\Z|!too deep\Z")
_TYPES: dict[str, frozenset[str]] = {
    "VARCHAR": frozenset({"string"}),
    "BOOLEAN": frozenset({"boolean"}),
    "NULL": frozenset({"null"}),
    "DOUBLE": frozenset({"number"}),
    "FLOAT": frozenset({"number"}),
    **dict.fromkeys(("BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT"), frozenset({"integer", "number"})),
}


def outcome(shape: str, tools: Mapping[str, Schema]) -> str:
    """Say how a call fits, as one of OUTCOMES. `tools`: name -> JSON schema of the arguments."""
    cuts = [at for mark in '{["!' if (at := shape.find(mark)) >= 0]
    name = shape[: min(cuts, default=len(shape))]
    if name not in tools:
        return UNKNOWN_TOOL
    if _CUT.search(shape):
        return NOT_CHECKED
    try:
        structure = json.loads(shape[len(name) :])
    except ValueError:
        return NOT_JSON
    if structure == "JSON":
        structure = {}
    return _misfit(structure, tools[name], tools[name]) if isinstance(structure, dict) else NOT_JSON


def _misfit(structure: Any, schema: Any, root: Schema, depth: int = 0) -> str:
    """Return the first misfit, or FITS."""
    if not isinstance(schema, Mapping) or depth > 32:  # `true`, or a schema that refers to itself
        return FITS
    if "$ref" in schema:
        return _misfit(structure, _referred(str(schema["$ref"]), root), root, depth + 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        found = [_misfit(structure, choice, root, depth + 1) for choice in choices]
        return FITS if FITS in found else found[0]
    for part in schema.get("allOf", ()):
        if (found_in_part := _misfit(structure, part, root, depth + 1)) != FITS:
            return found_in_part
    if structure == "JSON":
        return FITS
    if not _types(structure) & _allowed(schema):
        return WRONG_TYPE
    if isinstance(structure, dict):
        return _misfit_of_object(structure, schema, root, depth)
    if isinstance(structure, list) and structure and structure[0] != "NULL":
        return _misfit(structure[0], schema.get("items", True), root, depth + 1)
    return FITS


def _misfit_of_object(structure: dict[str, Any], schema: Schema, root: Schema, depth: int) -> str:
    known: Mapping[str, Any] = schema.get("properties", {})
    if not set(schema.get("required", ())) <= structure.keys():
        return MISSING
    further = schema.get("additionalProperties", True)
    if further is False and not structure.keys() <= known.keys():
        return UNKNOWN
    found = (_misfit(value, known.get(key, further), root, depth + 1) for key, value in structure.items())
    return next((misfit for misfit in found if misfit != FITS), FITS)


def _types(structure: Any) -> frozenset[str]:
    if isinstance(structure, dict):
        return frozenset({"object"})
    if isinstance(structure, list):
        return frozenset({"array"})
    return _TYPES.get(str(structure), frozenset({"string"}))


def _allowed(schema: Schema) -> frozenset[str]:
    declared = schema.get("type")
    if declared is None:
        return frozenset({"string", "boolean", "null", "number", "integer", "object", "array"})
    return frozenset([declared] if isinstance(declared, str) else declared)


def _referred(reference: str, root: Schema) -> Any:
    """Follow a reference inside the schema. One that leads nowhere allows anything."""
    found: Any = root
    for key in reference.removeprefix("#/").split("/"):
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found
