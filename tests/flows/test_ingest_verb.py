"""What `rft traffic ingest` says of a log: what was taken, what was not, and what was taken
without."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.traffic import ingest
from rft.traffic import reading
from tests import scripted_windows as windows


def test_rows_that_lack_something_are_taken_and_others_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | ({"user": "u"} if number else {}) for number, row in enumerate(windows.rows(3))]
    snapshot = windows.snapshot(tmp_path, [*rows, {"conversation_id": 7}], unit="user")
    ingest.tell(reading.manifest(snapshot), Console(file=io.StringIO()))
    lines = capsys.readouterr().out.splitlines()
    assert "not taken: conversation_id 1" in lines
    assert "taken, though there is: no unit 1" in lines
    assert len([line for line in lines if "taken" in line]) == 2
