"""The figure of ingest, small: it compares snapshots byte by byte, and its log never changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bench import ingest_loop, ingest_speed, traffic_log


@pytest.mark.slow
def test_the_simulated_log_has_the_same_bytes_and_the_old_loop_reads_it(tmp_path: Path) -> None:
    counts = [traffic_log.write(tmp_path / name, 300_000) for name in ("a", "b")]
    hashes = {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a", "b")}
    assert len(hashes) == 1
    assert ingest_loop.loop(tmp_path / "a", tmp_path / "out") == counts[0]


@pytest.mark.story
def test_the_small_figure_holds() -> None:
    figure = ingest_speed.ingest_speed(["--small"])
    assert figure.holds is True
    assert {part.name: part.value for part in figure.parts}["blocks staged before the kill"] in (1, 2, 3)
