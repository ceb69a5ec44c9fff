"""A rollout store that is torn, damaged, full or another version's: nothing is lost in silence, and
the error says what to do."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import log_kill
from rft.errors import InfrastructureError
from rft.rollouts import log as rollout_log
from rft.rollouts.store import OtherVersion, RolloutStore, read
from tests.rollouts.test_store import ROWS, files, filled, hold, in_progress, killed, numbers, under_the_shim, wal_of


@pytest.mark.slow
def test_a_wal_cut_anywhere_keeps_its_whole_transactions(tmp_path: Path):
    """A row, another, a batch of two, and what was held. Now and then it is opened and goes on."""
    ends: list[int] = []
    with RolloutStore(tmp_path / "whole") as store:
        for rows in ([ROWS[0]], [ROWS[1]], ROWS[2:4]):
            store.add_all(rows, [0.0] * len(rows))
            ends.append(len(wal_of(store)))
        for low, high in ((4, 5), (5, 7)):
            hold(store, low, high, "b-4")
            ends.append(len(wal_of(store)))
        whole = wal_of(store)
        near = [end + by for end in ends for by in (-1, 0, 1)]
        for size in sorted({*range(ends[0], len(whole), 331), *near} - {len(whole) + 1, ends[0] - 1}):
            cut = killed(tmp_path / "cut", store, whole[:size])
            kept = [0, 1, 2, 3, 4, 5, 6][: [1, 2, 4, 5, 7][sum(end <= size for end in ends) - 1]]
            assert numbers(read(cut)) == kept
            if size in near:
                with RolloutStore(cut) as again:
                    assert numbers(again.rows()) == kept[:4]
                    assert [log_kill.number_of(one.row) for one in again.held("b-4")] == kept[4:]
                    again.add(ROWS[9], 0.0)
                assert numbers(read(cut)) == [*kept[:4], 9, *kept[4:]]


@pytest.mark.slow
@given(torn=st.binary(max_size=200))
def test_any_torn_end_is_cut_off(tmp_path_factory: pytest.TempPathFactory, torn: bytes):
    """Also zeros and other blocks that a power failure leaves."""
    folder = tmp_path_factory.mktemp("torn")
    with RolloutStore(folder / "whole") as store:
        store.add_all(ROWS[:2], [0.0, 0.0])
        cut = killed(folder / "cut", store, wal_of(store) + torn * 50)
    with RolloutStore(cut) as store:
        store.add(ROWS[2], 0.0)
    assert read(cut) == ROWS[:3]


Undamaged = tuple[Path, bytes, bytes, bytes]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Undamaged:
    """A scratch folder; a database that was closed; one that was killed, and its WAL of six
    transactions."""
    folder = tmp_path_factory.mktemp("undamaged")
    with filled(folder, close=False) as store:
        hold(store, 50, 55, "b-50")
        database, wal = store.path.read_bytes(), wal_of(store)
    return folder, store.path.read_bytes(), database, wal


def opened(folder: Path, database: bytes, wal: bytes | None = None) -> list[rollout_log.LogRow]:
    """All that a store on these files gives; it is opened twice."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "rollouts.db").write_bytes(database)
    if wal is not None:
        (folder / "rollouts.db-wal").write_bytes(wal)
    with RolloutStore(folder) as store:
        store.rows()
    with RolloutStore(folder) as store:
        batches = [row for start in range(0, 50, 10) for row in (store.batch(f"b-{start}") or ([], []))[0]]
        assert batches == store.rows()
        assert len(store) == len(batches)
        return [*batches, *(one.row for one in store.held("b-50"))]


ALL = [*ROWS[:50], *(replace(row, trained=False, left_out="in progress") for row in ROWS[50:55])]


@pytest.mark.slow
@settings(max_examples=40)  # it opens six stores each time
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_is_not_another_log(undamaged: Undamaged, where: float, flip: int):
    """The log is the same, or an error names the folder. A WAL may lack its last transaction: a
    kill can tear it."""
    scratch, closed, database, wal = undamaged
    folder = scratch / "changed"
    for name, first, second in (("closed", closed, None), ("database", database, wal), ("wal", database, wal)):
        damaged = bytearray(wal if name == "wal" else first)
        damaged[int(where * len(damaged))] ^= flip
        given = (first, bytes(damaged)) if name == "wal" else (bytes(damaged), second)
        found, message = ALL, f"{folder}, delete the folder"
        try:
            found = opened(folder, *given)
        except InfrastructureError as error:
            message = str(error)
        assert str(folder) in message
        assert "delete the folder" in message or "Check the disk" in message
        assert found == ALL or (name == "wal" and found == ALL[:50])


def test_damage_is_not_a_shorter_log(tmp_path: Path, undamaged: Undamaged):
    _, closed, database, wal = undamaged
    remedy = r"Put the old file back, or delete the folder: the stage then starts over\."
    assert opened(tmp_path, closed) == opened(tmp_path, database, wal) == ALL
    place = wal.index(b"n-000013")  # SQLite by itself would open this with the rows before it, and without a word
    for changed in (wal[:place] + b"n-000099" + wal[place + 8 :], b"\1" + wal[1:], wal[:16] + b"salt" + wal[20:]):
        with pytest.raises(InfrastructureError, match=rf"rollouts\.db-wal was changed after it was written\. {remedy}"):
            opened(tmp_path, database, changed)
        assert (tmp_path / "rollouts.db-wal").read_bytes() == changed, "the evidence stays"
    with pytest.raises(InfrastructureError, match=rf"rollouts\.db: rollout rollout_000013 was changed .*\. {remedy}"):
        opened(tmp_path, closed.replace(b"n-000013", b"n-000099"))
    with pytest.raises(InfrastructureError, match="rollout_000013 was changed"):
        read(tmp_path)
    for damaged in (b"", b"no database", closed[: len(closed) // 2], bytes(4096) + closed[4096:]):
        with pytest.raises(InfrastructureError, match=rf"rollouts\.db is damaged \(.*\)\. {remedy}"):
            opened(tmp_path, damaged)
        with suppress(InfrastructureError):
            assert read(tmp_path) != []
    opened(tmp_path, database, wal)
    shutil.copyfile(tmp_path / "rollouts.db", tmp_path / "rollouts.db-wal")
    (tmp_path / "rollouts.db").unlink()
    with pytest.raises(InfrastructureError, match=rf"rollouts\.db is missing, so .* are lost\. {remedy}"):
        RolloutStore(tmp_path)


def test_a_store_of_another_version(tmp_path: Path):
    """Of one that had segments, and of one whose rows have other columns. Nothing is touched."""
    for name in ("000001.parquet", "000002.jsonl", "held.lines"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).touch()
        for opens in (RolloutStore, read):
            with pytest.raises(
                OtherVersion, match=r"another version of agent-rft.*go back to that version, or delete the"
            ):
                opens(folder)
        assert files(folder) == [name]
    filled(tmp_path / "columns")
    with closing(sqlite3.connect(tmp_path / "columns" / "rollouts.db")) as database:
        database.execute("ALTER TABLE rollouts RENAME COLUMN loss_mask TO mine")
    for opens in (RolloutStore, read):
        with pytest.raises(OtherVersion):
            opens(tmp_path / "columns")


def test_a_kill_while_the_store_is_made(tmp_path: Path):
    (tmp_path / "rollouts.db.part").write_bytes(b"half of it")
    assert read(tmp_path) == []
    with RolloutStore(tmp_path) as store:
        store.add(ROWS[0], 0.0)
    assert files(tmp_path) == ["rollouts.db"]


def test_a_full_disk_loses_nothing(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        store.add(ROWS[0], 0.0)
        hold(store, 1, 3, "b-1")
        [(pages,)] = store._ask("PRAGMA page_count")
        store._ask(f"PRAGMA max_page_count = {pages}")
        for change in (lambda: store.add_all(ROWS[1:40], [0.0] * 39, "b-1"), lambda: hold(store, 3, 40, "b-3")):
            with pytest.raises(OSError, match="No space left") as caught:
                change()
            assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(store.path))
            assert read(tmp_path) == [ROWS[0], *in_progress(1, 3)]
        store._ask("PRAGMA max_page_count = 1000000")
        store.add_all(ROWS[1:40], [0.0] * 39, "b-1")
        assert store.rows() == ROWS[:40]
    assert read(tmp_path) == ROWS[:40]


@pytest.mark.slow
def test_a_disk_that_is_full_in_the_middle_of_a_write(tmp_path: Path):
    told = under_the_shim(
        tmp_path,
        """
store.add(ROWS[0], 0.0)
for n in (1, 2):
    full.touch()
    try:
        store.add(ROWS[n], 0.0)
    except OSError as error:
        note(f"{error.strerror}: {os.path.basename(error.filename)}")
    full.unlink()
    note([log_kill.number_of(row) for row in read(store.folder)] == list(range(n)))
    store.add(ROWS[n], 0.0)
note(store.rows() == ROWS[:3])
os._exit(0)
""",
    )
    lines = [line for line in told if line.split()[0] not in ("write", "sync")]
    assert lines == ["No space left on device: rollouts.db", "True"] * 2 + ["True"]
    assert read(tmp_path / "store") == ROWS[:3]
