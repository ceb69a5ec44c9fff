"""What is kept is made once, and again when what it depends on is another."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests import kept


def test_it_is_made_again_for_other_files_and_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PLACE", tmp_path / "kept")
    file = tmp_path / "code.py"
    file.write_text("1")
    made = list[Path]()
    days = date(2026, 11, 26), date(2026, 11, 27)

    def make(day: date | None = None) -> Path:
        return kept.folder("thing", made.append, [file], day)

    first = make()
    assert make() == first
    assert made == [first]
    assert [make(day) for day in (*days, *days)] == made[1:] * 2
    file.write_text("2")
    assert make() == made[3] != first


def test_what_was_cut_off_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PLACE", tmp_path / "kept")

    def breaks(place: Path) -> None:
        (place / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        kept.folder("thing", breaks, [])
    assert {path.name for path in kept.folder("thing", lambda place: None, []).iterdir()} == {"whole"}
