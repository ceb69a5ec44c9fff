"""Read the user's own rows, and keep them byte for byte.

A data set for reinforcement fine-tuning is JSON lines, with keys that its author chose. Tools and
graders were written for those rows, so they get a row untouched: its numbers, the order of its
keys, and keys that mean nothing to us. (A row that we rebuilt from four fields made a published
grader silently answer 0.25 where 0.68 was right.) Only `messages` is required; a row may have
`tools` and `response_format`. The rest is read by the keys in `examples.keys` of params.yaml:

    id        a text or whole number. The id of a row without one is the SHA-256 of its line
    target    any JSON; without one, the preflight cannot measure whether targets pass, and says so
    slice     a text, number or truth value

    lines(path)                   the rows of a file as they are, each with its place: what a
                                  recipe's `examples()` may return
    read(line, keys, remedy)      a row as an `Example`
    check_named(...)              refuses a key in `examples.keys` that no row has
    check_graded(...)             refuses a template of the grader that no row fills
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rft import config, reports
from rft.config import graders, response_format
from rft.config.templates import Template
from rft.errors import ConfigError, UserError, did_you_mean
from rft.types import Example, Message

ROLES = ("system", "developer", "user", "assistant", "tool")
_WHITESPACE = " \t\r\n"  # JSON's own, which is not part of the object that it surrounds
_CONVENTION = config.Keys(id="id", target="target", slice="metadata.slice")
_ABSENT = object()


class Line(NamedTuple):
    """One row as it came. `Line('{"messages": ...}', "train.jsonl:17")`."""

    text: str
    where: str


Given = Example | Line | str | Mapping[str, Any]
"""What a recipe may return as a row. An object is written as JSON once, here."""


def lines(path: Path) -> list[Line]:
    """Return the lines of a JSONL file that are not blank. Raises UserError for a file that cannot
    be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Name a file of JSON lines.") from None
    return split(path, content, "Save it as UTF-8.")


def split(path: Path, content: bytes, remedy: str) -> list[Line]:
    """Do the same for bytes that were read already. Raises UserError naming the line that is not
    UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{number}: not UTF-8. {remedy}") from None
    numbered = enumerate(text.split("\n"), 1)
    return [Line(line.strip(_WHITESPACE), f"{path}:{number}") for number, line in numbered if line.strip(_WHITESPACE)]


def line_of(row: Given, where: str, keys: config.Keys | None = None) -> Line:
    """Write a row as a line. `where` is the place of a row that does not know its own. `keys`:
    those by which it will be read."""
    if isinstance(row, Line):
        return row
    if isinstance(row, Example):
        return Line(_under(keys or config.Keys(), row), f"{where} ({row.id})" if row.id else where)
    if isinstance(row, str):
        return Line(row.strip(_WHITESPACE), where)
    try:
        return Line(json.dumps(row, ensure_ascii=False, allow_nan=False), where)
    except (TypeError, ValueError) as error:
        remedy = "Return an Example, a dict of JSON values, or a line of a file."
        raise UserError(f"{where}: is not a JSON object: {error}. {remedy}") from None


def _under(keys: config.Keys, example: Example) -> str:
    """Return the row. If it was made from our fields, its id, target and slice are also under the
    user's keys. So a row that from_traffic makes is read like one of a file."""
    row, named = example.row(), {keys.id: example.id, keys.target: example.target, keys.slice: example.slice}
    missing = {
        path: value
        for path, value in named.items()
        if path is not None and value is not None and find(row, path) is _ABSENT
    }
    if not missing or not example.is_spelled:
        return example.line
    for path, value in missing.items():
        _put(row, path, value)
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _put(row: dict[str, Any], path: str, value: Any) -> None:
    """Put a value where `find` finds it."""
    *parts, last = path.split(".")
    place = row
    for part in parts:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):  # another value is there: take the path as one key
            row[path] = value
            return
        place = inner
    place[last] = value


def read(line: Line, keys: config.Keys, remedy: str, is_cut: bool = False) -> Example:
    """Read a row. Raises UserError naming the place and the key for a row that is not an object, or
    that a policy cannot answer.

    `is_cut`: its file ends without a line break, so the line may be cut off.
    """
    if "\n" in line.text or "\r" in line.text:
        remedy = f"Write it without line breaks, or return the object. {remedy}"
        raise UserError(f"{line.where}: spans several lines, and a row is one line of JSON. {remedy}")
    row = reports.parse_line(line.text, line.where, remedy, is_cut)
    name = _name(row, keys, line, remedy)
    target = find(row, keys.target or _CONVENTION.target)
    metadata = row.get("metadata")
    return Example(
        id=name,
        messages=tuple(_messages(row.get("messages"), line.where, remedy)),
        target=None if target is _ABSENT else target,
        metadata=metadata if isinstance(metadata, dict) else {},
        tools=_tools(row.get("tools"), line.where, remedy),
        response_format=response_format.read(row.get("response_format"), line.where),
        slice=_slice(row, keys, line.where, remedy),
        line=line.text,
    )


def find(row: Mapping[str, Any], path: str | None) -> Any:
    """Find the value of a key or a dotted path; `_ABSENT` where there is none."""
    assert path is not None
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def has(row: Mapping[str, Any], path: str) -> bool:
    """Whether a row has this key or dotted path."""
    return find(row, path) is not _ABSENT


def sha256(some: Iterable[Example]) -> str:
    """Hash the bytes of their lines, in order. For a whole split this is its file's hash."""
    return hashlib.sha256("".join(f"{row.line}\n" for row in some).encode()).hexdigest()


def check_named(rows: Sequence[Example], keys: config.Keys, where: str) -> None:
    """Raise ConfigError for a key of `examples.keys` that no row has."""
    parsed = [row.row() for row in rows]
    for word, path in keys.model_dump(exclude_none=True).items():
        if not parsed or any(has(row, path) for row in parsed):
            continue
        problem = f"examples.keys.{word} = {path!r} names nothing: no row of {where} has it."
        raise ConfigError(f"params.yaml: {problem} {did_you_mean(path, _paths(parsed[0]))}")


def check_graded(rows: Sequence[Example], grader: graders.Grader, where: str) -> None:
    """Raise ConfigError for a template of the grader that no row can fill. Without this check, the
    first rollouts would all fail on it, which would be taken for an outage."""
    parsed = [row.row() for row in rows]
    for place in (place for text in grader.texts for place in Template.read(text).places):
        if place.namespace != "item" or not parsed or any(place.is_in({"item": row}) for row in parsed):
            continue
        problem = f"the grader's {{{{{place.text}}}}} names nothing: no row of {where} has it."
        path = ".".join(map(str, place.path))
        raise ConfigError(f"grader.json: {problem} {did_you_mean(path, _paths(parsed[0]))}")


def _paths(row: Mapping[str, Any]) -> Iterable[str]:
    for key, value in row.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in value)


# -- our words -------------------------------------------------------------------------------------
def _name(row: Mapping[str, Any], keys: config.Keys, line: Line, remedy: str) -> str:
    key = keys.id or _CONVENTION.id
    value = find(row, key)
    if value is _ABSENT or value is None:
        return hashlib.sha256(line.text.encode()).hexdigest()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise UserError(
            f"{line.where}: {key} is {_shown(value)}, expected a non-empty text or a whole number. {remedy} If another "
            "key holds the id, name it in examples.keys.id."
        )
    return value


def _slice(row: Mapping[str, Any], keys: config.Keys, where: str, remedy: str) -> str:
    key = keys.slice or _CONVENTION.slice
    value = find(row, key)
    if value is _ABSENT or value is None:
        return "all"
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{where}: {key} is {_shown(value)}, expected a text, a number, true or false, to name a group of rows. "
            f"{remedy} If another key holds the group, name it in examples.keys.slice."
        )
    return str(value) or "all"


def _tools(value: Any, where: str, remedy: str) -> tuple[dict[str, Any], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise UserError(f"{where}: tools is {_shown(value)}, expected a list of Chat-Completions functions. {remedy}")
    return tuple(value)


def _messages(messages: Any, where: str, remedy: str) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: has no messages: {_shown(messages)}. {remedy}")
    read = [_message(message, f"messages[{n}]", where, remedy) for n, message in enumerate(messages)]
    if read[-1]["role"] != "user":
        raise UserError(
            f"{where}: the last message is the {read[-1]['role']}'s, expected the user's: it is what the policy "
            f"answers. {remedy}"
        )
    return read


def _message(message: Any, key: str, where: str, remedy: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise UserError(f"{where}: {key} is {_shown(message)}, expected a chat message with role and content. {remedy}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{key}.content[{n}]", where, remedy) for n, part in enumerate(content))
    elif not isinstance(content, str | None):
        expected = "a text or a list of text parts"
        raise UserError(f"{where}: {key}.content is {_shown(content)}, expected {expected}. {remedy}")
    return {**message, "content": content}


def _part(part: Any, key: str, where: str, remedy: str) -> str:
    is_text = isinstance(part, dict) and part.get("type", "text") in ("text", "input_text")
    if is_text and isinstance(part.get("text"), str):
        return part["text"]
    expected = 'a text part {"type": "text", "text": ...}: policies here read text'
    raise UserError(f"{where}: {key} is {_shown(part)}, expected {expected}. {remedy}")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]
