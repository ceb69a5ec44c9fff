"""Define a format: a name, and how the records of a file become rows.

Two kinds of container hold records. *Lines*: each line is a record, so a file can be cut anywhere
between lines and read by several processes. *Documents*: JSON values one after the other, in any
layout, such as one pretty-printed list. They are read from the beginning, with one value in memory
at a time. In both, a record that cannot be read gives a row that says why, and reading goes on
after it.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from rft.traffic.formats.row import Numbered, Read, Row, Unreadable, parse
from rft.traffic.quoting import shown

LARGEST = 64 << 20
"""Bytes of the largest record that is read: the default of traffic.max_line_mb."""
_CHUNK = 1 << 20

Reader = Callable[[dict[str, Any]], Read]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of logs. It may be pickled: workers get it by name and function."""

    name: str
    is_lines: bool
    rows: Callable[..., Numbered]
    """For lines: `rows(block, first_line, source)`, where `block` holds whole lines. For documents:
    `rows(stream, source, largest=LARGEST)`, where `largest` is traffic.max_line_mb in bytes."""


def of_lines(name: str, read: Reader) -> Format:
    return Format(name, True, partial(_lines, read))


def of_documents(name: str, read: Reader) -> Format:
    return Format(name, False, partial(_documents, read))


def read_record(read: Reader, value: Any) -> Iterator[Row | str]:
    """Read a record. If it cannot be read, yield a text that says why."""
    try:
        if not isinstance(value, dict):
            raise Unreadable(f"no object: {shown(value)}, expected a JSON object")
        yield from read(value)
    except Unreadable as error:
        yield str(error)
    except RecursionError:
        yield "not JSON: nested too deeply"


def _lines(read: Reader, block: bytes, first_line: int, source: str) -> Numbered:
    for number, line in enumerate(block.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            value = parse(line)
        except Unreadable as error:
            yield number, str(error)
            continue
        for row in read_record(read, value):
            yield number, row


def _documents(read: Reader, stream: BinaryIO, source: str, largest: int = LARGEST) -> Numbered:
    for number, value in documents(stream, largest):
        if isinstance(value, Unreadable):
            yield number, str(value)
            continue
        for row in read_record(read, value):
            yield number, row


def documents(stream: BinaryIO, largest: int = LARGEST) -> Iterator[tuple[int, Any]]:
    """Yield the JSON values of a stream with their numbers from 1. Values may follow each other, or
    be the elements of a list, or of the list that an object such as `{"traces": [...]}` holds.

    An Unreadable stands for a value that cannot be read. Reading then goes on at the next line that
    begins with `{` or `[`. A cut in the stream (rft/traffic/compressed.py) is the last value.
    """
    number = 0
    for value in _values(stream, largest):
        for element in _elements(value):
            number += 1
            yield number, element
    cut = getattr(stream, "cut", None)
    if cut:
        yield number + 1, Unreadable(cut)


def _elements(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        for key in ("traces", "data"):
            if isinstance(value.get(key), list):
                return value[key]
    return [value]


def _values(stream: BinaryIO, largest: int) -> Iterator[Any]:
    buffer = _Buffer(stream, largest)
    while buffer.has_more():
        try:
            yield buffer.value()
        except Unreadable as error:
            yield error


class _Buffer:
    """The part of a stream that is being parsed, as text.

    Bytes that are not UTF-8 become half surrogates, which no file can hold, and are found in the
    value that has them. An incomplete value is parsed again when the amount of text has doubled. So
    a long value takes a few attempts, not one per chunk.

    The text after a value that cannot be read is read again, because a record that was cut swallows
    the records after it. A log in which every line only opens a bracket would be read as often as
    it has lines: 20 kB took two seconds. So at most _REREAD characters more than the text itself
    are read again. After that, reading goes on where the parser stopped.
    """

    def __init__(self, stream: BinaryIO, largest: int) -> None:
        self._stream = stream
        self._largest = largest
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._is_over = False
        self._in_list = False
        self._failed = False
        self._passed = self._reread = 0

    def has_more(self) -> bool:
        """Skip what is between values, and return whether there is another one."""
        while True:
            self._at = _end(_BETWEEN, self._text, self._at)
            mark = self._text[self._at : self._at + 1]
            if self._in_list and mark in (",", "]"):
                self._in_list = mark == ","
            elif not self._in_list and mark == "[":
                self._in_list = True
            elif mark or not self._read():
                return bool(mark)
            else:
                continue
            self._at += 1

    def value(self) -> Any:
        """Parse the next value, and move behind it. Raises Unreadable."""
        if self._failed and (found := _NO_KEY.match(self._text, self._at)):  # three times as fast as the parser
            self._resume(found.end() - 1)
            raise Unreadable("not JSON: Expecting property name enclosed in double quotes")
        while True:
            size = len(self._text) - self._at
            try:
                value, end = self._parsed()
            except RecursionError:
                self._resume(self._at + sys.getrecursionlimit())
                raise Unreadable("not JSON: nested too deeply") from None
            except ValueError as error:
                is_open = self._is_open(error)
                if is_open and size <= self._largest and self._read(size):
                    continue
                is_cut = is_open and not self._goes_on(error)
                self._resume(getattr(error, "pos", self._at))
                if is_open and size > self._largest:
                    raise Unreadable(_TOO_LARGE.format(self._largest >> 20)) from None
                raise Unreadable(_CUT if is_cut else f"not JSON: {error}") from None
            else:
                if end == len(self._text) and self._read():
                    continue  # a number may go on
                return self._taken(value, end)

    def _parsed(self) -> tuple[Any, int]:
        """Parse at this place. After a failure, try a short piece first. For each error the parser
        counts lines from the beginning of its text, and where one record is broken, others may be,
        too.
        """
        if self._failed:
            piece = self._text[self._at : self._at + _PIECE]
            try:
                value, end = _DECODER.raw_decode(piece)
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated") and error.pos < len(piece) - _LONGEST_TOKEN:
                    error.pos += self._at
                    raise
            else:
                if end < len(piece):
                    return value, self._at + end
        return _DECODER.raw_decode(self._text, self._at)

    def _taken(self, value: Any, end: int) -> Any:
        start, self._at = self._at, end
        if end - start > self._largest:
            raise Unreadable(_TOO_LARGE.format(self._largest >> 20))
        raw = self._text[start:end]
        if not raw.isascii():
            try:
                raw.encode()
            except UnicodeEncodeError as error:
                raise Unreadable(f"not UTF-8: character {error.start + 1} of the record") from None
        return parse(raw) if "\\u" in raw else value

    def _is_open(self, error: ValueError) -> bool:
        """Whether more text could still make it JSON: the parser failed at the end, or in a string
        that does not end."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _LONGEST_TOKEN

    def _goes_on(self, error: ValueError) -> bool:
        """Whether there is another line after the one in which the parser failed."""
        return self._text.find("\n", getattr(error, "pos", 0)) >= 0

    def _resume(self, reached: int) -> None:
        """Drop text up to the next line that begins a value. `reached`: where parsing stopped."""
        self._failed = True
        reached = min(max(reached, self._at), len(self._text))
        if self._reread + reached - self._at <= _REREAD + self._passed + self._at:
            self._reread += reached - self._at
        else:
            self._at = max(self._at, reached - 1)  # the line may begin right here
        while True:
            found = _NEXT.search(self._text, self._at)
            if found:
                self._at = found.start() + 1
                return
            self._at = max(self._at, len(self._text) - 1)
            if not self._read():
                self._at = len(self._text)
                return

    def _read(self, at_least: int = 0) -> bool:
        """Read on, and drop what was parsed. Returns whether anything came."""
        if self._is_over:
            return False
        more = self._stream.read(max(at_least, _CHUNK))
        self._is_over = not more
        self._passed += self._at
        self._text = self._text[self._at :] + self._decoder.decode(more, final=not more)
        self._at = 0
        return bool(more)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_BETWEEN = re.compile("[ \\t\\r\\n\ufeff]*")
_NEXT = re.compile(r"\n[{\[]")
_NO_KEY = re.compile(r"(?:\[[ \t\r\n]*+){0,4}+\{[ \t\r\n]*+[^\"} \t\r\n]")
_PIECE, _REREAD = 4096, 1 << 17
_LONGEST_TOKEN = 16  # of tokens whose error is reported at their beginning: -Infinity, \\ud83d\\ude00
_CUT = "cut off: the file ends in this record, its last"
_TOO_LARGE = "too large: a record of more than {} MB, see traffic.max_line_mb"
