"""DVC that is loaded once per run: its forks are like DVC started anew, and end with it and with
us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ladder_clone
import psutil
import pytest

from tasks.runs import dvc_process
from tasks.runs.dvc_process import Environment, Loaded

MORE = {"PYTHONUNBUFFERED": "1"}


PIPELINE = """
stages:
  sleep:
    cmd: exec sh sleep.sh
    deps: [sleep.sh]
  tell:
    cmd: echo $ASKED of $PPID
    params: [odd, more]
  again:
    cmd: echo again
    params: [odd, more]
"""
PARAMS = """
odd: [1e-05, 1.0e+22, .inf, "1e-05", "yes", "0o7", "12:30", "2020-01-01", null, "null", "", "a\\nb ", ü]
more: {"#": [], "- a": {}, "no": 1_000}
"""
"""What YAML may read otherwise than it was written."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC project with one stage, which sleeps when it is told to."""
    root = tmp_path_factory.mktemp("tree")
    (root / ".dvc/tmp").mkdir(parents=True)
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "params.yaml").write_text(PARAMS)
    return root


@pytest.fixture
def loaded(tree: Path) -> Iterator[Loaded]:
    made = Loaded()
    made.start(tree, MORE)
    yield made
    made.stop()


def answer(
    tree: Path, loaded: Loaded | None, *arguments: str, more: Environment = MORE
) -> tuple[type[object], int, str]:
    with dvc_process.started(tree, [*arguments], more, loaded) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        return type(process), process.wait(), text


@pytest.mark.slow
def test_a_fork_says_what_dvc_says_and_ends_as_it_does(tree: Path, loaded: Loaded) -> None:
    (tree / "sleep.sh").write_text("echo slept\n")
    for arguments in (("status",), ("repro", "--single-item", "nothing")):
        anew, code, text = answer(tree, None, *arguments)
        assert answer(tree, loaded, *arguments) == (dvc_process._Fork, code, text)
        assert anew is subprocess.Popen
    assert code != 0, "an error's exit code, too"
    kind, code, text = answer(tree, loaded, "repro", "--single-item", "sleep")
    assert (kind, code) == (dvc_process._Fork, 0)
    assert "\nslept\n" in text


@pytest.mark.slow
def test_another_folder_or_environment_gets_a_dvc_of_its_own(tree: Path, loaded: Loaded, tmp_path: Path) -> None:
    assert answer(tree, loaded, "--version", more=MORE | {"RFT_DEADLINE": "1"})[:2] == (subprocess.Popen, 0)
    assert answer(tmp_path, loaded, "--version")[:2] == (subprocess.Popen, 0)
    assert answer(tree, loaded, "--version")[:2] == (dvc_process._Fork, 0), "and the loaded one is still there"


@pytest.mark.slow
def test_dvc_lock_has_the_same_bytes(tree: Path, loaded: Loaded) -> None:
    lock, written = tree / "dvc.lock", list[bytes]()
    for each in (None, loaded):
        lock.unlink(missing_ok=True)
        for stage in ("tell", "again", "tell"):  # read and written anew, with what stands there
            assert answer(tree, each, "repro", "--force", "--single-item", stage)[1] == 0
        written.append(lock.read_bytes())
    assert written[0] == written[1]
    assert b"12:30" in written[0]


def test_a_stage_finds_the_environment_of_now(tree: Path, loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED", "later")
    kind, code, text = answer(tree, loaded, "repro", "--force", "--single-item", "tell")
    assert (kind, code) == (dvc_process._Fork, 0)
    assert "\nlater of " in text
    assert f"of {os.getpid()}\n" not in text


def test_a_fork_has_its_own_group_when_we_hear_of_it(tree: Path, loaded: Loaded) -> None:
    """A signal to its group reached nobody, when it came too early."""
    for _ in range(5):
        with dvc_process.started(tree, ["--version"], MORE, loaded) as process:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(5) == -signal.SIGKILL
    assert answer(tree, loaded, "--version")[:2] == (dvc_process._Fork, 0), "the loaded one is not a part of it"


def test_what_was_asked_for_never_begins_once_its_wait_was_interrupted(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while DVC is still being loaded."""
    (tree / "sleep.sh").write_text("touch began\n")
    loaded = Loaded()
    loaded.start(tree, MORE)
    process = loaded._process
    assert process is not None

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dvc_process, "_told", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loaded.fork(tree, ["repro", "--single-item", "sleep"], MORE)
    assert process.poll() == -signal.SIGKILL
    assert not (tree / "began").exists()


def test_dvc_that_is_killed_takes_its_stage_along_and_the_next_one_runs(tree: Path, loaded: Loaded) -> None:
    """What DVC left locked in .dvc/tmp is of a dead process."""
    (tree / "sleep.sh").write_text("echo begun; exec sleep 62\n")
    with dvc_process.started(tree, ["repro", "--single-item", "sleep"], MORE, loaded) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "begun\n":
            assert process.poll() is None
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL
    assert gone(family)
    (tree / "sleep.sh").write_text("echo slept\n")
    kind, code, text = answer(tree, loaded, "repro", "--single-item", "sleep")
    assert (kind, code) == (dvc_process._Fork, 0), text


def test_where_the_loaded_one_is_dead_dvc_is_started_anew(tree: Path, loaded: Loaded) -> None:
    assert loaded._process is not None
    loaded._process.kill()
    loaded._process.wait()
    assert answer(tree, loaded, "--version")[:2] == (subprocess.Popen, 0)


def test_a_stage_ends_with_the_loaded_one_and_counts_as_killed(tree: Path, loaded: Loaded) -> None:
    (tree / "sleep.sh").write_text("echo begun; exec sleep 60\n")
    with dvc_process.started(tree, ["repro", "--single-item", "sleep"], MORE, loaded) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "begun\n":
            assert process.poll() is None
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 2
        assert loaded._process is not None
        loaded._process.kill()
        assert process.wait(5) == -signal.SIGKILL
    assert gone(family)


DRIVER = """
import signal, sys
from pathlib import Path
from tasks.runs import dvc_process
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
loaded, tree, more = dvc_process.Loaded(), Path(sys.argv[1]), {"PYTHONUNBUFFERED": "1"}
loaded.start(tree, more)
with dvc_process.started(tree, ["repro", "--single-item", "sleep"], more, loaded) as process:
    for line in process.stdout:
        print(line, end="", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_all_end_with_their_driver(tree: Path, way: signal.Signals) -> None:
    (tree / "sleep.sh").write_text("echo begun; exec sleep 61\n")
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tree)],
        cwd=ladder_clone.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline() != "begun\n":
            assert driver.poll() is None
        family = psutil.Process(driver.pid).children(recursive=True)
        assert len(family) >= 2, "the loaded one, its fork, and the stage"
        driver.send_signal(way)
    assert gone(
        family if way == signal.SIGINT else family[:2]
    )  # a stage asks to die with DVC: tests/tasks/test_cancel.py


def gone(family: list[psutil.Process]) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
            return True
        time.sleep(0.05)
    return False
