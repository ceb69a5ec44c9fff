"""The wire's trace ids: never met before, and computable afterwards by whoever holds the files."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from rft.wire import trace
from rft.wire.trace import Traces


def test_a_trace_id_is_uuid5_of_nonce_rollout_and_attempt() -> None:
    nonce, ours = uuid.UUID(int=7), trace.rollout_id("baseline", (0, 1))
    assert Traces(nonce).trace_id(ours, 2) == f"trace_{uuid.uuid5(nonce, f'{ours} 2')}"
    assert ours == trace.rollout_id("baseline", (0, 1)) != trace.rollout_id("baseline", (0, 2))


def test_no_two_runs_attempts_or_starts_share_one(tmp_path: Path) -> None:
    """W3: a server that keeps state by trace id credited rollouts with calls of another run."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    starts = [trace.begin(folder) for folder in (*folders, *folders)]
    ids = [traces.trace_id("rollout_1", attempt) for traces in starts for attempt in range(2)]
    assert len(set(ids)) == 8
    assert [traces.nonce for traces in starts[:2]] == [traces.nonce for traces in starts[2:]], "kept through a resume"
    assert [traces.start for traces in starts] == [1, 1, 2, 2]


def test_an_auditor_finds_the_ids_from_the_stage_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.begin(tmp_path)
    traces = trace.begin(tmp_path)
    (tmp_path / "timing.json").write_text(json.dumps({"trace": traces.published()}))
    assert trace.main([str(tmp_path / "timing.json"), "rollout_1", "--attempt", "1"]) == 0
    assert capsys.readouterr().out.split() == [Traces(traces.nonce, start).trace_id("rollout_1", 1) for start in (1, 2)]
    (tmp_path / "timing.json").write_text('{"trace": null}')
    assert trace.main([str(tmp_path / "timing.json"), "rollout_1"]) == 2
    assert "holds no trace nonce" in capsys.readouterr().err
