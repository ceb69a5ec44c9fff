"""Recognize the formats of logs by content, and read them into rows of our own format.

Nobody declares a format, because a window may hold several: the service moved from one API to
another, a second team sends traces. `recognize` looks at the first records of each file.

    row             a row, or the reason why a record is not a row
    chat            messages of any dialect in one form, and how parts of a conversation are joined
    pair            a request and its response, in the shapes in which people log them
    completions     OpenAI's chat completions
    responses       OpenAI's Responses API
    mlflow_traces   MLflow's traces
    otlp            OpenTelemetry's wire forms: JSON and protobuf, spans and log records
    genai           what GenAI spans say, in three generations of conventions
    spans           spans gathered into conversations
    format          lines and documents: how a file holds records
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from rft.errors import UserError
from rft.traffic.formats import completions, mlflow_traces, otlp, responses, spans
from rft.traffic.formats.chat import extend
from rft.traffic.formats.format import Format, of_documents, of_lines
from rft.traffic.formats.responses import roots
from rft.traffic.formats.row import Numbered, Row, Unreadable, parse
from rft.traffic.quoting import cleaned

__all__ = ["KNOWN", "OWN", "Format", "Row", "extend", "recognize", "roots"]

HEAD = 256 << 10
"""So many first bytes are enough to recognize a format."""
MOST_LINES = 1000
"""So many of their lines are tried one by one, because 100,000 lines may not be JSON."""


def _own(block: bytes, first_line: int, source: str) -> Numbered:
    raise AssertionError("our own format is read as columns, not row by row")


OWN = Format("own", True, _own)
"""One conversation per line, as docs/traffic.md describes."""

_RESPONSES = ("openai-responses", responses.is_mine, completions.read)
_COMPLETIONS = ("openai-chat-completions", completions.is_mine, completions.read)
_MLFLOW = ("mlflow-traces", mlflow_traces.is_mine, mlflow_traces.read)
_RECORDS = (_MLFLOW, _RESPONSES, _COMPLETIONS)  # the first that matches; OpenAI's two readers read either API
KNOWN = {
    "our own (docs/traffic.md)": OWN,
    "OpenAI chat completions": of_lines(_COMPLETIONS[0], _COMPLETIONS[2]),
    "OpenAI Responses": of_lines(_RESPONSES[0], _RESPONSES[2]),
    "MLflow traces": of_lines(_MLFLOW[0], _MLFLOW[2]),
    "OpenTelemetry spans (OTLP JSON or protobuf)": spans.JSON,
}


def recognize(head: bytes, name: str) -> Format:
    """Recognize the format of a file by its first bytes, decompressed (HEAD of them are enough).

    An empty file counts as our own format, without rows. Raises UserError naming the file and
    showing its first line.
    """
    if not head.strip(b" \t\r\n\xef\xbb\xbf"):
        return OWN
    framing = otlp.framing(head)
    if framing is not None:
        return spans.of_protobuf(framing)
    for record, is_line in _records(head):
        found = _format_of(record, is_line)
        if found is not None:
            return found
    raise UserError(
        f"{name}: its format is not recognized. It begins with {_first_line(head)}. Known are: {', '.join(KNOWN)}. "
        "Name a log in one of them, or convert it to our own."
    )


def _format_of(record: dict[str, Any], is_line: bool) -> Format | None:
    if otlp.is_mine(record):
        return spans.JSON
    for name, is_mine, read in _RECORDS:
        if is_mine(record):
            return of_lines(name, read) if is_line else of_documents(name, read)
    if is_line and ("messages" in record or "conversation_id" in record):
        return OWN
    return None


def _records(head: bytes) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the records in the head, and whether each is a line of its own. Whole lines come first,
    then the first value, whose end may be missing."""
    lines = head.split(b"\n")
    for line in lines[: min(len(lines) - 1, MOST_LINES)] if len(lines) > 1 else lines:
        try:
            yield from _inner(parse(line), True)
        except Unreadable:
            continue
    text = head.decode("utf-8-sig", "replace").lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(_mended(text))
    except (ValueError, RecursionError):
        return
    is_line = "\n" not in text[:end].rstrip()
    for record, is_one in _inner(value, is_line):
        if "request" in record or "body" in record:  # its answer may follow after the head
            record.setdefault("response", {})
        yield record, is_one


def _inner(value: Any, is_line: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the records in a value: the value itself, or the elements of a list that it is or
    holds."""
    if isinstance(value, list):
        yield from ((element, False) for element in value if isinstance(element, dict))
    if not isinstance(value, dict):
        return
    for key in ("traces", "data"):
        if isinstance(value.get(key), list):
            yield from ((element, False) for element in value[key] if isinstance(element, dict))
    yield value, is_line


def _mended(text: str) -> str:
    """Drop the last element of a JSON text that was cut, and close its open brackets."""
    opened: _Open | None = None
    at, cut, at_cut = 0, 0, opened
    while found := _TOKEN.match(text, at):
        mark, at = found.group(1), found.end()
        if mark in ("{", "["):
            opened = ("}" if mark == "{" else "]", opened)
            cut, at_cut = at, opened
        elif mark in ("}", "]"):
            if opened is None or opened[0] != mark:
                return text
            opened = opened[1]
            if opened is None:
                return text[:at]
        elif mark == ",":
            cut, at_cut = found.start(1), opened
    closing: list[str] = []
    while at_cut is not None:
        mark, at_cut = at_cut
        closing.append(mark)
    return text[:cut] + "".join(closing)


_Open: TypeAlias = "tuple[str, _Open | None]"
"""The mark that closes the innermost bracket, and the bracket around it. A list would be copied at
each comma."""


_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+)', re.DOTALL)


def _first_line(head: bytes) -> str:
    line = head.lstrip(b" \t\r\n").split(b"\n", 1)[0]
    try:
        line[:60].decode()
        return json.dumps(cleaned(line.decode(errors="replace"))[:60], ensure_ascii=False)
    except UnicodeDecodeError:
        return f"the bytes {head[:16].hex(' ')}"
