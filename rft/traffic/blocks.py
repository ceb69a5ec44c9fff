"""Cut a log into blocks of whole lines, which processes turn into parts.

A block is a fixed number of bytes, or a little less. So blocks depend on the log alone, never on
how many processes work on them or on how a stream hands out its bytes. Small files share a block.

A line that is longer than the limit is skipped while it is read: it is never in memory as a whole.

Some formats have no lines (`is_lines` of the format): one document may hold many records. Their
records are read here, one after the other, and are passed on as our own JSON lines.

    cut(logs, formats, largest)      the blocks of a log
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from rft.errors import InfrastructureError

SIZE = 5 << 20
"""Bytes of a block. A part is compressed to about a fourth of that. A process needs ten times a
block in memory, and its parent three times."""
_STEP = 1 << 20
_BOM = b"\xef\xbb\xbf"


class Opened(Protocol):
    """A file of a log: what this module needs of rft/traffic/sources.py."""

    @property
    def name(self) -> str: ...

    def open(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of one file. `Piece(source=0, first_line=1, data=b'{"..."}\\n')`."""

    source: int
    first_line: int
    data: bytes
    is_end: bool = False
    """The file ends here. If its last line has no line break, it may be cut off."""
    is_rows: bool = False
    """The lines are our own, `[number, row or reason]`, made from a format without lines."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that was not kept. `Skipped(0, 17, "too long: ...")`."""

    source: int
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Block:
    number: int
    pieces: tuple[Piece, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(slots=True)
class _Filling:
    """The block that is being filled."""

    size: int
    number: int = 0
    used: int = 0
    pieces: list[Piece] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.size - self.used

    def close(self) -> Iterator[Block]:
        if self.pieces or self.skipped:
            yield Block(self.number, tuple(self.pieces), tuple(self.skipped))
            self.number, self.used, self.pieces, self.skipped = self.number + 1, 0, [], []

    def add(self, found: Piece | Skipped) -> Iterator[Block]:
        if isinstance(found, Skipped):
            self.skipped.append(found)
            return
        self.pieces.append(found)
        self.used += len(found.data)
        if self.room < self.size // 8:
            yield from self.close()


def cut(logs: Sequence[Opened], formats: Sequence[Any], largest: int, size: int = SIZE) -> Iterator[Block]:
    """Yield the blocks of a log. `largest`: the most bytes of a line that is read."""
    filling = _Filling(size)
    for source, (log, form) in enumerate(zip(logs, formats, strict=True)):
        read = _lines if form.is_lines else _records
        try:
            with log.open() as stream:
                for found in read(stream, source, largest, filling, form, log.name):
                    yield from filling.add(found)
        except OSError as error:
            what = f"{log.name}: reading it failed ({error.strerror or error})"
            raise InfrastructureError(f"{what}. What was read is kept: start again to continue.") from None
    yield from filling.close()


def _lines(
    stream: BinaryIO, source: int, largest: int, filling: _Filling, form: Any, name: str
) -> Iterator[Piece | Skipped]:
    """Yield whole lines, as many as fit into the block that is being filled."""
    buffer, line, is_over = bytearray(), 1, False
    while not is_over:
        is_over = _fill(stream, buffer, filling.room)
        if line == 1 and buffer.startswith(_BOM):
            del buffer[: len(_BOM)]
        end = buffer.rfind(b"\n") + 1
        while not end and not is_over and len(buffer) <= largest:
            seen = len(buffer)
            is_over = _fill(stream, buffer, seen + _STEP)
            end = buffer.find(b"\n", seen) + 1
        if not end and len(buffer) > largest:
            is_over = _skip_line(stream, buffer)
            yield Skipped(source, line, too_long(largest))
            line += 1
            continue
        end = len(buffer) if is_over else end
        if end:
            with memoryview(buffer) as view:
                data = bytes(view[:end])
            del buffer[:end]
            yield Piece(source, line, data, is_end=is_over)
            line += data.count(b"\n")
    reason = getattr(stream, "cut", None)
    if reason:
        yield Skipped(source, line, str(reason))


def too_long(largest: int) -> str:
    return f"too long: more than {largest >> 20} MB, see traffic.max_line_mb"


def _fill(stream: BinaryIO, buffer: bytearray, size: int) -> bool:
    """Read until the buffer has `size` bytes. Return whether the stream is over."""
    while len(buffer) < size:
        found = stream.read(min(_STEP, size - len(buffer)))
        if not found:
            return True
        buffer += found
    return False


def _skip_line(stream: BinaryIO, buffer: bytearray) -> bool:
    """Drop bytes up to the end of the line. Return whether the stream is over."""
    while True:
        end = buffer.find(b"\n") + 1
        if end:
            del buffer[:end]
            return False
        buffer.clear()
        if _fill(stream, buffer, _STEP) and not buffer:
            return True


def _records(
    stream: BinaryIO, source: int, largest: int, filling: _Filling, form: Any, name: str
) -> Iterator[Piece | Skipped]:
    """Yield the records of a document as lines of JSON."""
    buffer = bytearray()
    for number, row in form.rows(stream, name, largest=largest):
        buffer += json.dumps([number, row], default=dict).encode("utf-8", "surrogatepass") + b"\n"
        if len(buffer) >= filling.room:
            yield Piece(source, 0, bytes(buffer), is_rows=True)
            buffer.clear()
    if buffer:
        yield Piece(source, 0, bytes(buffer), is_rows=True)
