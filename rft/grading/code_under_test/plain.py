"""Plain JSON: the only form in which we believe what a candidate writes.

A Python value can lie. It may equal everything, or change between two comparisons. JSON cannot: it
is read into our own texts, numbers and lists. Values are compared by type, too: `1`, `1.0` and
`true` are three different answers, as they are in most specifications.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from rft.errors import UserError


class NotPlain(ValueError):
    """A text that is not JSON, or is ambiguous: NaN, or one key twice."""


def read(text: bytes) -> Any:
    """Read one JSON value. Raises NotPlain."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise NotPlain(str(error)) from None


def checked(value: Any, what: str) -> Any:
    """Return a copy of the user's value in plain JSON; a tuple becomes a list. Raises UserError for
    what JSON does not have."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
        case list() | tuple():
            return [checked(item, what) for item in value]
        case dict():
            if all(isinstance(key, str) for key in value):
                return {key: checked(item, what) for key, item in value.items()}
        case _:
            pass
    raise UserError(
        f"{what} holds {value!r:.80}, which JSON does not have. Use texts, finite numbers, true, false, null, lists, "
        "and objects whose keys are texts."
    )


def same(expected: Any, found: Any, tolerance: float | None = None) -> bool:
    """Compare by type and value. `tolerance`: compare numbers by value only, and let them differ by
    so much: relative to the larger one, or absolutely below 1. A truth value is never a number."""
    if tolerance is not None and _is_number(expected) and _is_number(found):
        try:
            return math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
        except OverflowError:  # a whole number that no float can hold
            return expected == found
    if type(expected) is not type(found):
        return False
    if isinstance(expected, list):
        return len(expected) == len(found) and all(
            same(item, other, tolerance) for item, other in zip(expected, found, strict=True)
        )
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(same(expected[key], found[key], tolerance) for key in expected)
    return expected == found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _refuse(name: str) -> NoReturn:
    raise NotPlain(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotPlain(f"{digits[:40]} is larger than any number")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotPlain("an object has one key twice")
    return found
