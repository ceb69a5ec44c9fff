"""Replace what nobody may store, before anything is stored.

A rule is a name and a regular expression in the syntax of RE2, which takes linear time on any text.
`email: [^ ]+@[^ ]+` leaves `[email]`. Rules apply in the order of their declaration, to every text
of a conversation: messages, arguments, replies and feedback. Roles, ids of calls and names of tools
stay as they are.

Where a text is JSON, as arguments are, the rules see only the texts inside it, so that it is still
JSON afterwards. If a rule removed the quotes, the agent would seem unable to write arguments.

The owner of a conversation may be an e-mail address, too. If it were replaced by `[email]`, all
users would become one. So *names*, which distinguish things, are replaced as a whole: a name in
which a rule finds something is stored as `sha256:` and 16 digits of its hash (`hidden`). So the
same name has the same hash in every file and every week. Names are the conversation's id, the
values of `traffic.unit` and those of categories in `traffic.columns`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from rft.errors import ConfigError
from rft.traffic.arrow import pc
from rft.traffic.quoting import cleaning

_KEPT = frozenset({"role", "id", "tool_call_id", "type", "name"})
Leaf = Callable[[str], str]


def check(rules: Mapping[str, str]) -> None:
    """Raise ConfigError for a rule that is not a regular expression, or that matches an empty
    text."""
    for name, pattern in rules.items():
        try:
            is_empty = pc.match_substring_regex(pa.array([""]), pattern)[0].as_py()
        except (pa.ArrowException, ValueError) as error:
            why = str(error).splitlines()[0].removeprefix("Invalid regular expression: ")
            raise ConfigError(
                f"traffic.redact.{name} = {pattern!r} is not a regular expression of RE2 ({why}). "
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
    after, counts = _applied(before, rules)
    changed = np.flatnonzero(pc.not_equal(before, after).to_numpy(zero_copy_only=False))
    touched = set((np.searchsorted(ends, changed, side="right") - 1).tolist())
    return [_replaced(row, after, ends[n]) if n in touched else row for n, row in enumerate(rows)], counts


def quotable(value: Any, rules: Mapping[str, str]) -> Any:
    """Return any value without what the rules match, even in a role, an id or a key."""
    texts: list[str] = []
    _every(value, lambda text: texts.append(text) or text)
    # an unreadable row may hold half of a surrogate pair, which an Arrow text cannot hold
    after, _ = _applied(pa.array([text.encode(errors="replace").decode() for text in texts], pa.string()), rules)
    following = iter(after.to_pylist())
    return _every(value, lambda _: next(following))


def quoting(rules: Mapping[str, str]) -> AbstractContextManager[None]:
    """Clean whatever is quoted from a log in this context."""
    return cleaning((lambda value: quotable(value, rules)) if rules else None)


def _applied(texts: pa.Array, rules: Mapping[str, str]) -> tuple[pa.Array, dict[str, int]]:
    counts = dict.fromkeys(rules, 0)
    for name, pattern in rules.items():
        found = pc.sum(pc.count_substring_regex(texts, pattern)).as_py() or 0
        if found:
            counts[name] = found
            texts = pc.replace_substring_regex(texts, pattern, f"[{name}]".replace("\\", "\\\\"))
    return texts, counts


# -- names -----------------------------------------------------------------------------------------
def hidden(names: Sequence[str | None], rules: Mapping[str, str]) -> tuple[list[str | None], dict[str, int]]:
    """Return names, with a hash in place of each name in which a rule finds something. Also return
    for each rule in how many names it was the first to do so."""
    found, counts = list(names), dict.fromkeys(rules, 0)
    array = pa.array(names, pa.string())
    for rule, pattern in rules.items():
        for place in np.flatnonzero(pc.fill_null(pc.match_substring_regex(array, pattern), False)).tolist():
            name = names[place]
            if name is not None and found[place] is name:
                found[place] = f"sha256:{hashlib.sha256(name.encode()).hexdigest()[:16]}"
                counts[rule] += 1
    return found, counts


def hide(
    rows: Sequence[dict[str, Any]], keys: Iterable[str], rules: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Apply `hidden` to the ids of normal rows, and to the values in their records under `keys`.
    Each key may be a dotted path."""
    ids, counts = hidden([row["conversation_id"] for row in rows], rules)
    found: list[dict[str, Any]] = [row | {"conversation_id": name} for row, name in zip(rows, ids, strict=True)]
    for key in keys:
        names = [_name(row["record"], key) for row in rows]
        replaced, more = hidden(names, rules)
        counts = {rule: counts[rule] + more[rule] for rule in rules}
        for row, before, after in zip(found, names, replaced, strict=True):
            if after != before:
                row["record"] = _with(row["record"], _path(row["record"], key), after)
    return found, counts


def _name(record: Any, key: str) -> str | None:
    value = record
    for step in _path(record, key):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _path(record: Mapping[str, Any], key: str) -> list[str]:
    """Return the path of a value: the exact key if there is one, else the dotted path."""
    return [key] if key in record else key.split(".")


def _with(value: Any, path: Sequence[str], name: Any) -> Any:
    """Copy a record with another name at the end of a path."""
    if not path:
        return name
    step, rest = path[0], path[1:]
    return value | {step: _with(value[step], rest, name)}


# -- texts -----------------------------------------------------------------------------------------
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
    """Apply `leaf` to a text, or to the texts that it holds as JSON."""
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


def _every(value: Any, leaf: Leaf) -> Any:
    if isinstance(value, str):
        return _text(value, leaf)
    if isinstance(value, list):
        return [_every(item, leaf) for item in value]
    if isinstance(value, dict):
        return {leaf(str(key)): _every(item, leaf) for key, item in value.items()}
    return value
