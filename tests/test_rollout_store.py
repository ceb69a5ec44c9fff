"""The log of a stage in progress: durable, once, in order; a torn end is cut off, damage is said; killed for real at random moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import log_kill
from rft import rollout_log
from rft.errors import InfrastructureError
from rft.rollout_store import RolloutStore, look

ROWS = [log_kill.row(n) for n in range(80)]


def numbers(rows: list[rollout_log.LogRow]) -> list[int]:
    return [log_kill.number_of(row) for row in rows]


def filled(folder: Path, close: bool = True) -> RolloutStore:
    """Rows 0 to 29 sealed, 30 to 49 in the journal, in batches of ten."""
    store = RolloutStore(folder)
    for start in range(0, 50, 10):
        if start == 30:
            store.seal()
        store.add_all(ROWS[start : start + 10], [n / 8 for n in range(start, start + 10)], f"b-{start}")
    if close:
        store.close()
    return store


def test_what_was_added_is_there_in_order(tmp_path: Path):
    filled(tmp_path)
    with RolloutStore(tmp_path) as store:
        assert store.rows() == list(store) == ROWS[:50]
        assert len(store) == 50
        assert store.seconds(lambda row: row.sample == 3) == [n / 8 for n in range(3, 50, 8)]
        store.add(ROWS[50], 9.0)
    assert look(tmp_path) == ROWS[:51]


def test_a_batch_is_found_by_its_name(tmp_path: Path):
    filled(tmp_path)
    with RolloutStore(tmp_path) as store:
        assert store.batch("b-20") == (ROWS[20:30], [n / 8 for n in range(20, 30)])
        assert store.batch("b-40") == (ROWS[40:50], [n / 8 for n in range(40, 50)])
        assert store.batch("b-50") is None
        with pytest.raises(AssertionError, match="batch 'b-20' is there already"):
            store.add_all(ROWS[:1], [0.0], "b-20")
    assert len(look(tmp_path)) == 50


def test_it_seals_itself(tmp_path: Path):
    with RolloutStore(tmp_path, seal_rows=16) as store:
        for row in ROWS[:40]:
            store.add(row, 0.0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.parquet", "000002.parquet", "000003.jsonl"]
        assert store.rows() == ROWS[:40]
    with RolloutStore(tmp_path / "bytes", seal_bytes=5_000) as store:
        store.add_all(ROWS[:10], [0.0] * 10)
        assert [path.suffix for path in (tmp_path / "bytes").iterdir()] == [".parquet"]


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
    assert [path.name for path in tmp_path.iterdir()] == ["000004-all.parquet"]
    assert look(tmp_path) == []


def test_a_batch_is_not_torn_apart(tmp_path: Path):
    with filled(tmp_path, close=False) as store, pytest.raises(AssertionError, match="only a part of batch 'b-0' would be dropped"):
        store.drop(lambda row: row.rollout_id == "rollout_000004")
    assert look(tmp_path) == ROWS[:50]


@pytest.mark.parametrize("moment", ["written", "replaced"])
def test_a_kill_while_sealing_or_dropping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str):
    """The two moments between which both forms of a row lie in the folder."""

    def killed(*where: object) -> None:
        raise KeyboardInterrupt

    for name, change in (("seal", RolloutStore.seal), ("drop", lambda store: store.drop(lambda row: log_kill.number_of(row) < 30))):
        folder = tmp_path / name
        store = filled(folder, close=False)
        with monkeypatch.context() as patch:
            if moment == "written":
                patch.setattr(os, "replace", killed)
                patch.setattr(Path, "unlink", lambda path, missing_ok: None)
            else:
                patch.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                change(store)
        store.close()
        wanted = ROWS[30:50] if (name, moment) == ("drop", "replaced") else ROWS[:50]
        assert len(list(folder.iterdir())) >= 3
        assert look(folder) == wanted
        with RolloutStore(folder) as store:
            assert store.rows() == wanted
        assert not list(folder.glob("*.part"))
        assert len(list(folder.iterdir())) == 1 + ((name, moment) != ("drop", "replaced"))


def test_what_reaches_the_disk_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kill -9 leaves the system's memory alone, a power failure does not: so the order of the calls is the test."""
    done: list[str] = []

    def noted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            target = arguments[0]
            path = Path(os.readlink(f"/proc/self/fd/{target}")) if isinstance(target, int) else Path(str(target))
            done.append(f"{name} {'folder' if path == tmp_path else path.name}")
            return real(*arguments, **more)

        return call

    with RolloutStore(tmp_path) as store:
        for owner, name in ((os, "fsync"), (os, "write"), (os, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
        store.add(ROWS[0], 0.0)
        store.add(ROWS[1], 0.0)
        assert done == ["fsync folder", *["write 000001.jsonl", "fsync 000001.jsonl"] * 2]
        for change, name in ((store.seal, "000001"), (lambda: store.drop(lambda row: row == ROWS[0]), "000001-all")):
            done.clear()
            change()
            told = [one for one in done if ".unlink" not in one]
            assert told[:3] == [f"fsync {name}.parquet.part", f"replace {name}.parquet.part", "fsync folder"]
            assert [one for one in told[3:] if one.startswith("unlink")] == told[3:]
            assert told[3:]


# -- torn, damaged, full ---------------------------------------------------------------------------------------------------
def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path: Path):
    """At every byte of the last two lines, a row and a batch of two. Now and then it is opened and goes on."""
    with RolloutStore(tmp_path / "whole") as store:
        for rows in ([ROWS[0]], [ROWS[1]], ROWS[2:4]):
            store.add_all(rows, [0.0] * len(rows))
    whole = (tmp_path / "whole" / "000001.jsonl").read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    folder = tmp_path / "cut"
    folder.mkdir()
    for size in range(ends[0], len(whole) + 1):
        (folder / "000001.jsonl").write_bytes(whole[:size])
        kept = [0, *([1] if size >= ends[1] else []), *([2, 3] if size >= ends[2] else [])]
        assert numbers(look(folder)) == kept
        if size % 89 == 0 or size + 1 in ends or size in ends:
            with RolloutStore(folder) as store:
                assert numbers(store.rows()) == kept
                store.add(ROWS[9], 0.0)
            assert numbers(look(folder)) == [*kept, 9]


@given(torn=st.binary(max_size=200))
def test_any_torn_end_is_cut_off(tmp_path_factory: pytest.TempPathFactory, torn: bytes):
    """Also zeros and other blocks that a power failure leaves."""
    folder = tmp_path_factory.mktemp("torn")
    with RolloutStore(folder) as store:
        store.add_all(ROWS[:2], [0.0, 0.0])
    with (folder / "000001.jsonl").open("ab") as journal:
        journal.write(torn)
    with RolloutStore(folder) as store:
        store.add(ROWS[2], 0.0)
    assert look(folder) == ROWS[:3]


def test_damage_is_not_a_shorter_log(tmp_path: Path):
    filled(tmp_path)
    journal = tmp_path / "000002.jsonl"
    text = journal.read_bytes()
    journal.write_bytes(text.replace(b'"reward": 4.2857', b'"reward": 9.2857'))
    with pytest.raises(InfrastructureError, match=r"000002\.jsonl: line 1 was changed after it was written"):
        RolloutStore(tmp_path)
    journal.write_bytes(text)
    (tmp_path / "000001.parquet").rename(tmp_path / "away")
    for opens in (RolloutStore, look):
        with pytest.raises(InfrastructureError, match="segment 000001 of the rollout log is missing"):
            opens(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with RolloutStore(tmp_path) as store:
        store.add(ROWS[0], 0.0)
        real = os.write
        with monkeypatch.context() as patch:

            def full(handle: int, data: memoryview) -> int:
                if len(data) > 100:
                    return real(handle, data[:100])
                raise OSError(28, "No space left on device")

            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left"):
                store.add(ROWS[1].__class__(**{**asdict(ROWS[1]), "explanation": "x" * (100 - len_of(ROWS[1]) % 100)}), 0.0)
        store.add(ROWS[2], 0.0)
        assert store.rows() == [ROWS[0], ROWS[2]]
    assert look(tmp_path) == [ROWS[0], ROWS[2]]


def len_of(row: rollout_log.LogRow) -> int:
    return len(json.dumps(asdict(row)))


def test_two_writers_are_one_too_many(tmp_path: Path):
    code = "import sys; from pathlib import Path; from rft.rollout_store import RolloutStore; RolloutStore(Path(sys.argv[1]))"
    with filled(tmp_path, close=False):
        with pytest.raises(InfrastructureError, match="another process writes this stage's rollouts"):
            RolloutStore(tmp_path)
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert "another process writes this stage's rollouts" in done.stderr
    RolloutStore(tmp_path).close()


# -- held ------------------------------------------------------------------------------------------------------------------
RESTS = [f'{{"n": {n}}}' for n in range(80)]


def hold(store: RolloutStore, low: int, high: int, batch: str) -> None:
    store.hold(ROWS[low:high], [n / 8 for n in range(low, high)], RESTS[low:high], batch)


def in_progress(low: int, high: int) -> list[rollout_log.LogRow]:
    return [replace(row, trained=False, left_out="in progress") for row in ROWS[low:high]]


def test_what_is_held_outlives_a_kill_and_is_in_the_log_once(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        hold(store, 0, 2, "b-0")
        hold(store, 2, 3, "b-0")
        hold(store, 10, 12, "b-10")
    assert look(tmp_path) == [*in_progress(0, 3), *in_progress(10, 12)]
    with RolloutStore(tmp_path) as store:
        assert (store.rows(), len(store), "b-0" in store, store.batch("b-0")) == ([], 0, False, None)
        assert [(one.row, one.wall_s, one.rest) for one in store.held("b-0")] == [(row, n / 8, RESTS[n]) for n, row in enumerate(in_progress(0, 3))]
        store.add_all(ROWS[:5], [0.0] * 5, "b-0")
        assert store.rows() == ROWS[:5]
        assert store.held("b-0") == []
        assert [log_kill.number_of(one.row) for one in store.held("b-10")] == [10, 11]
        with pytest.raises(AssertionError, match="batch 'b-0' is there already"):
            hold(store, 5, 6, "b-0")
    assert look(tmp_path) == [*ROWS[:5], *in_progress(10, 12)]
    with RolloutStore(tmp_path) as store:
        store.add_all(ROWS[10:12], [0.0] * 2, "b-10")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.jsonl"]


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
    assert len(look(tmp_path)) == 6


def test_what_is_newer_than_a_checkpoint_is_held_again(tmp_path: Path):
    with RolloutStore(tmp_path, seal_rows=15) as store:
        for start in range(0, 50, 10):
            hold(store, start, start + 10, f"b-{start}")
            store.add_all(ROWS[start : start + 10], [n / 8 for n in range(start, start + 10)], f"b-{start}")
        hold(store, 50, 51, "b-50")
        before = sorted(path.name for path in tmp_path.iterdir())
        assert before == ["000001.parquet", "000002.parquet", "000003.jsonl", "held.lines"]
        assert store.reopen(lambda row: log_kill.number_of(row) >= 30) == 20
        assert store.reopen(lambda row: log_kill.number_of(row) >= 30) == 0
        with pytest.raises(AssertionError, match="only a part of batch"):
            store.reopen(lambda row: log_kill.number_of(row) == 3)
    with RolloutStore(tmp_path) as store:
        assert store.rows() == ROWS[:30]
        assert [(one.row, one.wall_s, one.rest) for one in store.held("b-40")] == [
            (row, n / 8, RESTS[n]) for n, row in enumerate(in_progress(40, 50), 40)
        ]
        store.add_all(ROWS[30:40], [0.0] * 10, "b-30")
        assert (len(store.held("b-40")), len(store.held("b-50"))) == (10, 1)
        assert store.keep(lambda row: log_kill.number_of(row) < 45 or log_kill.number_of(row) == 50) == 5
    assert look(tmp_path) == [*ROWS[:40], *in_progress(50, 51), *in_progress(40, 45)]


@pytest.mark.parametrize("moment", ["held", "written", "replaced"])
def test_a_kill_while_a_batch_is_held_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str):
    def killed(*where: object) -> None:
        raise KeyboardInterrupt

    store = filled(tmp_path, close=False)
    where = {"held": (RolloutStore, "_rewrite"), "written": (os, "replace"), "replaced": (Path, "unlink")}[moment]
    with monkeypatch.context() as patch:
        if moment == "written":
            patch.setattr(Path, "unlink", lambda path, missing_ok: None)
        patch.setattr(*where, killed)
        with pytest.raises(KeyboardInterrupt):
            store.reopen(lambda row: log_kill.number_of(row) >= 20)
    store.close()
    wanted = [*ROWS[:20], *in_progress(20, 50)] if moment == "replaced" else ROWS[:50]
    assert look(tmp_path) == wanted
    with RolloutStore(tmp_path) as store:
        assert len(store) == (20 if moment == "replaced" else 50)
        store.reopen(lambda row: log_kill.number_of(row) >= 20)
    assert look(tmp_path) == [*ROWS[:20], *in_progress(20, 50)]


def test_a_kill_between_a_batch_and_what_was_held_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = RolloutStore(tmp_path)
    hold(store, 0, 3, "b-0")
    hold(store, 3, 4, "b-3")
    with monkeypatch.context() as patch:
        patch.setattr(RolloutStore, "_shrink", lambda store: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.add_all(ROWS[:3], [0.0] * 3, "b-0")
    store.close()
    assert look(tmp_path) == [*ROWS[:3], *in_progress(3, 4)]
    with RolloutStore(tmp_path) as store:
        assert (store.rows(), store.held("b-0"), len(store.held("b-3"))) == (ROWS[:3], [], 1)


def test_held_lines_cut_anywhere_keep_those_that_are_whole(tmp_path: Path):
    with RolloutStore(tmp_path) as store:
        hold(store, 0, 1, "b-0")
        hold(store, 1, 3, "b-0")
    whole = (tmp_path / "held.lines").read_bytes()
    first = whole.index(b"\n") + 1
    for size in [*range(first, len(whole), 97), len(whole) - 1, len(whole)]:
        (tmp_path / "held.lines").write_bytes(whole[:size])
        assert len(look(tmp_path)) == (3 if size == len(whole) else 1)
        with RolloutStore(tmp_path) as store:
            assert len(store.held("b-0")) == (3 if size == len(whole) else 1)
    (tmp_path / "held.lines").write_bytes(whole.replace(b"n-000000", b"n-000009"))
    with pytest.raises(InfrastructureError, match=r"held\.lines: line 1 was changed after it was written"):
        RolloutStore(tmp_path)


def test_one_thread_holds_while_another_adds(tmp_path: Path):
    with RolloutStore(tmp_path, seal_rows=7) as store, ThreadPoolExecutor(1) as other:
        holding = other.submit(lambda: [hold(store, n, n + 1, "later") for n in range(40, 80)])
        for start in range(0, 40, 4):
            store.add_all(ROWS[start : start + 4], [0.0] * 4, f"b-{start}")
        holding.result()
        assert store.rows() == ROWS[:40]
        assert [one.row for one in store.held("later")] == in_progress(40, 80)
    assert look(tmp_path) == [*ROWS[:40], *in_progress(40, 80)]


# -- other readers ---------------------------------------------------------------------------------------------------------
def test_duckdb_and_pandas_read_it(tmp_path: Path):
    """The parts while the stage runs, the journal as JSON lines, and the shelf's file."""
    with filled(tmp_path / "rollouts", close=False) as store:
        parts, shelf = f"{tmp_path}/rollouts/*.parquet", tmp_path / "rollouts.parquet"
        asked = "SELECT count(*), sum(reward), count(DISTINCT rollout_id), list_sum(first(logprobs ORDER BY num_tokens DESC)) FROM '{}'"
        with duckdb.connect() as database:
            assert database.execute(asked.format(parts)).fetchall() == [(30, pytest.approx(sum(range(30)) / 7), 30, -14.5)]
            journal = f"SELECT count(row.rollout_id) FROM (SELECT unnest(rows) AS row FROM read_json('{tmp_path}/rollouts/*.jsonl'))"
            assert database.execute(journal).fetchall() == [(20,)]
            rollout_log.write(store, shelf)
            assert database.execute(asked.format(shelf)).fetchall()[0][0] == 50
    assert len(pd.read_parquet(tmp_path / "rollouts" / "000001.parquet")) == 30
    frame = pd.read_parquet(shelf)
    assert list(frame.columns) == list(rollout_log.COLUMNS)
    assert frame["ids"].map(len).tolist() == [n % 97 for n in range(50)]


def test_the_shelf_is_that_of_a_stage_that_was_not_disturbed(tmp_path: Path):
    """Sealed early, reopened, rewritten: equal bytes."""
    rollout_log.write(ROWS[:50], tmp_path / "plain.parquet")
    filled(tmp_path / "store")
    with RolloutStore(tmp_path / "store", seal_rows=7) as store:
        store.drop(lambda row: log_kill.number_of(row) >= 20)
        for row in ROWS[20:50]:
            store.add(row, 0.0)
        rollout_log.write(store, tmp_path / "stored.parquet")
    assert (tmp_path / "plain.parquet").read_bytes() == (tmp_path / "stored.parquet").read_bytes()


# -- killed ----------------------------------------------------------------------------------------------------------------
def test_writers_killed_at_random_moments(tmp_path: Path):
    tried = log_kill.kill_often(tmp_path, 5, seed=1)
    assert (tried.kills, tried.opened, tried.missing, tried.twice, tried.broken) == (5, 5, 0, 0, 0), tried.faults
    assert tried.rows > 0


def test_the_comparison_sees_what_is_wrong(tmp_path: Path):
    """The figure's own eyes: a row that is missing, one that is there twice, half a batch, a row out of order."""
    said: list[log_kill.Said] = [("begin", "batch", 0, 3), ("done", "batch", 0, 3), ("begin", "add", 3, 4)]
    cases = {(0, 1, 2): "", (0, 1, 2, 3): "", (0, 2): "missing", (0, 1, 1, 2): "twice", (1, 0, 2): "broken", (0, 1, 2, 9): "broken"}
    for number, (found, fault) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        with RolloutStore(folder) as store:
            for n in found:
                store.add(log_kill.row(n), 0.0)
        tried = log_kill.Tried()
        log_kill._compare(folder, [], said, tried)
        assert {name for name in ("missing", "twice", "broken") if getattr(tried, name)} >= ({fault} if fault else set())
        assert bool(tried.missing + tried.twice + tried.broken) == bool(fault)
    changed = tmp_path / "changed"
    with RolloutStore(changed) as store:
        store.add_all([log_kill.row(0), replace(log_kill.row(1), reward=0.0), log_kill.row(2)], [0.0] * 3)
    tried = log_kill.Tried()
    log_kill._compare(changed, [], said, tried)
    assert tried.broken == 1


def test_rollouts_killed_at_random_moments(tmp_path: Path):
    """Real ones, against a tool server that fails now and then: what was acknowledged is there once, and is not rolled out again."""
    rolled = log_kill.kill_rollouts(tmp_path, 2, seed=3, steps=2)
    assert (rolled.opened, rolled.missing, rolled.twice, rolled.again, rolled.incomplete) == (rolled.kills, 0, 0, 0, 0), rolled.faults
    assert (rolled.runs, rolled.acknowledged >= 2 * 48) == (1, True)
