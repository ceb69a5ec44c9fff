"""When a run stops by itself, and what its files of numbers hold after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rft import config
from rft.trainer.journal import Lines, timed
from rft.trainer.metrics import Watch

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_that_moves_no_weight_stops():
    watch, section = Watch(), config.Stop(idle_steps=3)
    assert [watch.step(section, {"samples/trained": n}) for n in (0, 0, 8, 0, 0)] == [""] * 5
    assert "no weight has changed for 3 steps" in watch.step(section, {"samples/trained": 0})


def test_a_policy_that_is_sure_of_everything_stops():
    watch = Watch()
    assert watch.step(config.Stop(), {"samples/trained": 8, "entropy": 0.01}) == ""
    assert "entropy has collapsed" in watch.step(config.Stop(), {"samples/trained": 8, "entropy": 1e-6})
    assert watch.step(config.Stop(min_entropy=0), {"samples/trained": 8, "entropy": 0.0}) == ""


def test_patience_ends_with_validations_that_are_no_better():
    watch, section = Watch(), config.Stop(patience=2)
    assert [watch.validated(section, reward) for reward in (0.2, 0.3, 0.3, 0.25)][:3] == [
        (True, ""),
        (True, ""),
        (False, ""),
    ]
    assert watch.worse == 2
    better, why = watch.validated(section, 0.1)
    assert not better
    assert "no better than 0.300" in why


def test_its_counts_go_on_after_a_kill():
    watch = Watch()
    watch.step(config.Stop(), {"samples/trained": 0})
    watch.validated(config.Stop(), 0.5)
    assert Watch(**json.loads(json.dumps(watch.state()))) == watch


def test_phases_add_up_to_the_step():
    row = timed(3, 2.0, {"sampling": 0.7, "forward": 0.3}, 500)
    assert row["time/other_s"] == pytest.approx(1.0)
    assert sum(row[f"time/{name}_s"] for name in ("sampling", "forward", "other")) == pytest.approx(row["time/step_s"])
    assert row["throughput/tokens_per_s"] == 250


def test_lines_are_cut_back_to_a_checkpoint(tmp_path: Path):
    lines = Lines(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        lines.add({"step": step})
    with lines.path.open("a") as handle:
        handle.write('{"step": 6, "rew')  # a kill
    again = Lines(lines.path)
    again.back_to(4)
    assert [row["step"] for row in again.rows] == [1, 2, 3, 4]
    again.add({"step": 5})
    assert again.path.read_text() == again.text() == "".join(f'{{"step": {n}}}\n' for n in range(1, 6))


CUTTING = """
import resource, signal, sys
from pathlib import Path
from rft.trainer.journal import Lines

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
# the kernel kills whoever writes beyond, in the middle of the write
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
Lines(Path(sys.argv[1])).back_to(4)
"""


def test_a_kill_while_lines_are_cut_back_leaves_the_old_ones(tmp_path: Path):
    """R22. Truncated in place, the steps before the checkpoint would be gone."""
    lines = Lines(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        lines.add({"step": step})
    done = subprocess.run(
        [sys.executable, "-c", CUTTING, str(lines.path)], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == -signal.SIGXFSZ
    again = Lines(lines.path)
    again.back_to(4)
    assert [row["step"] for row in again.rows] == [1, 2, 3, 4]
