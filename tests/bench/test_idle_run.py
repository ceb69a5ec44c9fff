"""bench/idle_run.py: what it takes from Prefect's states and from the run's record, and what its
figure says. The figure itself takes minutes."""

from __future__ import annotations

from typing import Any

import pytest

from bench import idle_run
from tasks.runs.records import RunRecord


def states(**at: str) -> list[dict[str, Any]]:
    return [{"type": kind, "timestamp": f"2026-01-05T03:00:{second}Z"} for kind, second in at.items()]


def test_seconds_count_from_pending_to_completed() -> None:
    seen = states(SCHEDULED="00.0", PENDING="07.5", RUNNING="09.0", COMPLETED="21.25")
    assert idle_run.seconds_of("retrain", seen) == 13.75
    with pytest.raises(RuntimeError, match="retrain ended as CRASHED"):
        idle_run.seconds_of("retrain", states(PENDING="07.5", CRASHED="09.0"))


def record(**stages: str) -> RunRecord:
    return RunRecord(
        name="r",
        key="k",
        commit="c",
        edits_sha256=None,
        champion_version=0,
        window="w",
        inputs=[],
        started="s",
        started_by="me",
        stages=stages,
        seconds=dict.fromkeys(stages, 1.5),
    )


def test_the_figure_is_the_median_beyond_an_empty_flow() -> None:
    idle = record(traffic="restored", drift="unchanged")
    turns = [idle_run.turn_of(5.0, retrain_s, idle) for retrain_s in (19.0, 16.0, 30.0)]
    found = idle_run.figure_of(turns, turns).line("idle_run")
    assert [found[key] for key in ("value", "low", "high", "n", "bound", "holds")] == [14, 11, 25, 3, "<= 15", True]
    parts = {part["name"]: part["value"] for part in found["parts"]}
    assert (parts["in its stages"], parts["outside of them"]) == (3.0, 11.0)
    assert idle_run.figure_of(turns[2:], turns).holds is False


def test_a_run_in_which_something_changed_is_not_idle() -> None:
    turn = idle_run.turn_of(5.0, 6.0, record(traffic="ran", drift="restored"))
    found = idle_run.figure_of([turn], [turn])
    assert found.holds is False
    assert found.parts[-1].reason == "traffic"
