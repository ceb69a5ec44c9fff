"""The log of a stage in progress: durable, once, in order, whole or not at all; killed for real at
random moments."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from bench import log_kill
from rft.errors import InfrastructureError
from rft.rollouts import log as rollout_log
from rft.rollouts import store as rollout_store
from rft.rollouts.store import RolloutStore, read

ROWS = [log_kill.row(n) for n in range(80)]


def numbers(rows: list[rollout_log.LogRow]) -> list[int]:
    return [log_kill.number_of(row) for row in rows]


def filled(folder: Path, close: bool = True) -> RolloutStore:
    """Rows 0 to 49, in batches of ten."""
    store = RolloutStore(folder)
    for start in range(0, 50, 10):
        store.add_all(ROWS[start : start + 10], [n / 8 for n in range(start, start + 10)], f"b-{start}")
    if close:
        store.close()
    return store


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(folder: Path, store: RolloutStore, wal: bytes | None = None) -> Path:
    """Copy what a kill would leave of an open store, without the shared memory. `wal`: instead of
    its own."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    shutil.copyfile(store.path, folder / "rollouts.db")
    (folder / "rollouts.db-wal").write_bytes(wal_of(store) if wal is None else wal)
    return folder


def wal_of(store: RolloutStore) -> bytes:
    return Path(f"{store.path}-wal").read_bytes()


def test_what_was_added_is_there_in_order(tmp_path: Path):
    filled(tmp_path)
    with RolloutStore(tmp_path) as store:
        assert store.rows() == list(store) == ROWS[:50]
        assert len(store) == 50
        assert store.seconds(lambda row: row.sample == 3) == [n / 8 for n in range(3, 50, 8)]
        store.add(ROWS[50], 9.0)
    assert read(tmp_path) == ROWS[:51]


def test_a_batch_is_found_by_its_name(tmp_path: Path):
    filled(tmp_path)
    with RolloutStore(tmp_path) as store:
        assert store.batch("b-20") == (ROWS[20:30], [n / 8 for n in range(20, 30)])
        assert store.batch("b-40") == (ROWS[40:50], [n / 8 for n in range(40, 50)])
        assert store.batch("b-50") is None
        with pytest.raises(AssertionError, match="batch 'b-20' is there already"):
            store.add_all(ROWS[:1], [0.0], "b-20")
    assert len(read(tmp_path)) == 50


def test_values_come_back_as_they_were(tmp_path: Path):
    rows = [
        replace(ROWS[1], reward=-0.0, score=None, solved=None, temperature=0.0, trained=False, explanation="a\0b\n'é"),
        replace(
            ROWS[2], reward=1.0, solved=False, ids=[0, 2**31 - 1], loss_mask=[True, False], logprobs=[-0.0, -(2.0**100)]
        ),
    ]
    with RolloutStore(tmp_path) as store:
        store.add_all(rows, [0.1, 1e-300], "b")
        assert list(map(repr, store)) == list(map(repr, rows))
        assert store.seconds() == [0.1, 1e-300]
    assert list(map(repr, read(tmp_path))) == list(map(repr, rows))


def test_the_wal_moves_into_the_database_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rollout_store, "CHECKPOINT_PAGES", 20)
    with RolloutStore(tmp_path) as store:
        for row in ROWS:
            store.add(row, 0.0)
        assert files(tmp_path) == ["rollouts.db", "rollouts.db-shm", "rollouts.db-wal"]
        assert len(wal_of(store)) < 30 * 4120
        assert store.rows() == ROWS
    assert files(tmp_path) == ["rollouts.db"]
    before = (tmp_path / "rollouts.db").stat().st_mtime_ns
    assert read(tmp_path) == ROWS
    assert (files(tmp_path), (tmp_path / "rollouts.db").stat().st_mtime_ns) == (["rollouts.db"], before)


def test_who_reads_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also who stays in the middle of it, while the store is written, dropped from and closed."""
    monkeypatch.setattr(rollout_store, "PATIENCE_S", 0.05)
    store = filled(tmp_path, close=False)
    with closing(sqlite3.connect(f"{store.path.as_uri()}?mode=ro", uri=True)) as reader:
        reading = reader.execute("SELECT rollout_id FROM rollouts ORDER BY number")
        assert reading.fetchone() == ("rollout_000000",)
        store.add_all(ROWS[50:60], [0.0] * 10, "b-50")
        store.drop(lambda row: log_kill.number_of(row) < 30)
        assert read(tmp_path) == ROWS[30:60]
        store.close()
        assert len(reading.fetchall()) == 49
    assert read(tmp_path) == ROWS[30:60]
    with RolloutStore(tmp_path) as store:
        assert store.rows() == ROWS[30:60]
    assert files(tmp_path) == ["rollouts.db"]


def test_dropping_is_remembered(tmp_path: Path):
    store = filled(tmp_path, close=False)
    assert store.drop(lambda row: row.sample == 99) == 0
    assert store.keep(lambda row: log_kill.number_of(row) < 20 or log_kill.number_of(row) >= 40) == 20
    assert store.batch("b-20") is None
    assert store.batch("b-10") is not None
    store.add_all(ROWS[50:60], [0.0] * 10, "b-20")  # made again
    store.close()
    with RolloutStore(tmp_path) as store:
        assert numbers(store.rows()) == [*range(20), *range(40, 60)]
        assert store.drop(lambda row: True) == 40
        assert store.rows() == []
        store.add(ROWS[0], 1.0)
        assert store.drop(lambda row: True) == 1
    assert files(tmp_path) == ["rollouts.db"]
    assert read(tmp_path) == []


def test_a_batch_is_not_torn_apart(tmp_path: Path):
    with (
        filled(tmp_path, close=False) as store,
        pytest.raises(AssertionError, match="only a part of batch 'b-0' would be dropped"),
    ):
        store.drop(lambda row: row.rollout_id == "rollout_000004")
    assert read(tmp_path) == ROWS[:50]


CHANGES: dict[str, Callable[[RolloutStore], object]] = {
    "add": lambda store: store.add(ROWS[60], 1.0),
    "a batch, in the place of what was held": lambda store: store.add_all(ROWS[50:58], [0.0] * 8, "b-50"),
    "hold": lambda store: hold(store, 60, 63, "b-60"),
    "drop": lambda store: store.drop(lambda row: log_kill.number_of(row) < 30),
    "reopen": lambda store: store.reopen(lambda row: log_kill.number_of(row) >= 20),
    "settle": lambda store: store.settle("the stage ended"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_in_the_middle_of_a_change(tmp_path: Path, name: str):
    """However much of it reached the disk, it is there whole or not at all. The next start can do
    it again."""
    with filled(tmp_path / "whole", close=False) as store:
        hold(store, 50, 55, "b-50")
        start, before = len(wal_of(store)), read(tmp_path / "whole")
        CHANGES[name](store)
        whole, after = wal_of(store), read(tmp_path / "whole")
        assert before != after
        sizes = [*range(start, len(whole), 4120), *range(start + 1500, len(whole), 3 * 4120), len(whole) - 1]
        for n, size in enumerate(sizes):
            cut = killed(tmp_path / "cut", store, whole[:size])
            assert read(cut) == before
            if n % 8 == 0:
                with RolloutStore(cut) as again:
                    CHANGES[name](again)
                assert read(cut) == after
        assert read(killed(tmp_path / "cut", store)) == after


@pytest.mark.parametrize("name", CHANGES)
def test_an_interruption_in_the_middle_of_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    with filled(tmp_path, close=False) as store:
        hold(store, 50, 55, "b-50")
        before = read(tmp_path)
        real = RolloutStore._ask

        def interrupted(*_: object) -> Iterator[object]:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(rollout_store, "_packed", interrupted)
            patch.setattr(
                RolloutStore, "_delete", lambda store, *_: (real(store, "DELETE FROM rollouts"), interrupted())
            )
            with pytest.raises(KeyboardInterrupt):
                CHANGES[name](store)
        assert read(tmp_path) == before
        CHANGES[name](store)
    assert read(tmp_path) != before


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void tell(const char *what, int handle) {
  char link[64], name[4096], line[4200];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t size = readlink(link, name, sizeof name - 1);
  if (size < 0) return;
  name[size] = 0;
  int notes = open(getenv("NOTES"), O_WRONLY | O_APPEND);
  size = snprintf(line, sizeof line, "%s %s\n", what, strrchr(name, '/') + 1);
  if (write(notes, line, size) < 0) abort();
  close(notes);
}
#define WRITE(NAME)                                                                    \
  ssize_t NAME(int handle, const void *data, size_t size, off64_t where) {             \
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, #NAME);     \
    tell("write", handle);                                                             \
    if (access(getenv("FULL"), F_OK)) return real(handle, data, size, where);          \
    if (size > 100) return real(handle, data, 100, where);                             \
    errno = ENOSPC;                                                                    \
    return -1;                                                                         \
  }
#define SYNC(NAME)                                                                     \
  int NAME(int handle) {                                                               \
    int (*real)(int) = dlsym(RTLD_NEXT, #NAME);                                        \
    tell("sync", handle);                                                              \
    return real(handle);                                                               \
  }
WRITE(pwrite)
WRITE(pwrite64)
SYNC(fsync)
SYNC(fdatasync)
"""


def under_the_shim(folder: Path, code: str) -> list[str]:
    """Run this code with a store in `folder`/store. Returns each write and fsync, and what `note`
    was given."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler: it watches what the system is asked for")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c"], check=True)
    notes = folder / "notes"
    notes.touch()
    start = f"""
import os
from pathlib import Path
from bench import log_kill
from rft.rollouts.store import RolloutStore, read
ROWS = [log_kill.row(n) for n in range(80)]
full = Path({str(folder / "full")!r})
def note(text):
    with open({str(notes)!r}, "a") as file:
        print(text, file=file)
store = RolloutStore(Path({str(folder / "store")!r}))
"""
    more = {"LD_PRELOAD": str(folder / "shim.so"), "NOTES": str(notes), "FULL": str(folder / "full")}
    command = [sys.executable, "-c", start + code]
    done = subprocess.run(command, env=os.environ | more, cwd=log_kill.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return notes.read_text().splitlines()


@pytest.mark.slow
def test_what_reaches_the_disk_when(tmp_path: Path):
    """A kill -9 leaves the system's memory alone, a power failure does not: so the order of the
    calls is the test."""
    told = under_the_shim(
        tmp_path,
        """
for change in (
    lambda: store.add(ROWS[0], 0.0),
    lambda: store.hold(ROWS[1:3], [0.0] * 2, ["{}"] * 2, "b"),
    lambda: store.add_all(ROWS[1:3], [0.0] * 2, "b"),
    lambda: store.reopen(lambda row: row == ROWS[1] or row == ROWS[2]),
    lambda: store.drop(lambda row: row == ROWS[0]),
):
    note("begin")
    change()
note("close")
store.close()
""",
    )
    first = told.index("begin")
    created = [line for line in told[:first] if "rollouts.db-" not in line]
    assert created.index("sync rollouts.db.part") < created.index("sync store"), "its tables, then its name"
    changes = " ".join(told[first : told.index("close")]).split("begin")[1:]
    assert len(changes) == 5
    for change in changes:
        assert change.strip().endswith("write rollouts.db-wal sync rollouts.db-wal"), "it is on the disk first"
        assert "rollouts.db " not in change
    closing = told[told.index("close") :]
    order = [closing.index(one) for one in ("sync rollouts.db-wal", "write rollouts.db", "sync rollouts.db")]
    assert order == sorted(order)


@pytest.mark.slow
def test_two_writers_are_one_too_many(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from rft.rollouts.store import RolloutStore; "
        "RolloutStore(Path(sys.argv[1]))"
    )
    with filled(tmp_path, close=False):
        with pytest.raises(InfrastructureError, match="another process writes this stage's rollouts"):
            RolloutStore(tmp_path)
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert "another process writes this stage's rollouts" in done.stderr
    RolloutStore(tmp_path).close()


# -- held ------------------------------------------------------------------------------------------
TURNS_JSONS = [f'{{"n": {n}}}' for n in range(80)]


def hold(store: RolloutStore, low: int, high: int, batch: str) -> None:
    store.hold(ROWS[low:high], [n / 8 for n in range(low, high)], TURNS_JSONS[low:high], batch)


def in_progress(low: int, high: int) -> list[rollout_log.LogRow]:
    return [replace(row, trained=False, left_out="in progress") for row in ROWS[low:high]]


def test_what_is_held_outlives_a_kill_and_is_in_the_log_once(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        hold(store, 0, 2, "b-0")
        hold(store, 2, 3, "b-0")
        hold(store, 10, 12, "b-10")
    assert read(tmp_path) == [*in_progress(0, 3), *in_progress(10, 12)]
    with RolloutStore(tmp_path) as store:
        assert (store.rows(), len(store), "b-0" in store, store.batch("b-0")) == ([], 0, False, None)
        assert [(one.row, one.wall_s, one.turns_json) for one in store.held("b-0")] == [
            (row, n / 8, TURNS_JSONS[n]) for n, row in enumerate(in_progress(0, 3))
        ]
        store.add_all(ROWS[:5], [0.0] * 5, "b-0")
        assert store.rows() == ROWS[:5]
        assert store.held("b-0") == []
        assert [log_kill.number_of(one.row) for one in store.held("b-10")] == [10, 11]
        with pytest.raises(AssertionError, match="batch 'b-0' is there already"):
            hold(store, 5, 6, "b-0")
    assert read(tmp_path) == [*ROWS[:5], *in_progress(10, 12)]
    with RolloutStore(tmp_path) as store:
        store.add_all(ROWS[10:12], [0.0] * 2, "b-10")
    assert files(tmp_path) == ["rollouts.db"]


def test_a_held_rollout_that_nobody_asks_for_again_is_left_out_with_that_reason(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        hold(store, 0, 4, "b-0")
        assert [log_kill.number_of(one.row) for one in store.unasked("b-0", ROWS[1:3])] == [0, 3]
        store.add_all(ROWS[1:3], [0.0] * 2, "b-0")
        hold(store, 4, 6, "b-4")
        assert store.settle("the stage ended") == 2
        assert [(log_kill.number_of(row), row.trained, row.left_out) for row in store] == [
            (1, True, ""),
            (2, True, ""),
            (0, False, "not asked for again"),
            (3, False, "not asked for again"),
            (4, False, "the stage ended"),
            (5, False, "the stage ended"),
        ]
        assert rollout_log.tally(store)[0].adds_up
    assert len(read(tmp_path)) == 6


def test_what_is_newer_than_a_checkpoint_is_held_again(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        for start in range(0, 50, 10):
            hold(store, start, start + 10, f"b-{start}")
            store.add_all(ROWS[start : start + 10], [n / 8 for n in range(start, start + 10)], f"b-{start}")
        hold(store, 50, 51, "b-50")
        assert store.reopen(lambda row: log_kill.number_of(row) >= 30) == 20
        assert store.reopen(lambda row: log_kill.number_of(row) >= 30) == 0
        with pytest.raises(AssertionError, match="only a part of batch"):
            store.reopen(lambda row: log_kill.number_of(row) == 3)
    with RolloutStore(tmp_path) as store:
        assert store.rows() == ROWS[:30]
        assert [(one.row, one.wall_s, one.turns_json) for one in store.held("b-40")] == [
            (row, n / 8, TURNS_JSONS[n]) for n, row in enumerate(in_progress(40, 50), 40)
        ]
        store.add_all(ROWS[30:40], [0.0] * 10, "b-30")
        assert (len(store.held("b-40")), len(store.held("b-50"))) == (10, 1)
        assert store.keep(lambda row: log_kill.number_of(row) < 45 or log_kill.number_of(row) == 50) == 5
    assert read(tmp_path) == [*ROWS[:40], *in_progress(50, 51), *in_progress(40, 45)]


def test_one_thread_holds_while_another_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rollout_store, "CHECKPOINT_PAGES", 7)
    with RolloutStore(tmp_path) as store, ThreadPoolExecutor(1) as other:
        holding = other.submit(lambda: [hold(store, n, n + 1, "later") for n in range(40, 80)])
        for start in range(0, 40, 4):
            store.add_all(ROWS[start : start + 4], [0.0] * 4, f"b-{start}")
        holding.result()
        assert store.rows() == ROWS[:40]
        assert [one.row for one in store.held("later")] == in_progress(40, 80)
    assert read(tmp_path) == [*ROWS[:40], *in_progress(40, 80)]


# -- other readers ---------------------------------------------------------------------------------
def test_duckdb_and_pandas_read_it(tmp_path: Path):
    """The store while the stage runs, DuckDB as an Arrow table, and the stage's file."""
    log_file = tmp_path / "rollouts.parquet"
    asked = (
        "SELECT count(*), sum(reward), count(DISTINCT rollout_id), list_sum(first(logprobs ORDER BY num_tokens "
        "DESC)) FROM {}"
    )
    wanted = [(50, pytest.approx(sum(range(50)) / 7), 50, -24.5)]
    with filled(tmp_path / "rollouts", close=False) as store, duckdb.connect() as database:
        database.register("log", rollout_log.table_of(read(tmp_path / "rollouts")))
        assert database.execute(asked.format("log")).fetchall() == wanted
        with closing(sqlite3.connect(f"{store.path.as_uri()}?mode=ro", uri=True)) as other:
            frame = pd.read_sql("SELECT example_id, reward, batch FROM rollouts ORDER BY number", other)
        assert (frame["reward"].sum(), frame["batch"].nunique()) == (pytest.approx(sum(range(50)) / 7), 5)
        rollout_log.write(store, log_file)
        assert database.execute(asked.format(f"'{log_file}'")).fetchall() == wanted
    frame = pd.read_parquet(log_file)
    assert list(frame.columns) == list(rollout_log.COLUMNS)
    assert frame["ids"].map(len).tolist() == [n % 97 for n in range(50)]


def test_the_log_file_is_that_of_a_stage_that_was_not_disturbed(tmp_path: Path):
    """Closed, reopened, dropped from: equal bytes."""
    rollout_log.write(ROWS[:50], tmp_path / "plain.parquet")
    filled(tmp_path / "store")
    with RolloutStore(tmp_path / "store") as store:
        store.drop(lambda row: log_kill.number_of(row) >= 20)
        for row in ROWS[20:50]:
            store.add(row, 0.0)
        rollout_log.write(store, tmp_path / "stored.parquet")
    assert (tmp_path / "plain.parquet").read_bytes() == (tmp_path / "stored.parquet").read_bytes()


# -- killed ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_writers_killed_at_random_moments(tmp_path: Path):
    tried = log_kill.kill_often(tmp_path, 5, seed=1)
    assert (tried.kills, tried.opened, tried.missing, tried.twice, tried.broken) == (5, 5, 0, 0, 0), tried.faults
    assert tried.rows > 0


def test_the_comparison_sees_what_is_wrong(tmp_path: Path):
    """The figure's own eyes: a row that is missing, one that is there twice, half a batch, a row
    out of order."""
    events: list[log_kill.Event] = [("begin", "batch", 0, 3), ("done", "batch", 0, 3), ("begin", "add", 3, 4)]
    cases = {
        (0, 1, 2): "",
        (0, 1, 2, 3): "",
        (0, 2): "missing",
        (0, 1, 1, 2): "twice",
        (1, 0, 2): "broken",
        (0, 1, 2, 9): "broken",
    }
    for number, (found, fault) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        with RolloutStore(folder) as store:
            for n in found:
                store.add(log_kill.row(n), 0.0)
        tried = log_kill.Tried()
        log_kill._compare(folder, [], events, tried)
        assert {name for name in ("missing", "twice", "broken") if getattr(tried, name)} >= (
            {fault} if fault else set()
        )
        assert bool(tried.missing + tried.twice + tried.broken) == bool(fault)
    changed = tmp_path / "changed"
    with RolloutStore(changed) as store:
        store.add_all([log_kill.row(0), replace(log_kill.row(1), reward=0.0), log_kill.row(2)], [0.0] * 3)
    tried = log_kill.Tried()
    log_kill._compare(changed, [], events, tried)
    assert tried.broken == 1


@pytest.mark.slow
def test_rollouts_killed_at_random_moments(tmp_path: Path):
    """Real ones, against a tool server that fails now and then: what was acknowledged is there
    once, and is not rolled out again."""
    rolled = log_kill.kill_rollouts(tmp_path, 2, seed=3, steps=2)
    assert (rolled.opened, rolled.missing, rolled.twice, rolled.again, rolled.incomplete) == (
        rolled.kills,
        0,
        0,
        0,
        0,
    ), rolled.faults
    assert (rolled.runs, rolled.acknowledged >= 2 * 48) == (1, True)
