"""Says which JSON schemas our validator reads as Promptfoo's does: draft 7, without formats.

Promptfoo's validator (Ajv) knows `nullable`, has its own rules for e-mail addresses and dates, and
stops at an unknown keyword. Ours (jsonschema_rs) ignores `nullable`, and has other rules for
addresses and dates. Promptfoo resolves a `$ref` in the config, before it reads the schema.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from rft.bridges.promptfoo.regex import Unlike, translated
from rft.errors import UserError

_DRAFT = "http://json-schema.org/draft-07/schema"
_SCHEMAS = {"additionalItems", "additionalProperties", "contains", "propertyNames", "if", "then", "else", "not"}
_LISTS = {"allOf", "anyOf", "oneOf"}
_NAMED = {"properties", "patternProperties"}
_PLAIN = (
    {"type", "enum", "const", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength"}
    | {"maxItems", "minItems", "uniqueItems", "maxProperties", "minProperties", "required", "title", "description"}
    | {"default", "examples", "$comment"}
)


def check(schema: Any, where: str) -> None:
    """Check a schema. Raises UserError naming the keyword and the remedy."""
    if not isinstance(schema, dict):
        raise UserError(f"{where} is {str(schema)[:40]!r}, expected a JSON schema: an object.")
    _read(schema, where)
    try:
        jsonschema_rs.Draft7Validator(schema)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise UserError(f"{where} is not a JSON schema: {str(error).splitlines()[0]}. Fix it.") from None


def _read(schema: Any, where: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise UserError(f"{where} is {str(schema)[:40]!r}, expected a JSON schema.")
    for key, value in schema.items():
        inside = f"{where}.{key}"
        if key in _SCHEMAS or (key == "items" and not isinstance(value, list)):
            _read(value, inside)
        elif key in _LISTS or key == "items":
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                _read(each, f"{inside}[{number}]")
        elif key in _NAMED and isinstance(value, dict):
            for name, each in value.items():
                if key == "patternProperties":
                    _pattern(name, inside)
                _read(each, f"{inside}.{name}")
        elif key == "pattern":
            _pattern(value, inside)
        elif key not in _PLAIN and (key, type(value)) != ("multipleOf", int) and not _is_draft_7(key, value):
            raise UserError(f"{inside} is not read alike here and in Promptfoo. Remove it, or check it in python.")


def _is_draft_7(key: str, value: Any) -> bool:
    return key == "$schema" and str(value).rstrip("#") == _DRAFT


def _pattern(value: Any, where: str) -> None:
    try:
        translated(value if isinstance(value, str) else "(")
    except Unlike as error:
        raise UserError(f"{where}: {str(value)[:60]!r} {error}. Write it another way, or check it in python.") from None
