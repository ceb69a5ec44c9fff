"""The rollout log: what is written is what is read, and every rollout is accounted for once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft import secrets
from rft.errors import RftError, UserError
from rft.files import tree_sha256
from rft.rollouts import log as rollout_log
from rft.types import Example, GradeStatus, Scored, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored, Usage
from tests.rollouts.test_loop import PROMPT

EXAMPLE = Example("n-1", ({"role": "user", "content": "ü?"},), "t", {"slice": "odd"})
TURNS = (
    Turn("call", (ToolCall("c", "f", "{}"),), (ToolResult("c", "seen"),), (1, 2), (3, 4), (-0.5, -0.25)),
    Turn("t", (), (), (5,), (6,), (-0.1,)),
)
DONE = Trajectory(
    "trace_1", "n-1", TURNS, StopReason.completed, Scored(1.0, solved=True, explanation="exact"), 1.0, wall_s=3.0
)
UNSCORED = replace(DONE, grade=Unscored(GradeStatus.infra_error), reward=None)


def rows() -> list[rollout_log.LogRow]:
    return [rollout_log.row(DONE, EXAMPLE, sample, PROMPT, "baseline", "champion") for sample in range(3)]


def test_the_sequence_is_flat_and_the_mask_marks_the_policys_own():
    assert DONE.flat() == ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True], [-0.5, -0.25, -0.1])


def test_parquet_gives_back_every_field_and_equal_bytes(tmp_path: Path):
    for name in ("a.parquet", "b.parquet"):
        rollout_log.write(iter(rows()), tmp_path / name)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [asdict(row) for row in rows()]
    assert rollout_log.read(tmp_path / "a.parquet") == rollout_log.read((tmp_path / "a.parquet").read_bytes()) == rows()
    assert tree_sha256(tmp_path / "a.parquet") == tree_sha256(tmp_path / "b.parquet")


def test_an_unscored_rollout_has_no_outcome(tmp_path: Path):
    """R14: neither solved nor not, in the file either: a condition on `solved` finds it on no side.
    Its own record comes back whole."""
    mine = rollout_log.row(UNSCORED, EXAMPLE, 0, PROMPT, "baseline", "champion")
    assert mine.solved is None
    rollout_log.write([*rows(), mine], tmp_path / "log.parquet")
    asked = f"SELECT count(*) FILTER (solved), count(*) FILTER (NOT solved), count(*) FROM '{tmp_path / 'log.parquet'}'"
    assert duckdb.sql(asked).fetchall() == [(3, 0, 4)]
    assert rollout_log.restored(mine, rollout_log.turns_json(UNSCORED), UNSCORED.wall_s)[1].grade == UNSCORED.grade


def test_a_long_log_is_written_in_pieces(tmp_path: Path):
    many = [replace(rows()[0], sample=n) for n in range(rollout_log.CHUNK + 1)]
    rollout_log.write(many, tmp_path / "many.parquet")
    assert pq.ParquetFile(tmp_path / "many.parquet").num_row_groups == 2
    assert rollout_log.read(tmp_path / "many.parquet") == many


def test_no_rows_is_a_log_too(tmp_path: Path):
    rollout_log.write([], tmp_path / "none.parquet")
    assert rollout_log.read(tmp_path / "none.parquet") == []


def test_a_log_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    path = tmp_path / "log.parquet"
    rollout_log.write(rows(), path)
    with pytest.raises(pa.ArrowInvalid):
        rollout_log.write([*rows(), replace(rows()[0], step=1 << 40)], path)
    assert rollout_log.read(path) == rows()
    assert list(tmp_path.iterdir()) == [path]


def test_half_a_letter_does_not_lose_the_log(tmp_path: Path):
    """JSON can hold a lone surrogate; UTF-8 cannot."""
    odd = replace(EXAMPLE, messages=({"role": "user", "content": "half \ud83d"},), line="")
    row = rollout_log.row(DONE, odd, 0, PROMPT, "baseline", "champion")
    rollout_log.write([row], tmp_path / "odd.parquet")
    assert json.loads(rollout_log.read(tmp_path / "odd.parquet")[0].item)["messages"] == [
        {"role": "user", "content": "half \ud83d"}
    ]


def test_half_a_letter_does_not_let_a_secret_through(tmp_path: Path):
    secrets.add("TOOL_KEY", "a-key-of-the-tools")
    try:
        odd = replace(EXAMPLE, messages=({"role": "user", "content": "a-key-of-the-tools \ud83d"},), line="")
        row = rollout_log.row(DONE, odd, 0, PROMPT, "baseline", "champion")
    finally:
        secrets.forget()
    assert "a-key-of-the-tools" not in row.messages
    assert "[secret TOOL_KEY]" in row.messages


def test_what_is_no_log_is_said(tmp_path: Path):
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(UserError, match=r"page\.html is not a Parquet file"):
        rollout_log.read(tmp_path / "page.html")
    pq.write_table(pa.table({"stage": ["train"]}), tmp_path / "old.parquet")
    with pytest.raises(UserError, match=r"data/train/rollouts\.parquet has no column arm, step"):
        rollout_log.read((tmp_path / "old.parquet").read_bytes(), "data/train/rollouts.parquet")


def test_a_rollout_pays_for_its_context_in_every_turn():
    first, last = replace(TURNS[0], usage=Usage(2, 0, 2)), replace(TURNS[1], usage=Usage(5, 3, 1))
    row = rollout_log.row(replace(DONE, turns=(first, last)), EXAMPLE, 0, PROMPT, "baseline", "champion")
    assert (row.num_context_tokens, row.num_cached_tokens, row.num_tokens) == (7, 3, 3)
    unknown = rollout_log.row(replace(DONE, turns=(first, TURNS[1])), EXAMPLE, 0, PROMPT, "baseline", "champion")
    assert (unknown.num_context_tokens, unknown.num_cached_tokens, unknown.num_tokens) == (None, None, 3)


def test_an_endpoint_without_ids_counts_what_it_sampled():
    turns = (Turn("t", usage=Usage(90, 64, 7)),)
    assert rollout_log.row(replace(DONE, turns=turns), EXAMPLE, 0, PROMPT, "baseline", "champion").num_tokens == 7


def test_unreadable_calls_are_counted_with_the_one_that_ended_the_rollout():
    told = Turn("<call>", (ToolCall("c", "f", "[1]", "no object"), ToolCall("d", "f", "{}")))
    ended = replace(DONE, turns=(told, Turn("{oops")), stop_reason=StopReason.parse_error)
    rows = [rollout_log.row(one, EXAMPLE, 0, PROMPT, "baseline", "champion") for one in (DONE, ended)]
    assert [row.num_unreadable_calls for row in rows] == [0, 2]


def test_a_log_of_0_1_0_says_of_costs_that_they_are_not_on_record(tmp_path: Path):
    later = ["num_context_tokens", "num_cached_tokens", "num_unreadable_calls"]
    rollout_log.write(rows(), tmp_path / "new.parquet")
    pq.write_table(pq.read_table(tmp_path / "new.parquet").drop_columns(later), tmp_path / "old.parquet")
    unknown = [
        replace(row, num_context_tokens=None, num_cached_tokens=None, num_unreadable_calls=None) for row in rows()
    ]
    assert rollout_log.read(tmp_path / "old.parquet") == unknown


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("policy_error", "unjudgeable_answer"),
        ("parse_error", "grader_bad_reply"),
        ("grader_error", "grader_bad_reply"),
        ("timeout", "grader_timeout"),
        ("ok", "ok"),
    ],
)
def test_a_log_of_0_1_0_is_read_in_todays_words(tmp_path: Path, earlier: str, today: str):
    """A reader finds one word for one thing, whichever version wrote the file. Stop reasons that
    have the name of an old status stay."""

    def said(status: str, stop: str) -> list[rollout_log.LogRow]:
        more = [("parse_error", ""), ("timeout", f"unscored: {status}"), (stop, f"replaced: {status}")]
        return [replace(rows()[0], status=status, stop_reason=each, left_out=why) for each, why in more]

    rollout_log.write(said(earlier, "policy_error"), tmp_path / "old.parquet")
    assert rollout_log.read(tmp_path / "old.parquet") == said(today, "sampler_error")
    assert rollout_log.table(tmp_path / "old.parquet").schema == rollout_log.schema()


def test_a_row_that_0_1_0_kept_becomes_the_trajectory():
    """A stage that was killed before, and goes on with this version."""
    mine = replace(
        rollout_log.row(UNSCORED, EXAMPLE, 0, PROMPT, "train", "challenger"),
        stop_reason="policy_error",
        status="timeout",
    )
    _, found = rollout_log.restored(mine, rollout_log.turns_json(UNSCORED), 0.0)
    assert (found.stop_reason, found.grade.status) == (StopReason.sampler_error, GradeStatus.grader_timeout)


def test_a_row_and_its_rest_are_the_trajectory_again():
    calls = (ToolCall("c", "f", '{"a": 1}'), ToolCall("d", "", "{oops", "no JSON"))
    results = (
        ToolResult("c", "seen ü", latency_s=0.25, retries=2),
        ToolResult("d", "Error", is_error=True, failed=True),
    )
    turns = (
        Turn("<call>", calls, results, (1, 2), (3, 4), (-0.5, -0.25), content="", reasoning="hm"),
        Turn("", forked=True),
        Turn("t", (), (), (5,), (6,), (-0.125,), usage=Usage(5, 3, 1)),
    )
    grade = Scored(0.25, GradeStatus.hack, False, {"outcome": 0.5}, "because", ("other_error",), ("rm tests",))
    for one in (
        replace(DONE, turns=turns, grade=grade, reward=0.1, attempt=2),
        replace(UNSCORED, turns=(), stop_reason=StopReason.cancelled),
    ):
        row = rollout_log.row(one, EXAMPLE, 4, PROMPT, "train", "challenger", 1)
        assert rollout_log.restored(row, rollout_log.turns_json(one, "again 2"), one.wall_s) == ("again 2", one)
    tenth = rollout_log.restored(rows()[0], rollout_log.turns_json(DONE), 0.0)[1].turns[1].logprobs[0]
    assert tenth == float(np.float32(-0.1)), "what a tensor would hold"


# -- sampled = trained + left out ------------------------------------------------------------------
def train(trajectory: Trajectory = DONE, trained: bool = True, left_out: str = "") -> rollout_log.LogRow:
    row = rollout_log.row(trajectory, EXAMPLE, 0, PROMPT, "train", "challenger", 1)
    return replace(row, trained=trained, left_out=left_out)


def test_every_rollout_is_counted_once():
    log = [
        train(),
        train(),
        train(trained=False, left_out="no variance"),
        train(UNSCORED, False, "unscored: infra_error"),
    ]
    unscored = rollout_log.row(UNSCORED, EXAMPLE, 0, PROMPT, "baseline", "champion")
    trained, compared = rollout_log.tally([*log, *rows(), unscored])
    assert (trained.stage, trained.step, trained.sampled, trained.trained, trained.compared) == ("train", 1, 4, 2, 0)
    assert trained.left_out == {"no variance": 1, "unscored: infra_error": 1}
    assert (compared.sampled, compared.trained, compared.compared, compared.left_out) == (
        4,
        0,
        3,
        {"unscored: infra_error": 1},
    )


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (train(left_out="no variance"), "was trained on, and left out"),
        (train(UNSCORED), "was trained on without a score"),
        (replace(train(), stage="baseline"), "was trained on outside of training"),
        (train(trained=False), "was neither trained on nor left out with a reason"),
    ],
)
def test_a_row_that_contradicts_itself_is_an_error(row: rollout_log.LogRow, fault: str):
    with pytest.raises(RftError, match=f"does not add up: rollout trace_1 of .* {fault}"):
        rollout_log.tally([train(), row])
