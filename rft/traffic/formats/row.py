"""Define what a format makes from a log: rows, each a conversation or a part of one.

A format never raises for what a log holds. It yields a row, or a text that says why there is no
row: `CLASS: detail`. The class is the same for all rows with that problem, so that a report can
count them. Inside a format the problem is raised as `Unreadable`.

    parse       parses one JSON text; also refuses what no file can hold (NaN, half a surrogate
                pair)
    loaded      parses a value that may be JSON text inside JSON
    iso         writes a time of a log as ISO 8601 in UTC
    mapping     returns an object, or an empty one for any other value
    listing     returns a list, or an empty one for any other value
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict, TypeGuard

import msgspec

NO_ID = "no conversation id"
"""Note of a row whose log names no conversation: the row is only its request or trace."""


class Row(TypedDict):
    """A conversation, or a part of one. `Row(conversation_id="c-1", messages=[...], ...)`."""

    conversation_id: str
    time: str  # ISO 8601 with its zone
    messages: list[dict[str, Any]]  # chat messages, arguments of calls as JSON text
    latency_s: float | None
    tool_errors: int | None
    feedback: Any
    tools: list[dict[str, Any]] | None  # schemas offered
    record: Mapping[str, Any]  # where `traffic.unit` and `traffic.columns` are looked up
    continues: bool  # it may hold only what is new, and is joined with `chat.extend`
    alias: NotRequired[str]  # another name of this conversation, by which later rows may call it
    note: NotRequired[str]  # to be counted, such as NO_ID
    counts: NotRequired[dict[str, int]]  # what was left out of the row, by reason


Read = Iterator[Row | str]
Numbered = Iterator[tuple[int, Row | str]]


class Unreadable(Exception):
    """A record that is not a conversation. Its text says why, and begins with the class of
    problem."""


def parse(text: str | bytes) -> Any:
    """Parse JSON. Raises Unreadable for what is not JSON, or could not be written again."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _DECODER.decode(text)
    try:
        found = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: byte {error.start + 1} of the line") from None
    try:
        value = json.loads(found, parse_constant=_refuse)
        if "\\u" in found:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unreadable("not JSON: half of a surrogate pair (\\ud800 to \\udfff)") from None
    except RecursionError:
        raise Unreadable("not JSON: nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    return value


_DECODER = msgspec.json.Decoder()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def loaded(value: Any) -> Any:
    """Parse a value that was logged as JSON text; anything else stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse(value)
        except Unreadable:
            return value
    return value


def iso(value: Any) -> str | None:
    """Return a time as ISO 8601 in UTC, given seconds since 1970, or a text with a zone. None for
    anything else.

    `iso(1767225600)` is `2026-01-01T00:00:00Z`.
    """
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            if time.tzinfo is None:
                return None
        elif is_number(value):
            time = datetime.fromtimestamp(value, UTC)
        else:
            return None
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mapping(value: Any) -> dict[str, Any]:
    """Return an object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as an empty one."""
    return value if isinstance(value, list) else []


def name_of(value: Any) -> str | None:
    """Return an id as a text: a text that is not empty, or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None
