"""`rft runs cancel`: a run that goes on, one whose driver is dead, one that waits; at its next
checkpoint and at once. And what is refused.

Issue 10, item 6. Real Git, DVC, Prefect and MLflow; the driver is another process, as it is for a
person.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import ladder_clone
import psutil
import pytest
from at_hand import AtHand

from flows import cli
from rft import config, stopping
from rft.errors import InfrastructureError, Stopped, UserError
from tasks import cancel, stage_runner
from tasks.dependencies import STAGES
from tasks.promotion import champions
from tasks.runs import records
from tasks.runs import run as runs
from tasks.runs.clone import Clone
from tasks.runs.repro import StageFailed

DRIVER = """
import sys
from pathlib import Path
from rft import config
from rft.errors import Stopped
from tasks import stage_runner
from tasks.promotion import champions
from tasks.runs import repro, run as runs
from tasks.runs.clone import Clone
root = Path(sys.argv[1])
clone, params = Clone(root), config.load(root / "params.yaml")
try:
    with runs.start(clone, runs.plan(clone, params, champions.of_params(clone, params))) as run:
        repro.load(run.dvc, run.tree, clone.state, run.name, run.deadline)
        stage_runner.repro_stage(run, "policy")
except Stopped as stop:
    sys.exit(stop.exit_code)
"""


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def scripted(tmp_path: Path) -> ladder_clone.Scripted:
    return ladder_clone.make(tmp_path / "a")


def plan(scripted: ladder_clone.Scripted) -> runs.Plan:
    params = config.load(scripted.root / "params.yaml")
    return runs.plan(scripted.clone, params, champions.of_params(scripted.clone, params))


def in_training(scripted: ladder_clone.Scripted, driver: subprocess.Popen[str]) -> records.RunRecord:
    """The run that this process drives, once its third training step is done."""
    deadline = time.monotonic() + 120
    while (
        not (steps := list(scripted.clone.state.glob("progress/train-*/metrics.jsonl")))
        or len(steps[0].read_text().splitlines()) < 3
    ):
        assert time.monotonic() < deadline, "training never began"
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)
    return next(record for record in records.load_all(scripted.clone) if record.state == "running")


@pytest.mark.story
def test_from_the_command_line(scripted: ladder_clone.Scripted, at_hand: AtHand) -> None:
    """Stopped at its limit, gone on by the line that was printed, cancelled meanwhile, and taken up
    by a new run."""
    limited = at_hand(scripted.root, "run", "--set", "run.max_hours=1e-6")
    assert limited.returncode == 4
    assert re.match(
        r"stopped: run \S+ has worked for .* hours of run\.max_hours = 1e-06 and stopped in order \(before stage "
        r"traffic: ",
        limited.stderr,
    )
    line = limited.stderr.strip().splitlines()[-1].removeprefix("To go on: ")
    words = shlex.split(line)
    words = words[words.index("run") :]
    assert [records.load_all(scripted.clone)[0].state, scripted.ran()] == ["paused", []]
    assert "waits: raise max_hours" in at_hand(scripted.root, "runs").stdout
    gone = at_hand(scripted.root, "runs", "cancel", "nothing")
    assert (gone.returncode, "no run named 'nothing'" in gone.stderr) == (2, True)

    (scripted.script / "pause-train").write_text("0.3")
    with scripted.start(*words[:-1], "run.max_hours=100", PREFECT_API_URL=at_hand.api) as driver:
        record = in_training(scripted, driver)
        longer = scripted.script / "longer"
        longer.write_text("5")
        longer.replace(scripted.script / "pause-train")  # at once; it is in training still when it is asked
        cancelled = at_hand(scripted.root, "runs", "cancel", record.name)
        out, errors = driver.communicate(timeout=120)
    assert f"[run] {record.name}, adopted" in out
    assert cancelled.returncode == 0, cancelled.stderr
    assert f"Run {record.name} is asked to stop at its next checkpoint." in cancelled.stdout
    assert f"Run {record.name} is cancelled" in cancelled.stdout
    assert errors.startswith(
        f"stopped: run {record.name} was cancelled by `rft runs cancel` (stage train: stopped in order after step "
    ), errors
    assert driver.returncode == 4
    [record] = records.load_all(scripted.clone)
    assert (record.state, bool(record.revision), [*record.stages]) == ("cancelled", True, [*STAGES][:6])
    assert flow_states(record.flow_run_id) == ["CANCELLED"], "not failed, not crashed"
    twice = at_hand(scripted.root, "runs", "cancel", record.name)
    assert (twice.returncode, "was cancelled already" in twice.stderr) == (2, True)
    assert "cancelled" in at_hand(scripted.root, "runs").stdout

    (scripted.script / "pause-train").unlink()
    again = at_hand(scripted.root, "run", "--until", "train")
    assert again.returncode == 0, again.stderr
    assert scripted.ran() == [*[*STAGES][:7], "train"], "finished stages come from the cache"
    new = records.load_all(scripted.clone)[-1]
    assert (new.name != record.name, new.state) == (True, "stopped")
    assert "[train] 1/20 steps" not in scripted.clone.log(new.name, "train").read_text(), (
        "and training goes on where it was"
    )
    late = at_hand(scripted.root, "runs", "cancel", new.name)
    assert (late.returncode, "There is nothing to cancel, and nothing was changed" in late.stderr) == (2, True)


def flow_states(flow_run_id: str | None) -> list[str]:
    with sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db") as database:
        rows = database.execute("SELECT replace(id, '-', ''), state_type FROM flow_run").fetchall()
    return [state for known, state in rows if known == (flow_run_id or "").replace("-", "")]


@pytest.mark.slow
def test_at_once(scripted: ladder_clone.Scripted) -> None:
    """--now: the stage would not come to a checkpoint for minutes. Its processes are gone, its
    driver ends by itself."""
    (scripted.script / "pause-policy").write_text("600")
    told: list[str] = []
    with drive(scripted) as driver:
        record = working(scripted, driver, "policy")
        family = psutil.Process(driver.pid).children(recursive=True)
        ended = cancel.cancel(scripted.clone, record, force=True, timeout_s=60, tell=told.append)
        assert driver.wait(30) == Stopped.exit_code
    assert ended is not None
    assert (ended.name, ended.state, bool(ended.revision)) == (record.name, "cancelled", True)
    assert [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert told
    assert set(told) == {""}, "DVC's own words are not for people"
    assert list(scripted.clone.worktrees.iterdir()) == []
    assert [file.name for file in scripted.clone.runs.iterdir() if file.suffix in (".stop", ".lock", ".group")] == [
        ".start.lock"
    ]


FAILS = """

def run(params):
    stopping.request(files.state(), os.environ["RFT_RUN"]).touch()  # somebody asks, and meanwhile:
    raise InfrastructureError("the grader is down")
"""


@pytest.mark.slow
def test_a_failure_while_it_is_asked_to_end_stays_one(scripted: ladder_clone.Scripted) -> None:
    """The request hid a grader that was down."""
    path = scripted.root / "rft/stages/policy.py"
    path.write_text(path.read_text() + FAILS)
    with pytest.raises(StageFailed, match="the grader is down"), runs.start(scripted.clone, plan(scripted)) as run:
        stage_runner.repro_stage(run, "policy")
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.message) == ("failed", "stage policy: the grader is down")
    assert not stopping.request(scripted.clone.state, record.name).exists()


@pytest.mark.slow
def test_a_run_that_does_not_end_in_time_keeps_the_request(scripted: ladder_clone.Scripted) -> None:
    (scripted.script / "pause-policy").write_text("600")
    with drive(scripted) as driver:
        record = working(scripted, driver, "policy")
        with pytest.raises(InfrastructureError, match=r"still going on after 0 s\. The request stands.*`--now` ends"):
            cancel.cancel(scripted.clone, record, force=False, timeout_s=0, tell=lambda line: None)
        driver.send_signal(signal.SIGKILL)  # and it is honoured even when the driver never comes to read it
    assert records.find(scripted.clone, record.name).state == "running"
    with runs.start(scripted.clone, plan(scripted)) as new:
        assert (new.adopted, new.name != record.name) == (False, True)
    assert records.find(scripted.clone, record.name).state == "cancelled"


@pytest.mark.slow
def test_a_run_whose_driver_is_dead(scripted: ladder_clone.Scripted) -> None:
    (scripted.script / "pause-policy").write_text("600")
    with drive(scripted) as driver:
        record = working(scripted, driver, "policy")
        driver.send_signal(signal.SIGKILL)
    ended = cancel.cancel(scripted.clone, record, force=False, timeout_s=60, tell=lambda line: None)
    assert ended is not None
    assert (ended.state, bool(ended.revision), ended.resumed) == ("cancelled", True, None)
    (scripted.script / "pause-policy").unlink()
    with runs.start(scripted.clone, plan(scripted)) as new:
        assert not new.adopted


@pytest.mark.slow
def test_a_copy_of_the_clone_ends_its_own_record_and_not_the_run_of_the_other(
    scripted: ladder_clone.Scripted, tmp_path: Path
) -> None:
    """It notes the same process group, of a run of the same name: it killed the stage of the other
    clone."""
    (scripted.script / "pause-policy").write_text("600")
    with drive(scripted) as driver:
        record = working(scripted, driver, "policy")
        copy = Clone(Path(shutil.copytree(scripted.root, tmp_path / "copy", symlinks=True)))
        ended = cancel.cancel(copy, record, force=False, timeout_s=60, tell=lambda line: None)
        assert ended is not None
        assert ended.state == "cancelled"
        ended = cancel.cancel(scripted.clone, record, force=True, timeout_s=60, tell=lambda line: None)
        assert ended is not None
        assert (ended.state, driver.wait(30)) == ("cancelled", Stopped.exit_code)


def test_a_run_that_was_killed_at_its_end_is_recorded_and_not_called_cancelled(scripted: ladder_clone.Scripted) -> None:
    run = runs._create(scripted.clone, plan(scripted))
    run.update(state="finished", ended=records.now())
    with pytest.raises(
        UserError,
        match=r"was finished when its process was killed.* as revision [0-9a-f]{10}, and there is nothing to cancel\.",
    ):
        cancel.cancel(scripted.clone, run.record, force=False, timeout_s=60, tell=lambda line: None)
    record = records.find(scripted.clone, run.name)
    assert (record.state, bool(record.revision)) == ("finished", True)


def test_a_run_that_had_not_begun_is_forgotten(scripted: ladder_clone.Scripted) -> None:
    with runs.start(scripted.clone, plan(scripted)) as run:
        pass
    early = run.record.model_copy(update={"name": "early", "state": "preparing", "revision": None})
    records.save(scripted.clone, early)
    assert cancel.cancel(scripted.clone, early, force=False, timeout_s=60, tell=lambda line: None) is None
    assert [record.name for record in records.load_all(scripted.clone)] == [run.name]


def test_a_run_that_is_about_to_begin_is_asked_and_not_recorded_behind_its_back(
    scripted: ladder_clone.Scripted,
) -> None:
    """Its record is there, its lock is not yet: the start's lock is held meanwhile."""
    ended: list[records.RunRecord | None] = []
    with records.held(runs.start_lock(scripted.clone), wait=True):
        clear = runs._create(scripted.clone, plan(scripted))
        early = clear.record

        def ask() -> None:
            ended.append(cancel.cancel(scripted.clone, early, force=False, timeout_s=60, tell=lambda line: told.set()))

        told = threading.Event()
        person = threading.Thread(target=ask)
        person.start()
        lock = records.held(records.lock(scripted.clone, early.name), wait=True)
        lock.__enter__()
        clear.update(state="running")
    assert told.wait(30), "it waits for the driver"
    assert clear.cancelled
    lock.__exit__(None, None, None)
    person.join()
    assert [one and one.state for one in ended] == ["cancelled"]


def test_a_run_that_is_over_is_left_as_it_is(
    scripted: ladder_clone.Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with runs.start(scripted.clone, plan(scripted)) as run:
        pass
    before = records.path(scripted.clone, run.name).read_bytes()
    monkeypatch.chdir(scripted.root)
    assert cli.main(["runs", "cancel", run.name, "--now"]) == 2
    assert (
        f"error: run {run.name} ended at {run.record.ended} (finished). There is nothing to cancel"
        in capsys.readouterr().err
    )
    assert records.path(scripted.clone, run.name).read_bytes() == before
    assert not stopping.request(scripted.clone.state, run.name).exists()


def test_a_run_that_comes_to_its_end_first(scripted: ladder_clone.Scripted) -> None:
    """It was asked, and had no checkpoint left: it is finished, and that is said."""
    with runs.start(scripted.clone, plan(scripted)) as run:
        asked = threading.Event()
        refused: list[BaseException] = []

        def ask() -> None:
            try:
                cancel.cancel(scripted.clone, run.record, force=False, timeout_s=60, tell=lambda line: asked.set())
            except UserError as error:
                refused.append(error)

        person = threading.Thread(target=ask)
        person.start()
        assert asked.wait(30)
    person.join()
    assert f"run {run.name} ended before it came to a checkpoint" in str(refused[0])
    assert (run.record.state, stopping.request(scripted.clone.state, run.name).exists()) == ("finished", False)


def drive(scripted: ladder_clone.Scripted) -> subprocess.Popen[str]:
    """A driver without Prefect and MLflow, in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(scripted.root)], cwd=ladder_clone.ROOT, stdout=subprocess.PIPE, text=True
    )


def working(scripted: ladder_clone.Scripted, driver: subprocess.Popen[str], stage: str) -> records.RunRecord:
    deadline = time.monotonic() + 120
    while stage not in scripted.ran():
        assert time.monotonic() < deadline
        assert driver.poll() is None
        time.sleep(0.05)
    return records.load_all(scripted.clone)[-1]
