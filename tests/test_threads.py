"""How many threads a model gets, and for how long they spin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft import threads


@pytest.mark.parametrize(
    ("parameters", "cores", "expected"),
    [
        (1_000_000, 64, 4),
        (1_000_000, 2, 2),
        (1_000_000, 1, 1),
        (10_000, 64, 1),
        (135_000_000, 16, 16),
        (135_000_000, 64, 47),
        (4_000_000_000, 128, 128),
    ],
)
def test_threads_follow_from_the_size_and_the_machine(parameters: int, cores: int, expected: int) -> None:
    assert threads.of_model(parameters, cores) == expected


def _told(code: str, **given: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_", "LOKY_"))}
    done = subprocess.run([sys.executable, "-c", code], env=kept | given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


THREADS = """
import torch
from rft import threads
threads.use(torch.nn.Linear(1000, 1000), {asked})
print(torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        (None, {"LOKY_MAX_CPU_COUNT": "1"}, "1"),
        (None, {"LOKY_MAX_CPU_COUNT": "2", "OMP_NUM_THREADS": "1"}, "1"),
        (3, {"LOKY_MAX_CPU_COUNT": "2", "OMP_NUM_THREADS": "1"}, "3"),
    ],
    ids=["ours", "the user's variable wins", "the key wins"],
)
def test_who_decides(asked: int | None, given: dict[str, str], expected: str) -> None:
    assert _told(THREADS.format(asked=asked), **given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")],
    ids=["ours", "the user's", "the user's policy"],
)
def test_the_spin_is_set_before_pytorch_and_only_where_nobody_did(given: dict[str, str], expected: str) -> None:
    code = "import os, sys, rft; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert _told(code, **given) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/user/run\n", {"user/cpu.max": "50000 100000\n", "user/run/cpu.max": "max 100000\n"}, 1),
        ("0::/run\n", {"run/cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/run\n", {}, 8),
        (
            "3:cpuset:/a\n2:cpu,cpuacct:/run\n",
            {"cpu/run/cpu.cfs_quota_us": "10\n", "cpu/run/cpu.cfs_period_us": "20\n"},
            1,
        ),
        ("2:cpu:/gone\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        (None, {}, 8),
    ],
    ids=["half, from above", "one and a half", "a container", "none", "version 1", "version 1, none", "no Linux"],
)
def test_a_cgroups_share_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    if own is not None:
        (tmp_path / "own").write_text(own)
    monkeypatch.setattr(threads, "GROUP", tmp_path / "own")
    monkeypatch.setattr(threads, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    assert threads.cores() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("some avg10=0.00 avg60=90.12 avg300=1.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", True),
        ("some avg10=99.00 avg60=3.00 avg300=1.00 total=1\n", False),
        ("", False),
        (None, False),
    ],
    ids=["held up", "for a moment", "empty", "not counted"],
)
def test_whether_others_hold_us_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: bool
) -> None:
    file = tmp_path / "cpu"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(threads, "PRESSURE", file)
    assert threads.are_held_up() is expected
