"""A grade has a score or a reason why not, and no code can take the one for the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rft.types import SCORED, GradeStatus, Scored, StopReason, Unscored

ROOT = Path(__file__).resolve().parents[1]
SNIPPET = """
from rft.types import Grade, GradeStatus, Scored, Unscored

def mean(grades: list[Grade]) -> float:
    return sum(grade.score for grade in grades) / len(grades)

def known(grade: Grade) -> float:
    return 0.0 if grade.score is None else grade.score + 1

def status(grade: Grade) -> Unscored | None:
    return grade if grade.score is None else None

Scored(1.0, GradeStatus.infra_error)
Unscored(GradeStatus.ok)
Unscored(GradeStatus.grader_timeout, score=0.0)
"""


@pytest.mark.slow
def test_type_checking_keeps_a_missing_score_out_of_sums(tmp_path: Path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    project = {"include": ["snippet.py"], "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(project))
    told = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    errors = [one for one in json.loads(told.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    lines = {SNIPPET.splitlines()[one["range"]["start"]["line"]].strip() for one in errors}
    assert lines == {
        "return sum(grade.score for grade in grades) / len(grades)",
        "Scored(1.0, GradeStatus.infra_error)",
        "Unscored(GradeStatus.ok)",
        "Unscored(GradeStatus.grader_timeout, score=0.0)",
    }


@pytest.mark.parametrize("status", list(GradeStatus))
def test_what_is_read_from_a_file_has_the_score_that_its_status_says(status: Any):
    kind, other = (lambda: Scored(0.5, status)), (lambda: Unscored(status))
    if status not in SCORED:
        kind, other = other, kind
    assert kind().status is status
    with pytest.raises(ValueError, match=f"a grade with status {status} (has no|needs a) score"):
        other()


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("policy_error", GradeStatus.unjudgeable_answer),
        ("parse_error", GradeStatus.grader_bad_reply),
        ("grader_error", GradeStatus.grader_bad_reply),
        ("timeout", GradeStatus.grader_timeout),
    ],
)
def test_a_status_of_an_earlier_version_is_read(earlier: str, today: GradeStatus):
    assert GradeStatus(earlier) is today
    with pytest.raises(ValueError, match="fine"):
        GradeStatus("fine")


def test_a_stop_reason_of_an_earlier_version_is_read_and_the_wires_own_stay():
    assert StopReason("policy_error") is StopReason.sampler_error
    assert [StopReason(one) for one in ("parse_error", "timeout")] == [StopReason.parse_error, StopReason.timeout]
    with pytest.raises(ValueError, match="fine"):
        StopReason("fine")
