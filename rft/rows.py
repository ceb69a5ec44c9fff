"""A row of the user's own, and what we need to know of it.

A data set for reinforcement fine-tuning is JSON lines with the keys of whoever wrote it. Tools and
graders were written against those very rows, so a row travels to them untouched, byte for byte:
numbers, order of keys, and keys that mean nothing to us. (Rebuilt from four fields of ours, it made
a published grader answer 0.25 where 0.68 was right, without a word.) Only `messages` is required,
with `tools` and `response_format` where the row has its own. What else we need is read by the keys
that `examples.keys` in params.yaml names:

    id        a text or whole number. A row without one is known by the SHA-256 of its line
    target    any JSON; without one, the preflight cannot measure that targets pass, and says so
    slice     a text, number or truth value

    lines(path)                   the rows of a file, each with its place, unread: what a recipe's
                                  `examples()` may return
    read(line, keys, remedy)      a row as an `Example`
    check_named(...)              a key that is written down and in no row is a mistake
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rft import config, reports
from rft.config import response_format
from rft.errors import ConfigError, UserError, did_you_mean
from rft.types import Example, Message

ROLES = ("system", "developer", "user", "assistant", "tool")
_WHITESPACE = " \t\r\n"  # JSON's own: what stands around an object is no part of it
_CONVENTION = config.Keys(id="id", target="target", slice="metadata.slice")
_ABSENT = object()


class Line(NamedTuple):
    """One row as it came. `Line('{"messages": ...}', "train.jsonl:17")`."""

    text: str
    where: str


Given = Example | Line | str | Mapping[str, Any]
"""What a recipe may return as a row. An object is written as JSON once, here."""


def lines(path: Path) -> list[Line]:
    """The lines of a JSONL file that are not blank. Raises UserError for a file that cannot be
    read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Name a file of JSON lines.") from None
    return split(path, content, "Save it as UTF-8.")


def split(path: Path, content: bytes, remedy: str) -> list[Line]:
    """The same of bytes that were read already. Raises UserError naming the line that is not
    UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{number}: not UTF-8. {remedy}") from None
    numbered = enumerate(text.split("\n"), 1)
    return [Line(line.strip(_WHITESPACE), f"{path}:{number}") for number, line in numbered if line.strip(_WHITESPACE)]


def line_of(row: Given, where: str) -> Line:
    """`where`: of a row that does not know its own place."""
    if isinstance(row, Line):
        return row
    if isinstance(row, Example):
        return Line(row.line, f"{where} ({row.id})" if row.id else where)
    if isinstance(row, str):
        return Line(row.strip(_WHITESPACE), where)
    try:
        return Line(json.dumps(row, ensure_ascii=False, allow_nan=False), where)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where}: is no JSON object: {error}. Return an Example, a dict of JSON values, or a line of a file."
        ) from None


def read(line: Line, keys: config.Keys, remedy: str, is_cut: bool = False) -> Example:
    """Raises UserError naming the place and the key for a row that is no object, or cannot be
    answered by a policy.

    `is_cut`: its file ends without a line break, so that what is wrong with it may be that.
    """
    if "\n" in line.text or "\r" in line.text:
        remedy = f"Write it without line breaks, or return the object. {remedy}"
        raise UserError(f"{line.where}: spans several lines, and a row is one line of JSON. {remedy}")
    row = reports.parse_line(line.text, line.where, remedy, is_cut)
    name = _name(row, keys, line, remedy)
    metadata = row.get("metadata")
    return Example(
        id=name,
        messages=tuple(_messages(row.get("messages"), line.where, remedy)),
        target=_none_if_absent(find(row, keys.target or _CONVENTION.target)),
        metadata=metadata if isinstance(metadata, dict) else {},
        tools=_tools(row.get("tools"), line.where, remedy),
        response_format=response_format.read(row.get("response_format"), line.where),
        slice=_slice(row, keys, line.where, remedy),
        line=line.text,
    )


def find(row: Mapping[str, Any], path: str | None) -> Any:
    """The value of a key, or at the end of a dotted path; `_ABSENT` where there is none."""
    assert path is not None
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def sha256(some: Iterable[Example]) -> str:
    """Of the bytes of their lines, in order: of a whole split, its file's own."""
    return hashlib.sha256("".join(f"{row.line}\n" for row in some).encode()).hexdigest()


def check_named(rows: Sequence[Example], keys: config.Keys, where: str) -> None:
    """Raises ConfigError for a key of `examples.keys` that no row has."""
    parsed = [row.row() for row in rows]
    for word, path in keys.model_dump(exclude_none=True).items():
        if not parsed or any(find(row, path) is not _ABSENT for row in parsed):
            continue
        hint = did_you_mean(path, _paths(parsed[0]))
        raise ConfigError(
            f"params.yaml: examples.keys.{word} = {path!r} names nothing: no row of {where} has it. {hint}"
        )


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
            f"{line.where}: {key} is {_shown(value)}, expected a text that is not empty, or a whole number. {remedy} "
            "If it names something else, say in examples.keys.id which key does."
        )
    return value


def _slice(row: Mapping[str, Any], keys: config.Keys, where: str, remedy: str) -> str:
    key = keys.slice or _CONVENTION.slice
    value = find(row, key)
    if value is _ABSENT or value is None:
        return "all"
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{where}: {key} is {_shown(value)}, expected a text, a number or true or false: it names a group of rows. "
            f"{remedy} If it means something else, say in examples.keys.slice which key does."
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
        raise UserError(
            f"{where}: {key}.content is {_shown(content)}, expected a text or a list of text parts. {remedy}"
        )
    return {**message, "content": content}


def _part(part: Any, key: str, where: str, remedy: str) -> str:
    if (
        not isinstance(part, dict)
        or part.get("type", "text") not in ("text", "input_text")
        or not isinstance(part.get("text"), str)
    ):
        raise UserError(
            f'{where}: {key} is {_shown(part)}, expected a text part {{"type": "text", "text": ...}}: policies here '
            f"read text. {remedy}"
        )
    return part["text"]


def _none_if_absent(value: Any) -> Any:
    return None if value is _ABSENT else value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


__all__ = ["ROLES", "Given", "Line", "check_named", "find", "line_of", "lines", "read", "split"]
