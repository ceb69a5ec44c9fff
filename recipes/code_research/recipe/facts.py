"""Facts as an agent claims them, and when two claims are the same.

    [{"symbol": "Kavel.besin.ronak", "path": "mudok.py", "value": "38.4"}]

Spelling does not matter: a value may have the source's quotation marks or none, a number may be
written in another way, and a path may begin with `./`. `fold` gives every spelling one form, so
that a fact counts once. `1 or 2 or 3` is not a way to write `1`.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = ("symbol", "path", "value")
MAX_ANSWER = 10_000
"""Characters of an answer. More than a hundred facts fit, each as long as a line of a tool."""
MAX_TEXT = 200
"""Characters of a part of a claim."""
_LITERAL = re.compile(r"""[+-]?\.?\w[\w.]*([eE][+-]?\d+)?|[uU]?'[^'\\]*'|[uU]?"[^"\\]*\"""")
"""One number or one text, with nothing beside it: neither a comment nor a second text."""


@dataclass(frozen=True, order=True)
class Fact:
    symbol: str
    path: str
    value: str


def write(facts: Iterable[dict[str, str]]) -> str:
    """Write the final answer in its only form. The order of facts and keys is free; here it is the
    order of the tools' replies, so that a small policy can copy a line from left to right."""
    return json.dumps([{key: fact[key] for key in KEYS} for fact in facts])


def read(text: str) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the claims as they were written, or None and the reason why it is not an answer."""
    if not text:
        return None, "no answer"
    if len(text) > MAX_ANSWER:
        return None, f"the answer is longer than {MAX_ANSWER} characters"
    try:
        claims = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        return None, str(error) if isinstance(error, KeyTwice) else "the answer is not JSON alone"
    if not isinstance(claims, list) or not claims:
        return None, "the answer is not a list of at least one fact"
    for claim in claims:
        if not isinstance(claim, dict) or set(claim) != set(KEYS):
            return None, f"a fact has other keys than {', '.join(KEYS)}"
        if not (_is_text(claim["symbol"]) and _is_text(claim["path"])):
            return None, f"a symbol or path is not a text of 1 to {MAX_TEXT} characters"
        if not (_is_text(claim["value"]) or _is_number(claim["value"])):
            return None, f"a value is neither a number nor a text of 1 to {MAX_TEXT} characters"
    return claims, ""


def fold(claim: dict[str, Any]) -> Fact:
    """Return the same for every way to write a fact."""
    path = claim["path"].strip().replace("\\", "/")
    return Fact("".join(claim["symbol"].split()), posixpath.normpath(path), _folded(claim["value"]))


def folded(claims: Sequence[dict[str, Any]]) -> list[Fact]:
    return [fold(claim) for claim in claims]


def _folded(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    try:
        found = ast.literal_eval(text) if _LITERAL.fullmatch(text) else None
    except (ValueError, SyntaxError):  # a name, or digits that make no number
        found = None
    if isinstance(found, str):
        return found.strip()
    return repr(found) if _is_number(found) else text


class KeyTwice(ValueError):
    """An object that names a key twice. Which value counts would depend on the parser."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise KeyTwice("a key given twice")
    return dict(pairs)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_TEXT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
