"""The rollout log: what is written is what is read, in Parquet and in the lines of a stage that is still running."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq

from rft import rollout_log
from rft.progress import tree_sha256
from rft.types import Example, Grade, StopReason, ToolCall, ToolResult, Trajectory, Turn
from tests.test_rollout import PROMPT

EXAMPLE = Example("n-1", ({"role": "user", "content": "ü?"},), "t", {"slice": "odd"})
TURNS = (
    Turn("call", (ToolCall("c", "f", "{}"),), (ToolResult("c", "seen"),), (1, 2), (3, 4), (-0.5, -0.25)),
    Turn("t", (), (), (5,), (6,), (-1.0,)),
)
DONE = Trajectory("trace_1", "n-1", TURNS, StopReason.completed, Grade(1.0, solved=True, explanation="exact"), 1.0, wall_s=3.0)


def rows() -> list[rollout_log.LogRow]:
    return [rollout_log.row(DONE, EXAMPLE, sample, PROMPT, "baseline", "champion") for sample in range(3)]


def test_the_sequence_is_flat_and_the_mask_marks_the_policys_own():
    assert rollout_log.flat(DONE) == ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True], [-0.5, -0.25, -1.0])


def test_parquet_gives_back_every_field_and_equal_bytes(tmp_path: Path):
    for name in ("a.parquet", "b.parquet"):
        rollout_log.write(rows(), tmp_path / name)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [asdict(row) for row in rows()]
    assert tree_sha256(tmp_path / "a.parquet") == tree_sha256(tmp_path / "b.parquet")


def test_no_rows_is_a_log_too(tmp_path: Path):
    rollout_log.write([], tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_line_that_a_kill_cut_off_is_not_a_row(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    rollout_log.append_lines(rows(), path)
    path.write_bytes(path.read_bytes()[:-20])
    assert rollout_log.read_lines(path) == rows()[:2]
