"""bench/promote_kill.py: its recorder finds what writes and dies there, and its judge tells what is
half done. The figure itself takes minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import promote_kill
from bench.promote_kill import Case, Recorder, Scene

KINDS = ["genesis", "request", "approval"]
BEFORE: dict[str, Any] = {"kinds": KINDS, "champion": 0, "file": None, "MLflow": None, "remote is the same": True}
AFTER: dict[str, Any] = BEFORE | {"kinds": [*KINDS, "promotion"], "champion": 4, "file": {}, "MLflow": [4, 0]}


def write(folder: Path) -> None:
    (folder / "clone/a.txt").write_text("a")
    os.replace(folder / "clone/a.txt", folder / "clone/b.txt")
    (folder / "clone/b.txt").read_text()
    for name in "cd":
        (folder / f"clone/.rft/agent-x/{name}").write_text("scratch")
    subprocess.run(["git", "-c", "gc.auto=0", "init", "--quiet", str(folder / "clone")], check=True)
    subprocess.run(["git", "config", "user.name", "Ada"], cwd=folder / "clone", check=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clone/.rft/agent-x").mkdir(parents=True)
    return tmp_path


def run(folder: Path, die: tuple[str, int, str] | None = None) -> tuple[int, Any]:
    def act() -> list[str]:
        recorder = Recorder(folder, die)
        recorder.install()
        write(folder)
        return recorder.writes

    return promote_kill.forked(act)


def test_recorder_lists_what_writes(folder: Path) -> None:
    assert run(folder) == (0, ["open clone/a.txt", "replace clone/b.txt", "scratch", "git config"])


@pytest.mark.parametrize(
    ("die", "there"),
    [
        (("open clone/a.txt", 0, "before"), {".rft"}),
        (("open clone/a.txt", 0, "after"), {".rft", "a.txt"}),
        (("replace clone/b.txt", 0, "before"), {".rft", "a.txt"}),
        (("replace clone/b.txt", 0, "after"), {".rft", "b.txt"}),
    ],
)
def test_recorder_kills_at_the_side_of_a_write(folder: Path, die: tuple[str, int, str], there: set[str]) -> None:
    assert run(folder, die) == (-signal.SIGKILL, None)
    assert {path.name for path in (folder / "clone").iterdir()} == there


def scene(act: str = "promote", **after: Any) -> Scene:
    return Scene(act, Path(), True, Path(), BEFORE, AFTER | after, ("git push",), 1.0)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (BEFORE, 0),
        (AFTER, 0),
        (AFTER | {"file": None}, 1),
        (BEFORE | {"champion": 4}, 1),
        (AFTER | {"MLflow": [4, 4]}, 1),
        (AFTER | {"kinds": [*KINDS, "promotion", "reconcile"]}, 2),
        (BEFORE | {"remote is the same": False}, 2),
    ],
)
def test_what_is_half_done_is_a_fault(found: dict[str, Any], wrong: int) -> None:
    assert len(promote_kill.judged(scene(), found, None)) == wrong
    assert promote_kill.judged(scene(), BEFORE, AFTER), "it was done again, and is not done"


def test_what_was_moved_by_hand_may_be_recorded_twice_and_nothing_else() -> None:
    kinds = [*KINDS, "reconcile"]
    moved = scene("reconcile", kinds=kinds)
    for more, wrong in (([], 0), (["reconcile"], 0), (["reconcile", "reconcile"], 1), (["promotion"], 1)):
        found = AFTER | {"kinds": kinds + more}
        assert len(promote_kill.judged(moved, found, None)) == wrong
    assert promote_kill.judged(moved, AFTER | {"kinds": KINDS}, None)


def test_each_write_has_both_its_sides() -> None:
    shared = scene()
    alone = Scene("promote", Path(), False, Path(), BEFORE, AFTER, ("git hash-object blob", "git update-ref"), 1.0)
    every = [(case.scene.shared, case.write, case.side) for case in promote_kill.cases([shared, alone], 0)]
    assert every == [(True, 0, "before"), (True, 0, "after"), (False, 0, "after"), (False, 1, "after")]


def test_processes_of_the_remote_are_nobodys_children(tmp_path: Path) -> None:
    remote = tmp_path / "git-receive-pack"
    remote.symlink_to("/bin/sleep")
    code = f"import subprocess as s; s.Popen(['{remote}', '9']); s.run(['sleep', '9'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as child:
        try:
            names, until = [], time.monotonic() + 20
            while names != ["sleep"] and time.monotonic() < until:  # until both have begun
                names = [Path(f"/proc/{each}/comm").read_text().strip() for each in promote_kill.below(child.pid)[1:]]
            assert names == ["sleep"]
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_case_says_where_it_kills() -> None:
    assert Case(scene(), 0, "before").name == "promote, shared, before 0: git push"
    assert Case(scene(), share=0.5, alone=True).name == "promote, shared, at 0.50 of its time, driver alone"
