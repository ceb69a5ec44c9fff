"""The rollout log of a stage in progress: added rows are kept exactly once, whatever kills it.

    with RolloutStore(work / "rollouts") as store:
        store.hold(rows, seconds, turns, "step-3")  hold finished rollouts of an unfinished batch
        store.held("step-3")                        return them, also after a kill
        store.add_all(rows, seconds, "step-3")      finish the batch: nothing of it is held any more
        store.batch("step-3")                       (rows, seconds); None if it was never finished
        store.reopen(lambda row: row.step > 2)      hold again what is newer than the checkpoint
        store.keep(lambda row: row.step <= 2)       forget what is newer
        rollout_log.write(store, path)              write the stage's file, in the order of adding

The folder holds one SQLite database, `rollouts.db`, with two tables of the same columns. `rollouts`
is for finished batches. `held` is for finished rollouts of unfinished batches: the rest of their
rows (trained, left out, why) is known only at the end of the batch. Each call that changes
something is one transaction. It is durable when the call returns, and readers and the next start
see all of it or nothing. The caller who adds a batch need not know what is held. A held rollout
that is not among the rows is added too, left out as `not asked for again`.

The database is in WAL mode with `synchronous=FULL`. A commit appends to `rollouts.db-wal` and
fsyncs it once; a reader (`read`) and the writer never wait for each other. While a stage works, and
after a kill, `-wal` and `-shm` belong to the database: a copy of `rollouts.db` alone is older than
the store. A store that was closed normally is one plain file. WAL needs shared memory, so the
writer and its readers run on one machine.

A kill or a power failure can damage only the last transaction of the WAL, which was never
acknowledged. Other damage is an error, never a shorter log. Each row has a checksum, and SQLite
checks the structure when the store is opened. A WAL that a kill left is checked here, because
SQLite ignores everything after a damaged transaction.

Threads may share a store: one holds rollouts while another adds the batch before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import sqlite3
import struct
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rft import files
from rft.errors import InfrastructureError
from rft.rollouts.log import COLUMNS, LogRow, cells

FILE = "rollouts.db"
IN_PROGRESS = "in progress"
NOT_ASKED = "not asked for again"
CHECKPOINT_PAGES = 1000  # when the WAL has so many pages, they move into the database
PATIENCE_S = 2.0  # how long `close` waits for readers
_PAGE = 4096
_SETTINGS = ("journal_mode = WAL", "synchronous = FULL", "secure_delete = OFF")
_CHUNK = 32  # rows in memory at a time, because a log may be larger than memory
_BUSY_S = 60.0  # a reader that opens the database after a kill locks it for a moment
_LISTS = {"ids": "i", "loss_mask": "b", "logprobs": "f"}  # packed: 32, 8 and 32 bits per token
_FLAGS = ("solved", "trained")
_FIELDS = ("batch", "wall_s", "rest", *COLUMNS)
_STORED = ", ".join((*_FIELDS, "crc32"))  # without types, so that SQLite keeps each value as it is
_TABLES = ("rollouts", "held")
_SCHEMA = (
    f"CREATE TABLE rollouts (number INTEGER PRIMARY KEY, {_STORED})",
    "CREATE INDEX batches ON rollouts (batch)",
    f"CREATE TABLE held (number INTEGER PRIMARY KEY, {_STORED}, UNIQUE (batch, rollout_id) ON CONFLICT REPLACE)",
)
_REMEDY = "Put the old file back, or delete the folder: the stage then starts over."


class StoredRollout(NamedTuple):
    """A stored row. `turns_json`, the column `rest`: what the row lacks of its rollout
    (`rollout_log.turns_json`); "" if it was never held."""

    row: LogRow
    wall_s: float
    batch: str
    turns_json: str = ""


class OtherVersion(InfrastructureError):
    """A version of agent-rft with another format stored these rollouts."""


class RolloutStore:
    """The store in a folder. Only one process may write: a second store on the folder is
    refused."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / FILE
        self._alone = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._database = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and remove the WAL, unless a reader keeps it. May be called twice."""
        with self._alone:
            if self._lock < 0:
                return
            deadline = time.monotonic() + PATIENCE_S
            while not self._left_wal() and time.monotonic() < deadline:
                time.sleep(0.01)
            self._database.close()
            os.close(self._lock)
            self._lock = -1

    def _left_wal(self) -> bool:
        """Turn the database into one plain file. Readers then make no files beside it, so the
        folder can be deleted safely."""
        try:
            self._database.execute("PRAGMA busy_timeout = 0")
            self._database.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY
        return True

    # -- adding ------------------------------------------------------------------------------------
    def add(self, row: LogRow, wall_s: float, batch: str = "") -> None:
        self.add_all([row], [wall_s], batch)

    def add_all(self, rows: Sequence[LogRow], seconds: Sequence[float], batch: str = "") -> None:
        """Finish a batch; a named one only once. All rows are on the disk when it returns. After a
        kill or an OSError, none of them is."""
        assert len(rows) == len(seconds) > 0, "a batch has rows, and a time for each"
        with self._transaction():
            assert not batch or batch not in self, f"batch {batch!r} is there already"
            turns_jsons = dict(self._ask("SELECT rollout_id, rest FROM held WHERE batch = ?", batch))
            timed = zip(rows, seconds, strict=True)
            kept = [StoredRollout(row, wall_s, batch, turns_jsons.get(row.rollout_id, "")) for row, wall_s in timed]
            self._insert("rollouts", [*kept, *self.unasked(batch, rows)])
            self._database.execute("DELETE FROM held WHERE batch = ?", [batch])

    # -- holding -----------------------------------------------------------------------------------
    def hold(self, rows: Sequence[LogRow], seconds: Sequence[float], turns_jsons: Sequence[str], batch: str) -> None:
        """Hold rollouts, as in progress, until their batch is added. All are on the disk when it
        returns. After a kill or an OSError, none of them is."""
        assert batch, "held rollouts wait for a batch with a name"
        given = zip(rows, seconds, turns_jsons, strict=True)
        kept = [_in_progress(StoredRollout(row, wall_s, batch, turns_json)) for row, wall_s, turns_json in given]
        with self._transaction():
            assert batch not in self, f"batch {batch!r} is there already"
            self._insert("held", kept)

    def held(self, batch: str) -> list[StoredRollout]:
        """Return the batch's held rollouts, in the order of holding."""
        return [one for _, one in self._kept("held", batch)]

    def unasked(self, batch: str, rows: Iterable[LogRow]) -> list[StoredRollout]:
        """Return the batch's held rollouts that are not among its rows: `add_all` adds them too."""
        there = {row.rollout_id for row in rows}
        left = [one for one in self.held(batch) if one.row.rollout_id not in there]
        return [one._replace(row=replace(one.row, left_out=NOT_ASKED)) for one in left]

    def settle(self, why: str) -> int:
        """Add the rollouts that are still held after the last batch, left out with this reason.
        Returns their number."""
        count = 0
        with self._alone:
            for (batch,) in self._ask("SELECT batch FROM held GROUP BY batch ORDER BY min(number)"):
                kept = self.held(batch)
                self.add_all([replace(one.row, left_out=why) for one in kept], [one.wall_s for one in kept], batch)
                count += len(kept)
        return count

    def reopen(self, where: Callable[[LogRow], bool]) -> int:
        """Hold these rows again, until their batch is added once more. They must be whole batches.
        Returns their number."""
        with self._transaction():
            going = self._going(where)
            assert all(going.values()), "rows without a batch cannot be held again"
            batches = dict.fromkeys(going.values())
            self._insert("held", (_in_progress(one) for batch in batches for _, one in self._kept("rollouts", batch)))
            self._delete("rollouts", going)
        return len(going)

    # -- reading -----------------------------------------------------------------------------------
    def __len__(self) -> int:
        return self._ask("SELECT count(*) FROM rollouts")[0][0]

    def __iter__(self) -> Iterator[LogRow]:
        """Yield finished rows in the order of adding. They are read in parts, because a log may be
        larger than memory."""
        return (one.row for _, one in self._kept())

    def __contains__(self, batch: object) -> bool:
        return bool(self._ask("SELECT 1 FROM rollouts WHERE batch = ? LIMIT 1", batch))

    def rows(self) -> list[LogRow]:
        return list(self)

    def seconds(self, where: Callable[[LogRow], bool] = lambda row: True) -> list[float]:
        """Return the wall time of each matching rollout, in the order of adding."""
        return [one.wall_s for _, one in self._kept() if where(one.row)]

    def batch(self, name: str) -> tuple[list[LogRow], list[float]] | None:
        """Return the rows and seconds of a finished batch, in its order."""
        found = [one for _, one in self._kept("rollouts", name)]
        return ([one.row for one in found], [one.wall_s for one in found]) if found else None

    # -- forgetting --------------------------------------------------------------------------------
    def keep(self, where: Callable[[LogRow], bool]) -> int:
        """Forget all other rows, held ones too. A finished named batch must go whole or not at all.
        Returns the number of rows that are gone."""
        with self._transaction():
            going = self._going(lambda row: not where(row))
            lost = [number for number, one in self._kept("held") if not where(one.row)]
            self._delete("rollouts", going)
            self._delete("held", lost)
        return len(going) + len(lost)

    def drop(self, where: Callable[[LogRow], bool]) -> int:
        return self.keep(lambda row: not where(row))

    def _going(self, where: Callable[[LogRow], bool]) -> dict[int, str]:
        """Map the number of each matching finished row to its batch."""
        going: dict[int, str] = {}
        staying = set[str]()
        for number, one in self._kept():
            if where(one.row):
                going[number] = one.batch
            else:
                staying.add(one.batch)
        torn = staying.intersection(going.values()) - {""}
        assert not torn, f"only a part of batch {min(torn)!r} would be dropped"
        return going

    # -- the database ------------------------------------------------------------------------------
    def _open(self) -> sqlite3.Connection:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees the lock when its holder dies
        except BlockingIOError:
            who = f"{self.folder}: another process writes this stage's rollouts."
            raise InfrastructureError(f"{who} Wait until it ends, or stop it.") from None
        wal = self.path.with_name(f"{FILE}-wal")
        if not self.path.exists():
            _refuse_segments(self.folder)
            if wal.exists():
                raise InfrastructureError(f"{self.path} is missing, so finished rollouts are lost. {_REMEDY}")
            _create(self.path)
        elif wal.exists() and _is_damaged(wal):
            raise InfrastructureError(f"{wal} was changed after it was written. {_REMEDY}")
        with _explained(self.path):
            database = _connected(self.path, "rw")
            try:
                for setting in (*_SETTINGS, f"wal_autocheckpoint = {CHECKPOINT_PAGES}"):
                    database.execute(f"PRAGMA {setting}")
                _check_columns(database, self.path)
                [found] = database.execute("PRAGMA integrity_check(1)").fetchone()
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
            except BaseException:
                database.close()
                raise
        return database

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._alone, _explained(self.path):
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite rolls back some failures by itself
                    self._database.execute("ROLLBACK")
                raise

    def _ask(self, question: str, *given: Any) -> list[tuple[Any, ...]]:
        with self._alone, _explained(self.path):
            return self._database.execute(question, given).fetchall()

    def _kept(self, table: str = "rollouts", batch: str | None = None) -> Iterator[tuple[int, StoredRollout]]:
        """Yield rows by number, which grows with every row."""
        of, given = ("", []) if batch is None else ("AND batch = ?", [batch])
        question = f"SELECT number, {_STORED} FROM {table} WHERE number > ? {of} ORDER BY number LIMIT {_CHUNK}"
        last = -1
        while found := self._ask(question, last, *given):
            for last, *values in found:
                yield last, _unpacked(values, self.path)

    def _insert(self, table: str, kept: Iterable[StoredRollout]) -> None:
        marks = ", ".join("?" * (len(_FIELDS) + 1))
        self._database.executemany(f"INSERT INTO {table} ({_STORED}) VALUES ({marks})", map(_packed, kept))

    def _delete(self, table: str, numbers: Iterable[int]) -> None:
        self._database.executemany(f"DELETE FROM {table} WHERE number = ?", ((number,) for number in numbers))


def read(folder: Path) -> list[LogRow]:
    """Read a store as it is at one moment, also while another process writes to it. Rollouts of an
    unfinished batch are `in progress`. Raises OtherVersion for a store that this version cannot
    read."""
    path = folder / FILE
    if path.exists():
        try:
            return _rows_in(path)
        except InfrastructureError:
            if path.exists():
                raise
    _refuse_segments(folder)
    return []  # the store was not made yet, or the stage has ended meanwhile


def _rows_in(path: Path) -> list[LogRow]:
    with _explained(path), contextlib.closing(_connected(path, "ro")) as database:
        database.execute("BEGIN")
        _check_columns(database, path)
        tables = [database.execute(f"SELECT {_STORED} FROM {table} ORDER BY number") for table in _TABLES]
        return [_unpacked(values, path).row for table in tables for values in table]


def _in_progress(one: StoredRollout) -> StoredRollout:
    return one._replace(row=replace(one.row, trained=False, left_out=IN_PROGRESS))


# -- a row -----------------------------------------------------------------------------------------
def _packed(one: StoredRollout) -> list[Any]:
    found = {"batch": one.batch, "wall_s": one.wall_s, "rest": one.turns_json, **cells(one.row)}
    for name, kind in _LISTS.items():
        found[name] = array(kind, found[name]).tobytes()
    return [*found.values(), _crc32(found)]


def _unpacked(values: Sequence[Any], path: Path) -> StoredRollout:
    found: dict[str, Any] = dict(zip(_FIELDS, values[:-1], strict=True))
    for name in _FLAGS:
        found[name] = None if found[name] is None else bool(found[name])
    if _crc32(found) != values[-1]:
        raise InfrastructureError(f"{path}: rollout {found['rollout_id']} was changed after it was written. {_REMEDY}")
    for name, kind in _LISTS.items():
        found[name] = array(kind, found[name]).tolist()
    found["loss_mask"] = list(map(bool, found["loss_mask"]))
    return StoredRollout(
        LogRow(**{name: found[name] for name in COLUMNS}), found["wall_s"], found["batch"], found["rest"]
    )


def _crc32(found: Mapping[str, Any]) -> int:
    """Compute a row's checksum, with its lists as bytes. Encoding blocks the interpreter, and any
    event loop in the process: for 1 ms with a row of 20,000 tokens, where JSON took 20 ms."""
    plain = json.dumps([value for name, value in found.items() if name not in _LISTS], default=repr)
    crc = zlib.crc32(plain.encode())
    for name in _LISTS:
        crc = zlib.crc32(found[name] if isinstance(found[name], bytes) else b"", crc)
    return crc


# -- the file --------------------------------------------------------------------------------------
def _connected(path: Path, mode: str) -> sqlite3.Connection:
    """Connect to the database. `mode` is rw or ro; neither makes a file. We begin and end
    transactions ourselves."""
    where = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(where, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)


def _create(path: Path) -> None:
    """Make the file, which becomes visible only with its tables: a database without tables is
    damaged."""
    with files.replacing(path, durable=True) as part, _explained(path):
        part.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as database:
            for line in (f"PRAGMA page_size = {_PAGE}", "PRAGMA journal_mode = OFF", "BEGIN", *_SCHEMA, "COMMIT"):
                database.execute(line)


def _refuse_segments(folder: Path) -> None:
    """Refuse numbered segments and `held.lines`, in which an older version stored rollouts."""
    with contextlib.suppress(FileNotFoundError):
        if any(name.endswith((".jsonl", ".parquet", ".lines")) for name in os.listdir(folder)):
            raise _other_version(folder)


def _check_columns(database: sqlite3.Connection, path: Path) -> None:
    tables = [[name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")] for table in _TABLES]
    if not all(tables):
        raise sqlite3.DatabaseError("its tables are gone")
    if any(found != ["number", *_FIELDS, "crc32"] for found in tables):
        raise _other_version(path.parent)


def _other_version(folder: Path) -> OtherVersion:
    return OtherVersion(
        f"{folder}: another version of agent-rft stored these rollouts, and only that version reads them. "
        "A run goes on with the version that it began with. For a stage by hand, go back to that version, "
        "or delete the folder: the stage then starts over."
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Translate SQLite's errors: a full disk, a damaged file, a failing disk. Errors of our own
    code are raised unchanged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        is_full = code == sqlite3.SQLITE_IOERR and shutil.disk_usage(path.parent).free < 2**20
        if is_full or code == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise InfrastructureError(f"{path} is damaged ({error}). {_REMEDY}") from None
        what = f"{path}: SQLite cannot work with this file ({error})"
        raise InfrastructureError(f"{what}. Check the disk, then start again: what was finished is kept.") from None


def _is_damaged(wal: Path) -> bool:
    """Tell whether a WAL is damaged, and not only torn at its end. It is damaged if more than the
    last transaction follows the first bad frame. Its format:
    https://sqlite.org/fileformat2.html#walformat"""
    data = wal.read_bytes()
    sound, size = 32, 24 + _PAGE
    if len(data) < sound + size:
        return False
    salts, sums = data[16:24], _wal_sums(data[:24], (0, 0))
    if sums != struct.unpack(">II", data[24:32]):
        return True  # damaged, because the header is on the disk before the first frame
    while len(frame := data[sound : sound + size]) == size and frame[8:16] == salts:
        sums = _wal_sums(frame[24:], _wal_sums(frame[:8], sums))
        if sums != struct.unpack(">II", frame[16:24]):
            break
        sound += size
    commits = [hit for hit in re.finditer(b"(?s)(.{4})" + re.escape(salts), data[sound:]) if any(hit[1])]
    return len(commits) > 1


def _wal_sums(data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    words = array("I", data)
    one, two = sums
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
