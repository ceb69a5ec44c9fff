"""Replace what nobody may store, before anything is stored.

A rule is a name and a regular expression in the syntax of RE2, which takes linear time on any text.
`email: [^ ]+@[^ ]+` leaves `[email]`. Rules apply in the order in which they are declared, to every
text of a conversation: what is said, arguments, replies and feedback. Roles, ids and names of tools
stay as they are.

Where a text is JSON, as arguments are, the rules see the texts inside of it, so that it is JSON
afterwards too. A rule that ate the quotes would look like an agent that cannot write arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rft.errors import ConfigError
from rft.snapshots.arrow import pc

_KEPT = frozenset({"role", "id", "tool_call_id", "type", "name"})
Leaf = Callable[[str], str]


def check(rules: Mapping[str, str]) -> None:
    """Raise ConfigError for a rule that is no regular expression, or matches nothing at all."""
    for name, pattern in rules.items():
        try:
            is_empty = pc.match_substring_regex(pa.array([""]), pattern)[0].as_py()
        except (pa.ArrowException, ValueError) as error:
            why = str(error).splitlines()[0].removeprefix("Invalid regular expression: ")
            raise ConfigError(
                f"traffic.redact.{name} = {pattern!r} is no regular expression of RE2 ({why}). "
                "Look-around and back-references do not exist there; write it without them."
            ) from None
        if is_empty:
            raise ConfigError(
                f"traffic.redact.{name} = {pattern!r} matches an empty text, so it matches everywhere. "
                "Make it ask for at least one character."
            )


def redact(rows: Sequence[dict[str, Any]], rules: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return normal rows without what the rules match, and how often each rule matched."""
    texts: list[str] = []
    ends = [0]
    for row in rows:
        _row(row, lambda text: texts.append(text) or text)
        ends.append(len(texts))
    before = pa.array(texts, pa.string())
    after, counts = before, dict.fromkeys(rules, 0)
    for name, pattern in rules.items():
        found = pc.sum(pc.count_substring_regex(after, pattern)).as_py() or 0
        if found:
            counts[name] = found
            after = pc.replace_substring_regex(after, pattern, f"[{name}]".replace("\\", "\\\\"))
    changed = np.flatnonzero(pc.not_equal(before, after).to_numpy(zero_copy_only=False))
    touched = set((np.searchsorted(ends, changed, side="right") - 1).tolist())
    return [_replaced(row, after, ends[n]) if n in touched else row for n, row in enumerate(rows)], counts


def _replaced(row: dict[str, Any], after: pa.Array, first: int) -> dict[str, Any]:
    place = first - 1

    def following(_: str) -> str:
        nonlocal place
        place += 1
        return after[place].as_py()

    return _row(row, following)


def _row(row: dict[str, Any], leaf: Leaf) -> dict[str, Any]:
    messages = [_message(message, leaf) for message in row["messages"]]
    return row | {"messages": messages, "feedback": _value(row["feedback"], leaf)}


def _message(message: dict[str, Any], leaf: Leaf) -> dict[str, Any]:
    return {key: value if key in _KEPT else _value(value, leaf) for key, value in message.items()}


def _value(value: Any, leaf: Leaf) -> Any:
    if isinstance(value, str):
        return _text(value, leaf)
    if isinstance(value, list):
        return [_value(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: item if key in _KEPT else _value(item, leaf) for key, item in value.items()}
    return value


def _text(text: str, leaf: Leaf) -> str:
    """Replace in a text, or in the texts that it holds as JSON."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
            changed = _inner(value, leaf)
        except (ValueError, RecursionError):
            return leaf(text)
        return text if changed == value else json.dumps(changed, ensure_ascii=False)
    return leaf(text)


def _inner(value: Any, leaf: Leaf) -> Any:
    if isinstance(value, str):
        return leaf(value)
    if isinstance(value, list):
        return [_inner(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: _inner(item, leaf) for key, item in value.items()}
    return value
