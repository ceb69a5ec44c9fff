"""Compile JSON schemas that others wrote: a tool's, an MCP server's, a format of answers.

jsonschema-rs reads them, because tools may bring any schema and policies may write any text. It
knows the regular expressions that JSON Schema means (ECMA-262: `\\p{L}`, `(?<year>...)`), and each
draft that `$schema` names. It matches in linear time; a pattern with look-around or back-references
needs backtracking and gets a bounded number of steps. It resolves each `$ref` beforehand, and
nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from jsonschema_rs import FancyRegexOptions, RegexOptions, ValidationError, Validator, validator_for

MAX_STEPS = 100_000
"""Steps of backtracking for one pattern on one text: milliseconds. What needs more does not
match."""
MAX_SHOWN_CHARS = 200


def compiled(schema: dict[str, Any]) -> Validator:
    """Compile a schema. Raises ValueError, saying where and why, for one that is not valid."""
    try:
        return validator_for(schema, pattern_options=RegexOptions(), retriever=_refuse_to_fetch)
    except ValidationError:
        pass  # a pattern may have look-around or back-references
    try:
        return validator_for(schema, pattern_options=FancyRegexOptions(MAX_STEPS), retriever=_refuse_to_fetch)
    except ValidationError as error:
        message = error.message if len(error.message) <= MAX_SHOWN_CHARS else error.message[:MAX_SHOWN_CHARS] + "..."
        raise ValueError(f"{place(error.instance_path)}{message}") from None


def place(path: Iterable[str | int]) -> str:
    """Return `filters.codes[0]: ` for a path; empty for the whole."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{steps.removeprefix('.')}: " if steps else ""


def _refuse_to_fetch(address: str) -> NoReturn:
    raise ValueError("nothing is fetched. Write the definition into the schema")


__all__ = ["compiled", "place"]
