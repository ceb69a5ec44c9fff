"""Invented traffic is dated, ordered and whole."""

from __future__ import annotations

import datetime
import json
import os
import random
from pathlib import Path

import pytest

from rft.traffic import invented

START = datetime.date(2026, 3, 2)


def test_conversations_get_ids_and_times_in_order(tmp_path: Path) -> None:
    path = tmp_path / "inbox" / "window.jsonl"
    invented.write(path, START, 7, 50, ({"messages": n} for n in range(60)), random.Random(3))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["messages"] for row in rows] == list(range(50)), "no more than were asked for"
    assert [row["conversation_id"] for row in rows] == [f"20260302-{n:05d}" for n in range(50)]
    times = [datetime.datetime.fromisoformat(row["time"]) for row in rows]
    assert times == sorted(times)
    midnight = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    assert midnight <= times[0] < times[-1] < midnight + datetime.timedelta(days=7)
    assert (times[-1] - times[0]).days >= 5, "they fill the window"


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        invented.write(tmp_path / name, START, 1, 9, ({"n": n} for n in range(9)), random.Random("seed"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_too_few_conversations_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"window: 3 conversations were asked for, and there are 2"):
        invented.write(tmp_path / "window", START, 1, 3, [{}, {}], random.Random(0))
    assert os.listdir(tmp_path) == []
