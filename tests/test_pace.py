"""What people see of a long step: how far it is, how fast, and the time that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import lines, progress, threads
from rft.rollouts.pace import Pace


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets, on a machine of which nobody else makes use."""
    now = [1000.0]
    monkeypatch.setattr("rft.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "PRESSURE", tmp_path / "cpu")
    return now


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_step_that_has_begun_is_told_beside_the_last_one(clock: list[float], capsys: pytest.CaptureFixture[str]):
    report = progress.Reporter("train", 80)
    report(12, "steps, reward 0.41")
    pace = Pace("train", 64)
    clock[0] += 4
    pace(200, False)
    assert told(capsys) == [
        "[train] 12/80 steps, reward 0.41",
        "[train] 12/80 steps, reward 0.41; sampling: 0 of 64 rollouts, 1 turn, 50 tokens/s",
    ]
    for _ in range(60):
        pace(1, False)
        pace(0, True)
    for _ in range(8):
        pace.again(1, False)
        pace.again(0, True)
    assert told(capsys) == [], "a log is not flooded"
    clock[0] += 2
    pace(0, True)
    [line] = told(capsys)
    found = lines.COUNTED.match(line)
    assert found is not None
    assert found.group(1, 2) == ("12", "80"), "old readers find the count where it was"
    assert "sampling: 61 of 64 rollouts and 8 played again, 69 turns" in line


def test_nothing_is_told_of_a_stage_that_counts_nothing_or_has_ended(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    clock[0] += 60
    progress.within("unheard_of", "learning: 1 of 2 rollouts")
    progress.Reporter("gate", 1)(1, "checks")
    clock[0] += 60
    progress.within("gate", "learning: 1 of 2 rollouts")
    assert told(capsys) == ["[gate] 1/1 checks"]


def test_the_time_left_comes_from_finished_steps_alone(clock: list[float], capsys: pytest.CaptureFixture[str]):
    report = progress.Reporter("train", 10)
    clock[0] += 500  # the first step, with all that is done once
    report(1, "steps")
    clock[0] += 6
    report(2, "steps")
    assert not any("left" in line for line in told(capsys)), "six seconds are not evidence"
    clock[0] += 24
    report(3, "steps")
    assert told(capsys) == ["[train] 3/10 steps, about 2 min left"], "7 steps of 15 s"
    clock[0] += 15
    report(10, "steps")
    assert told(capsys) == ["[train] 10/10 steps"]


def test_the_time_left_follows_the_last_minute_and_names_other_work(
    clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = progress.Reporter("policy", 1000)
    for done in range(1, 401):  # ten steps a second
        clock[0] += 0.1
        report(done, "steps")
    assert told(capsys)[-1] == "[policy] 400/1000 steps, about 60 s left"
    (tmp_path / "cpu").write_text("some avg10=80.00 avg60=80.00 avg300=9.00 total=1\n")
    for done in range(401, 466):  # one a second
        clock[0] += 1
        report(done, "steps")
    assert told(capsys)[-1] == "[policy] 465/1000 steps, about 9 min left, slowed by other work"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (89, "89 s"), (100, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_a_time_for_people(seconds: float, text: str):
    assert progress.duration(seconds) == text
