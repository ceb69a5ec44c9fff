"""The rollout log of a stage in progress: what was added stays, once, whatever kills the stage.

    with RolloutStore(work / "rollouts") as store:
        store.add_all(rows, seconds, "step-3")      durable when it returns: all of the batch, or none of it
        store.batch("step-3")                       (rows, seconds); None when it was never finished: then roll it out
        store.keep(lambda row: row.step <= 2)       atomic: what is newer than the checkpoint is made again
        rollout_log.write(store, shelf)             in the order of adding

The folder holds numbered segments, each in one of two forms. The last is a journal (`000007.jsonl`): a line a call, checksummed, written and
fsynced before `add_all` returns. When it has grown it is sealed: its rows are written as Parquet beside it, and the rename to `000007.parquet`
is the moment at which the journal of that number no longer counts. No row is ever in both, and no keys need comparing. A rewrite is
`000007-all.parquet`: from its rename on, nothing else numbered up to 7 counts. What no longer counts is deleted, now or by the next opening.

At opening the last line of the journal may be torn: it was never acknowledged, and is cut off. A bad line before a good one, or a missing
number, is no kill's doing: that is an error, not a shorter log. DuckDB and pandas read `*.parquet` at any time, and the journal as JSON lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rft import rollout_log
from rft.errors import InfrastructureError
from rft.rollout_log import LogRow, cells

if TYPE_CHECKING:
    import pyarrow as pa

SEAL_ROWS = 512
SEAL_BYTES = 16 << 20
_NAME = re.compile(r"(\d{6})(-all)?\.(parquet|jsonl)")
_HEAD = len('{"crc32": "00000000", ')


class Kept(NamedTuple):
    row: LogRow
    wall_s: float
    batch: str


@dataclass(frozen=True, slots=True)
class _Layout:
    """What of a folder counts. `parts` in order; `last` is the highest number in use."""

    parts: tuple[Path, ...]
    journal: Path | None
    stale: tuple[Path, ...]
    last: int


class RolloutStore:
    """One writer at a time: a second one, in whatever process, is refused."""

    def __init__(self, folder: Path, seal_rows: int = SEAL_ROWS, seal_bytes: int = SEAL_BYTES):
        self.folder, self._seal_rows, self._seal_bytes = folder, seal_rows, seal_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._journal = -1
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice. Nothing waits to be written."""
        for handle in (self._journal, self._lock):
            if handle >= 0:
                os.close(handle)
        self._journal = self._lock = -1

    # -- adding ------------------------------------------------------------------------------------------------------------
    def add(self, row: LogRow, wall_s: float, batch: str = "") -> None:
        self.add_all([row], [wall_s], batch)

    def add_all(self, rows: Sequence[LogRow], seconds: Sequence[float], batch: str = "") -> None:
        """On the disk when it returns: all rows or, after a kill or an OSError, none. A named batch is added once."""
        assert len(rows) == len(seconds) > 0, "a batch has rows, and a time for each"
        assert not batch or batch not in self, f"batch {batch!r} is there already"
        line = _line(rows, seconds, batch)
        if self._journal < 0:
            self._journal = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.fsync(self._lock)
        try:
            _write(self._journal, line)
            os.fsync(self._journal)
        except OSError:
            os.ftruncate(self._journal, self._size)  # a full disk leaves no half line behind
            raise
        self._size += len(line)
        self._waiting += [Kept(*one, batch) for one in zip(rows, seconds, strict=True)]
        if len(self._waiting) >= self._seal_rows or self._size >= self._seal_bytes:
            self.seal()

    def seal(self) -> None:
        """Turn the journal into Parquet. It is done by itself now and then."""
        if not self._waiting:
            return
        part = self.folder / f"{self._number:06d}.parquet"
        rollout_log.write_tables([_table(self._waiting)], _schema(), part)
        self._sealed(part)

    # -- looking -----------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return sum(self._lengths.values()) + len(self._waiting)

    def __iter__(self) -> Iterator[LogRow]:
        """In the order of adding, a part at a time: a log may be longer than memory."""
        return (one.row for one in self._kept())

    def __contains__(self, batch: object) -> bool:
        return batch in self._batches or any(one.batch == batch for one in self._waiting)

    def rows(self) -> list[LogRow]:
        return list(self)

    def seconds(self, where: Callable[[LogRow], bool] = lambda row: True) -> list[float]:
        """Wall time of each rollout that fits, in the order of adding."""
        return [one.wall_s for one in self._kept() if where(one.row)]

    def batch(self, name: str) -> tuple[list[LogRow], list[float]] | None:
        """Rows and seconds of a finished batch, in its order."""
        if name not in self:
            return None
        kept = [*_kept_in(self._batches[name])] if name in self._batches else self._waiting
        found = [one for one in kept if one.batch == name]
        return [one.row for one in found], [one.wall_s for one in found]

    # -- rewriting ---------------------------------------------------------------------------------------------------------
    def keep(self, where: Callable[[LogRow], bool]) -> int:
        """Forget all rows but these, at one moment; how many are gone. Of a named batch all rows go or none."""
        gone, going, staying = 0, set[str](), set[str]()
        for one in self._kept():
            stays = where(one.row)
            gone += not stays
            (staying if stays else going).add(one.batch)
        assert not going & staying - {""}, f"only a part of batch {min(going & staying - {''})!r} would be dropped"
        if gone:
            number = self._number if self._waiting else self._number - 1
            part = self.folder / f"{number:06d}-all.parquet"
            rollout_log.write_tables(self._filtered(where), _schema(), part)
            self._number = number
            self._parts.clear()
            self._lengths.clear()
            self._batches.clear()
            self._sealed(part)
        return gone

    def drop(self, where: Callable[[LogRow], bool]) -> int:
        return self.keep(lambda row: not where(row))

    # -- the folder --------------------------------------------------------------------------------------------------------
    def _open(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when the holder dies
        except BlockingIOError:
            raise InfrastructureError(f"{self.folder}: another process writes this stage's rollouts. Wait until it ends, or stop it.") from None
        layout = _layout(self.folder)
        self._parts: list[Path] = []
        self._lengths: dict[Path, int] = {}
        self._batches: dict[str, Path] = {}
        self._waiting: list[Kept] = []
        self._size = 0
        for path in layout.stale:
            path.unlink()
        for part in layout.parts:
            self._remember(part)
        self._number = layout.last + 1
        if layout.journal is not None:
            self._number = layout.last
            self._waiting, self._size = _read_journal(layout.journal)
            self._journal = os.open(layout.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.ftruncate(self._journal, self._size)
            os.fsync(self._journal)

    @property
    def _path(self) -> Path:
        return self.folder / f"{self._number:06d}.jsonl"

    def _remember(self, part: Path) -> None:
        import pyarrow.parquet as pq

        names = pq.read_table(part, columns=["batch"])["batch"].to_pylist()
        self._parts.append(part)
        self._lengths[part] = len(names)
        self._batches |= dict.fromkeys(filter(None, names), part)

    def _sealed(self, part: Path) -> None:
        """The part stands under its name; what it stands for goes, and a new journal begins at the next row."""
        self._remember(part)
        if self._journal >= 0:
            os.close(self._journal)
        self._journal, self._size, self._waiting = -1, 0, []
        self._number += 1
        for path in _layout(self.folder).stale:
            path.unlink()

    def _kept(self) -> Iterator[Kept]:
        for part in self._parts:
            yield from _kept_in(part)
        yield from self._waiting

    def _filtered(self, where: Callable[[LogRow], bool]) -> Iterator[pa.Table]:
        import pyarrow as pa

        for part in self._parts:
            for found in _tables(part):
                yield found.filter(pa.array([where(row) for row in rollout_log.rows_of(found)], pa.bool_()))
        if stays := [one for one in self._waiting if where(one.row)]:
            yield _table(stays)


def look(folder: Path) -> list[LogRow]:
    """The finished rollouts of a store that somebody else may be writing to. Changes nothing."""
    for _ in range(10):
        layout = _layout(folder)
        try:
            sealed = [one.row for part in layout.parts for one in _kept_in(part)]
            return sealed + ([one.row for one in _read_journal(layout.journal)[0]] if layout.journal else [])
        except FileNotFoundError:
            continue  # it was sealed or rewritten between the two looks
    raise InfrastructureError(f"{folder} changes faster than it can be read. Try again.")


def _layout(folder: Path) -> _Layout:
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
    return _Layout(tuple(parts), journals.get(last), tuple(stale), last)


# -- a line of the journal -------------------------------------------------------------------------------------------------
def _line(rows: Sequence[LogRow], seconds: Sequence[float], batch: str) -> bytes:
    body = json.dumps({"batch": batch, "wall_s": list(seconds), "rows": [cells(one) for one in rows]})[1:].encode()
    return b'{"crc32": "%08x", %b\n' % (zlib.crc32(body), body)


def _read_line(line: bytes) -> list[Kept] | None:
    """None when it was not written whole."""
    head, body = line[:_HEAD], line[_HEAD:-1]
    if not line.endswith(b"\n") or head != b'{"crc32": "%08x", ' % zlib.crc32(body):
        return None
    found: dict[str, Any] = json.loads(b"{" + body)
    return [Kept(LogRow(**row), wall_s, found["batch"]) for row, wall_s in zip(found["rows"], found["wall_s"], strict=True)]


def _read_journal(path: Path) -> tuple[list[Kept], int]:
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
def _schema() -> pa.Schema:
    """The shelf's columns, the seconds that may not enter the shelf, and the batch."""
    import pyarrow as pa

    return rollout_log.schema([("wall_s", pa.float64()), ("batch", pa.string())])


def _table(kept: Iterable[Kept]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([cells(one.row) | {"wall_s": one.wall_s, "batch": one.batch} for one in kept], schema=_schema())


def _tables(part: Path) -> Iterator[pa.Table]:
    """A row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


def _kept_in(part: Path) -> Iterator[Kept]:
    for found in _tables(part):
        times, batches = found["wall_s"].to_pylist(), found["batch"].to_pylist()
        yield from map(Kept, rollout_log.rows_of(found), times, batches)
