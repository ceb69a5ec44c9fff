"""Decompress a file of a log as it streams.

Compression is recognized by the first bytes, not by the name: gzip and Zstandard, each with any
number of members. A compressed file that is cut off gives what was before the cut. Then the stream
ends, and its `cut` says so. A caller that reads to the end checks `cut`, so that a cut is reported
like a row that cannot be read.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

_CHUNK = 1 << 20
_PIECE = 1 << 16  # of Zstandard. The last piece of a broken file is read byte by byte
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of a Zstandard frame without content. Parallel writers begin with such a frame."""


class Stream(io.RawIOBase):
    """The decompressed content of a log. After the end, `cut` says why it ended early; it is empty
    if it did not."""

    def __init__(self, open_raw: Callable[[], BinaryIO]) -> None:
        super().__init__()
        self.cut = ""
        self._open_raw = open_raw
        self._raw = open_raw()
        self._parts = self._decompressed()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def read(self, size: int = -1, /) -> bytes:
        """Read `size` bytes; fewer only at the end."""
        parts: list[bytes] = []
        left = size
        while left:
            part = super().read(left if size >= 0 else _CHUNK)
            if not part:
                break
            parts.append(part)
            left -= len(part) if size >= 0 else 0
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()

    def _decompressed(self) -> Iterator[bytes]:
        first = self._raw.read(4)
        chunks = _chunks(first, self._raw)
        if first[:2] == _GZIP:
            return self._gunzipped(chunks)
        if first == _ZSTD or (first[1:] == _SKIPPABLE and first[0] >> 4 == 5):
            return self._unzstd()
        return chunks

    def _gunzipped(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        member = None
        try:
            for chunk in chunks:
                while chunk:
                    if member is None:
                        chunk = chunk.lstrip(b"\0")  # some writers pad to whole blocks
                        if not chunk:
                            break
                        member = zlib.decompressobj(31)
                    part = member.decompress(chunk, _CHUNK)
                    if part:
                        yield part
                    chunk = member.unconsumed_tail or member.unused_data
                    if member.eof:
                        member = None
        except zlib.error as error:
            self.cut = f"broken: the gzip file cannot be decompressed from here on ({error})"
        else:
            if member is not None:
                yield member.flush()
                self.cut = "cut off: the gzip file ends in the middle"

    def _unzstd(self) -> Iterator[bytes]:
        """Decompress with Arrow, which loses what it decompressed of a piece that it cannot
        complete. So the last piece of a broken file is read again, byte by byte."""
        num_pieces = 0
        try:
            for part in _Zstd(self._reopened()):
                num_pieces += 1
                yield part
            return
        except _Broken as error:
            self.cut = str(error)
        with contextlib.suppress(_Broken):
            again = _Zstd(self._reopened())
            pieces = iter(again)
            for _ in range(num_pieces):
                next(pieces)
            again.size = 1
            yield from pieces

    def _reopened(self) -> BinaryIO:
        self._raw.close()
        self._raw = self._open_raw()
        return self._raw


def _chunks(first: bytes, raw: BinaryIO) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = raw.read(_CHUNK)


class _Broken(Exception):
    """A compressed file that cannot be read to its end. Its text is the stream's `cut`."""


class _Zstd:
    """The pieces of a Zstandard file. `size` may change between two pieces."""

    def __init__(self, raw: BinaryIO) -> None:
        import pyarrow as pa

        self.size = _PIECE
        self._raw = pa.PythonFile(raw, mode="r")
        self._stream = pa.CompressedInputStream(self._raw, "zstd")

    def __iter__(self) -> Iterator[bytes]:
        while part := self._piece():
            yield part

    def _piece(self) -> bytes:
        try:
            return self._stream.read(self.size)
        except OSError as error:
            if "Truncated" in str(error):
                raise _Broken("cut off: the zstd file ends in the middle") from None
            raise _Broken(f"broken: the zstd file cannot be decompressed from here on ({error})") from None
