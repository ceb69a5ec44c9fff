"""The files of a rollout store: numbered segments, each in one of two forms.

The last is a journal (`000007.jsonl`): a line a call, checksummed, written and fsynced before the call returns. When it has grown it is sealed:
its rows are written as Parquet beside it, and the rename to `000007.parquet` is the moment at which the journal of that number no longer counts.
No row is ever in both, and no keys need comparing. A rewrite is `000007-all.parquet`: from its rename on, nothing else numbered up to 7 counts.
What no longer counts is deleted, now or by the next opening.

At opening the last line of a journal may be torn: it was never acknowledged, and is cut off. A bad line before a good one, or a missing
number, is no kill's doing: that is an error, not a shorter log. DuckDB and pandas read `*.parquet` at any time, and the journal as JSON lines.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rft import rollout_log
from rft.errors import InfrastructureError
from rft.rollout_log import LogRow, cells

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"(\d{6})(-all)?\.(parquet|jsonl)")
_HEAD = len('{"crc32": "00000000", ')


class Kept(NamedTuple):
    """`rest`: what the row lacks of its rollout (rollout_log.rest); empty for a row that was never held."""

    row: LogRow
    wall_s: float
    batch: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a folder counts. `parts` in order; `last` is the highest number in use."""

    parts: tuple[Path, ...]
    journal: Path | None
    stale: tuple[Path, ...]
    last: int


def layout(folder: Path) -> Layout:
    """Raises InfrastructureError when a segment is missing."""
    found = [(int(hit[1]), bool(hit[2]), hit[3], path) for path in sorted(folder.iterdir()) if (hit := _NAME.fullmatch(path.name))]
    base, whole = max(((number, path) for number, rewrite, _, path in found if rewrite), default=(0, None))
    sealed = {number: path for number, rewrite, kind, path in found if kind == "parquet" and not rewrite and number > base}
    journals = {number: path for number, _, kind, path in found if kind == "jsonl" and number > base and number not in sealed}
    last = max([base, *sealed, *journals])
    if lost := [number for number in range(base + 1, last + 1) if number not in sealed and (number, number in journals) != (last, True)]:
        raise InfrastructureError(
            f"{folder}: segment {lost[0]:06d} of the rollout log is missing, so finished rollouts are lost. "
            "Put it back, or delete the folder: the stage then starts anew."
        )
    parts = ([whole] if whole else []) + [sealed[number] for number in sorted(sealed)]
    counted = {*parts, *journals.values()}
    stale = [path for *_, path in found if path not in counted] + sorted(folder.glob("*.part"))
    return Layout(tuple(parts), journals.get(last), tuple(stale), last)


# -- a journal -------------------------------------------------------------------------------------------------------------
class Journal:
    """A file of lines, made with the first one. `folder`: an open handle of where it lies."""

    def __init__(self, path: Path, folder: int, size: int = 0):
        self.path, self.size = path, size
        self._folder, self._handle = folder, -1

    def open(self) -> list[Kept]:
        """What its whole lines say; a torn end is cut off."""
        found, self.size = read_journal(self.path)
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._handle, self.size)
        os.fsync(self._handle)
        return found

    def append(self, line: bytes) -> None:
        """On the disk when it returns; after an OSError, not there."""
        if self._handle < 0:
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.fsync(self._folder)
        try:
            _write(self._handle, line)
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, self.size)  # a full disk leaves no half line behind
            raise
        self.size += len(line)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def line_of(kept: Sequence[Kept]) -> bytes:
    """Of one batch. Row by row: an encoder holds the interpreter as long as one call takes, 20 ms for a row of 20,000 tokens, and with it any event
    loop in the process."""
    head = json.dumps({"batch": kept[0].batch, "wall_s": [one.wall_s for one in kept]})[1:-1]
    rests, rows = (", ".join(map(json.dumps, found)) for found in ([one.rest for one in kept], (cells(one.row) for one in kept)))
    body = f'{head}, "rest": [{rests}], "rows": [{rows}]}}'.encode()
    return b'{"crc32": "%08x", %b\n' % (zlib.crc32(body), body)


def _read_line(line: bytes) -> list[Kept] | None:
    """None when it was not written whole."""
    head, body = line[:_HEAD], line[_HEAD:-1]
    if not line.endswith(b"\n") or head != b'{"crc32": "%08x", ' % zlib.crc32(body):
        return None
    found: dict[str, Any] = json.loads(b"{" + body)
    parts = zip(found["rows"], found["wall_s"], found["rest"], strict=True)
    return [Kept(LogRow(**row), wall_s, found["batch"], rest) for row, wall_s, rest in parts]


def read_journal(path: Path) -> tuple[list[Kept], int]:
    """Its rows, and the size of its whole lines. Raises InfrastructureError when a line was damaged after it had been written."""
    kept: list[Kept] = []
    size, torn = 0, 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        found = _read_line(line)
        if found is None:
            torn = torn or number
        elif torn:
            raise InfrastructureError(
                f"{path}: line {torn} was changed after it was written. Put the old file back, or delete the folder: the stage then starts anew."
            )
        else:
            kept += found
            size += len(line)
    return kept, size


def _write(handle: int, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(handle, view) :]


# -- a part ----------------------------------------------------------------------------------------------------------------
def schema() -> pa.Schema:
    """The shelf's columns, and what may not enter the shelf."""
    import pyarrow as pa

    return rollout_log.schema([("wall_s", pa.float64()), ("batch", pa.string()), ("rest", pa.string())])


def table(kept: Iterable[Kept]) -> pa.Table:
    import pyarrow as pa

    rows = [cells(one.row) | {"wall_s": one.wall_s, "batch": one.batch, "rest": one.rest} for one in kept]
    return pa.Table.from_pylist(rows, schema=schema())


def tables(part: Path) -> Iterator[pa.Table]:
    """A row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


def kept_in(part: Path) -> Iterator[Kept]:
    for found in tables(part):
        yield from map(Kept, rollout_log.rows_of(found), *(found[name].to_pylist() for name in ("wall_s", "batch", "rest")))
