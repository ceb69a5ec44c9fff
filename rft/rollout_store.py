"""The rollout log of a stage in progress: what was added stays, once, whatever kills the stage.

    with RolloutStore(work / "rollouts") as store:
        store.hold(rows, seconds, rests, "step-3")  durable when it returns: finished rollouts of a batch that is not over
        store.held("step-3")                        these, after a kill too: they need not be rolled out again
        store.add_all(rows, seconds, "step-3")      durable when it returns: all of the batch, or none of it. Nothing of it is held any more
        store.batch("step-3")                       (rows, seconds); None when it was never finished
        store.reopen(lambda row: row.step > 2)      atomic: what is newer than the checkpoint is held again; nothing is lost
        store.keep(lambda row: row.step <= 2)       atomic: what is newer is forgotten
        rollout_log.write(store, shelf)             in the order of adding

The folder holds numbered segments (rft/segments.py): a write, or a rename, is the one moment at which something is there or is gone.

Held rollouts lie in a file of their own (`held.lines`, the journal's format), because what their rows will say (trained, left out, why) is known
only at the end of their batch. One rule says whether a held row counts: as long as its batch is not among the segments. So the one write that
adds a batch, or the one rename that takes it away again (`reopen`), changes both at one moment. Whoever adds a batch need not know what is held:
a held rollout that is not among its rows is added to them, left out with that reason. Readers of the segments never see a rollout twice.

Threads may share a store: rollouts are held by one while another adds the batch before.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rft import rollout_log, segments
from rft.errors import InfrastructureError
from rft.rollout_log import LogRow
from rft.segments import Journal, Kept

if TYPE_CHECKING:
    import pyarrow as pa

SEAL_ROWS = 512
SEAL_BYTES = 16 << 20
IN_PROGRESS = "in progress"
NOT_ASKED = "not asked for again"
_HELD = "held.lines"


class RolloutStore:
    """One writing process at a time: a second store on the folder is refused."""

    def __init__(self, folder: Path, seal_rows: int = SEAL_ROWS, seal_bytes: int = SEAL_BYTES):
        self.folder, self._seal_rows, self._seal_bytes = folder, seal_rows, seal_bytes
        self._alone = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._journal = self._waiting_room = Journal(folder / _HELD, self._lock)
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
        with self._alone:
            self._journal.close()
            self._waiting_room.close()
            if self._lock >= 0:
                os.close(self._lock)
            self._lock = -1

    # -- adding ------------------------------------------------------------------------------------------------------------
    def add(self, row: LogRow, wall_s: float, batch: str = "") -> None:
        self.add_all([row], [wall_s], batch)

    def add_all(self, rows: Sequence[LogRow], seconds: Sequence[float], batch: str = "") -> None:
        """On the disk when it returns: all rows or, after a kill or an OSError, none. A named batch is added once."""
        assert len(rows) == len(seconds) > 0, "a batch has rows, and a time for each"
        with self._alone:
            assert not batch or batch not in self, f"batch {batch!r} is there already"
            held = self._held.get(batch, {})
            rests = [held[row.rollout_id].rest if row.rollout_id in held else "" for row in rows]
            kept = [Kept(row, wall_s, batch, rest) for row, wall_s, rest in zip(rows, seconds, rests, strict=True)]
            kept += self.unasked(batch, rows)
            self._journal.append(segments.line_of(kept))
            self._waiting += kept
            if self._held.pop(batch, None) is not None:
                self._shrink()
            if len(self._waiting) >= self._seal_rows or self._journal.size >= self._seal_bytes:
                self.seal()

    def seal(self) -> None:
        """Turn the journal into Parquet. It is done by itself now and then."""
        with self._alone:
            if not self._waiting:
                return
            part = self.folder / f"{self._number:06d}.parquet"
            rollout_log.write_tables([segments.table(self._waiting)], segments.schema(), part)
            self._sealed(part)

    # -- holding -----------------------------------------------------------------------------------------------------------
    def hold(self, rows: Sequence[LogRow], seconds: Sequence[float], rests: Sequence[str], batch: str) -> None:
        """On the disk when it returns: all rows or, after a kill or an OSError, none. They are in progress until their batch is added."""
        left_out = [replace(row, trained=False, left_out=IN_PROGRESS) for row in rows]
        kept = [Kept(*one) for one in zip(left_out, seconds, [batch] * len(rows), rests, strict=True)]
        line = segments.line_of(kept)
        with self._alone:
            assert batch, "held rollouts wait for a batch with a name"
            assert batch not in self, f"batch {batch!r} is there already"
            self._waiting_room.append(line)
            self._held.setdefault(batch, {}).update((one.row.rollout_id, one) for one in kept)

    def held(self, batch: str) -> list[Kept]:
        """In the order of holding."""
        with self._alone:
            return list(self._held.get(batch, {}).values())

    def unasked(self, batch: str, rows: Iterable[LogRow]) -> list[Kept]:
        """What is held for the batch and not among its rows, with that reason: `add_all` adds it."""
        there = {row.rollout_id for row in rows}
        return [one._replace(row=replace(one.row, left_out=NOT_ASKED)) for one in self.held(batch) if one.row.rollout_id not in there]

    def settle(self, why: str) -> int:
        """No batch comes any more: what is still held is added, left out with this reason. How many rollouts that were."""
        with self._alone:
            found = {batch: list(held.values()) for batch, held in self._held.items()}
            for batch, kept in found.items():
                self.add_all([replace(one.row, left_out=why) for one in kept], [one.wall_s for one in kept], batch)
        return sum(map(len, found.values()))

    def reopen(self, where: Callable[[LogRow], bool]) -> int:
        """Take these rows' batches back, at one moment: they are held again, until each is added anew. Of a batch all rows go or none."""
        with self._alone:
            going = [one for one in self._kept() if where(one.row)]
            assert all(one.batch for one in going), "rows without a batch cannot be held again"
            if going:
                held = [one._replace(row=replace(one.row, trained=False, left_out=IN_PROGRESS)) for one in going]
                for batch in dict.fromkeys(one.batch for one in going):
                    self._waiting_room.append(segments.line_of([one for one in held if one.batch == batch]))
                self._rewrite(lambda row: not where(row))
                for one in held:
                    self._held.setdefault(one.batch, {})[one.row.rollout_id] = one
        return len(going)

    # -- looking -----------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return sum(self._lengths.values()) + len(self._waiting)

    def __iter__(self) -> Iterator[LogRow]:
        """In the order of adding, a part at a time: a log may be longer than memory. Without what is held."""
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
        with self._alone:
            if name not in self:
                return None
            kept = [*segments.kept_in(self._batches[name])] if name in self._batches else self._waiting
            found = [one for one in kept if one.batch == name]
        return [one.row for one in found], [one.wall_s for one in found]

    # -- rewriting ---------------------------------------------------------------------------------------------------------
    def keep(self, where: Callable[[LogRow], bool]) -> int:
        """Forget all rows but these, held ones too; how many are gone. Of a named batch all rows go or none."""
        with self._alone:
            gone = self._rewrite(where)
            held = {batch: {name: one for name, one in rows.items() if where(one.row)} for batch, rows in self._held.items()}
            if lost := sum(map(len, self._held.values())) - sum(map(len, held.values())):
                self._held = {batch: rows for batch, rows in held.items() if rows}
                self._shrink()
        return gone + lost

    def drop(self, where: Callable[[LogRow], bool]) -> int:
        return self.keep(lambda row: not where(row))

    def _rewrite(self, where: Callable[[LogRow], bool]) -> int:
        """The segments, at one moment."""
        gone, going, staying = 0, set[str](), set[str]()
        for one in self._kept():
            stays = where(one.row)
            gone += not stays
            (staying if stays else going).add(one.batch)
        assert not going & staying - {""}, f"only a part of batch {min(going & staying - {''})!r} would be dropped"
        if gone:
            number = self._number if self._waiting else self._number - 1
            part = self.folder / f"{number:06d}-all.parquet"
            rollout_log.write_tables(self._filtered(where), segments.schema(), part)
            self._number = number
            self._parts.clear()
            self._lengths.clear()
            self._batches.clear()
            self._sealed(part)
        return gone

    # -- the folder --------------------------------------------------------------------------------------------------------
    def _open(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when the holder dies
        except BlockingIOError:
            raise InfrastructureError(f"{self.folder}: another process writes this stage's rollouts. Wait until it ends, or stop it.") from None
        layout = segments.layout(self.folder)
        self._parts: list[Path] = []
        self._lengths: dict[Path, int] = {}
        self._batches: dict[str, Path] = {}
        self._waiting: list[Kept] = []
        self._held: dict[str, dict[str, Kept]] = {}
        for path in layout.stale:
            path.unlink()
        for part in layout.parts:
            self._remember(part)
        self._number = layout.last + 1
        self._journal = Journal(self._path, self._lock)
        if layout.journal is not None:
            self._number = layout.last
            self._journal = Journal(layout.journal, self._lock)
            self._waiting = self._journal.open()
        if self._waiting_room.path.exists():
            found = self._waiting_room.open()
            for one in found:
                if one.batch not in self:
                    self._held.setdefault(one.batch, {})[one.row.rollout_id] = one
            if len(found) > sum(map(len, self._held.values())):
                self._shrink()

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
        self._journal.close()
        self._waiting = []
        self._number += 1
        self._journal = Journal(self._path, self._lock)
        for path in segments.layout(self.folder).stale:
            path.unlink()

    def _shrink(self) -> None:
        """Only what is held stays in its file. Never cut in place: somebody may be reading."""
        path = self._waiting_room.path
        self._waiting_room.close()
        lines = b"".join(segments.line_of(list(rows.values())) for rows in self._held.values())
        if lines:
            part = path.with_name(path.name + ".part")
            with part.open("wb") as handle:
                handle.write(lines)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(part, path)
        else:
            path.unlink()
        os.fsync(self._lock)
        self._waiting_room = Journal(path, self._lock, len(lines))

    def _kept(self) -> Iterator[Kept]:
        for part in self._parts:
            yield from segments.kept_in(part)
        yield from self._waiting

    def _filtered(self, where: Callable[[LogRow], bool]) -> Iterator[pa.Table]:
        import pyarrow as pa

        for part in self._parts:
            for found in segments.tables(part):
                yield found.filter(pa.array([where(row) for row in rollout_log.rows_of(found)], pa.bool_()))
        if stays := [one for one in self._waiting if where(one.row)]:
            yield segments.table(stays)


def look(folder: Path) -> list[LogRow]:
    """The finished rollouts of a store that somebody else may be writing to; those of a batch that is not over are `in progress`. Changes nothing."""
    for _ in range(10):
        try:
            held, _ = segments.read_journal(folder / _HELD) if (folder / _HELD).exists() else ([], 0)
            layout = segments.layout(folder)
            settled = [one for part in layout.parts for one in segments.kept_in(part)]
            settled += segments.read_journal(layout.journal)[0] if layout.journal else []
        except FileNotFoundError:
            continue  # it was sealed, rewritten or settled between the looks
        there = {one.batch for one in settled}
        return [one.row for one in settled] + [one.row for one in held if one.batch not in there]
    raise InfrastructureError(f"{folder} changes faster than it can be read. Try again.")
