"""The ladder from the command line, with real Prefect, DVC, MLflow and Git: killed, adopted,
finished, approved, rolled back, looked at."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import ladder_clone
import people
import psutil
import pytest
from at_hand import AtHand

from rft import reports
from rft.reports import Decision, Fall, TrainReport
from tasks.dependencies import STAGES
from tasks.display import tracking
from tasks.ledger import book
from tasks.ledger.policy import name_from
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.records import RunRecord


@pytest.mark.story
def test_killed_adopted_approved_and_rolled_back(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    name = _killed_in_training(scripted, at_hand)

    # adopted: goes on at the step where it was, in the same run and the same MLflow run, to the
    # bytes of an undisturbed one
    again = scripted.rft("run")
    assert again.returncode == 0, again.stderr
    assert again.stderr == "", "nothing of the tools' chatter reaches the user"
    assert f"[run] {name}, adopted" in again.stdout
    assert (
        "Skipped, because nothing that they depend on has changed: traffic, drift, examples, policy, baseline, prompt."
        in again.stdout
    )
    assert "after RFT" in again.stdout
    assert f"approve {name} --reason" in again.stdout
    assert scripted.ran() == [*list(STAGES)[:7], "train", "challenger", "gate"]
    [record] = records.load_all(scripted.clone)
    assert (record.name, record.state, record.decision, record.verdict) == (name, "finished", "promote", "continue")
    assert record.stages == dict.fromkeys(STAGES, "ran")  # before the kill or after it: findings N15, what the run cost
    assert list(record.seconds) == list(STAGES)
    assert min(record.seconds.values()) > 0
    at = Revision(scripted.clone, record.revision or "")
    for path in ("data/train/report.json", "data/gate/decision.json"):
        assert at.read(path) == (scripted.script / path).read_bytes()
    client = tracking.client(scripted.clone)
    history = client.get_metric_history(record.mlflow_run_id, "train/reward/mean")
    assert sorted((one.step, one.value) for one in history) == [(step, step / 20) for step in range(1, 21)]
    tags = client.get_run(record.mlflow_run_id).data.tags
    assert (tags["decision"], tags["revision"], tags["stage.traffic"], tags["stage.gate"]) == (
        "promote",
        record.revision,
        "cached (unchanged)",
        "ran",
    )
    pages = [one.path for one in client.list_artifacts(record.mlflow_run_id)]
    assert pages == [f"{name}.drift.html", f"{name}.html"]
    assert scripted.clone.page(name).read_text().startswith("<!doctype html>")
    assert scripted.git("status", "--porcelain").strip() == ""
    _mlflow_says_what_it_rests_on(scripted, record)
    _prefect_shows_names_lines_and_result(record, tags[tracking.NOTE])

    # a person decides
    approved = at_hand(scripted.root, "approve", name[-4:], "--reason", "fewer calls", *people.by("Ada"))
    assert approved.returncode == 0, approved.stderr
    number = book.read(scripted.clone).state.champion("tiny")
    assert f"Run {name} is the champion of tiny: champion {number}. @previous is the beginning." in approved.stdout
    assert "To serve: weights data/train/weights (lora)" in approved.stdout
    assert f" export {number} exports/tiny-{number}\n" in approved.stdout, "N5: the command that takes it out"
    assert f"warning: {name_from(record.started_by)} started this run and approves it too" in approved.stderr
    assert "champion" in at_hand(scripted.root, "runs").stdout
    assert client.get_model_version_by_alias("tiny", "champion").run_id == record.mlflow_run_id
    assert (f"promote {name}",) in prefect("SELECT name FROM flow_run")
    back = at_hand(scripted.root, "rollback", "--reason", "complaints", *people.by("Ada"))
    assert "The champion of tiny is the beginning again (the base policy with the seed prompt)" in back.stdout
    assert " export 0 exports/tiny-0\n" in back.stdout
    kinds = [each.entry.act.kind for each in book.read(scripted.clone, reverify=True).stored]
    assert kinds == ["genesis", "registration", "request", "policy", "approval", "promotion", "rollback"]

    # the page can be had again from the revision
    page = scripted.clone.page(name)
    first = page.read_text()
    assert "<dt>recipe</dt><dd>recipes/tiny</dd>" in first
    assert "not on record" not in first.split("<h2>What it cost</h2>")[1]
    page.unlink()
    assert at_hand(scripted.root, "runs", "report", name).stdout.strip() == str(page)
    assert page.read_text() == first


def _mlflow_says_what_it_rests_on(scripted: ladder_clone.Scripted, record: RunRecord) -> None:
    """By hash, and once, although two starts told it."""
    shown = tracking.client(scripted.clone).get_run(record.mlflow_run_id)
    at = Revision(scripted.clone, record.revision or "")
    tags = shown.data.tags
    assert (tags["dvc.lock_sha256"], tags["git_commit"]) == (at.lock_sha256, record.commit)
    decision = at.report(Decision)
    assert decision is not None
    assert tags[tracking.NOTE].startswith(f"**promote**: {decision.reason}")
    for phrase in (record.revision, f"approve {record.name} --reason TEXT", f"audit {record.name}", "| reward | 0."):
        assert phrase in tags[tracking.NOTE]
    contexts = [tag.value for each in shown.inputs.dataset_inputs for tag in each.tags if "context" in tag.key]
    assert sorted(contexts) == ["test", "traffic", "train", "validation"]


def _prefect_shows_names_lines_and_result(record: RunRecord, note: str) -> None:
    own = f"replace(flow_run_id, '-', '') = '{(record.flow_run_id or '').replace('-', '')}'"
    names = [name for (name,) in prefect("SELECT name FROM flow_run ORDER BY created") if record.name in name]
    assert names == [f"retrain {record.name}", f"retrain {record.name}, adopted"]
    tasks = {name for (name,) in prefect(f"SELECT name FROM task_run WHERE {own}")}
    assert tasks == {f"{stage} {record.name}" for stage in (*STAGES, "register")}
    lines = prefect(f"SELECT message, task_run_id FROM log WHERE {own} ORDER BY timestamp")
    told = [message for message, _ in lines]
    assert told[0] == f"[run] {record.name}, adopted: it was cut off, and goes on"
    assert told[-1].startswith("[ledger] entry ")
    assert told[-1].endswith(" waits for approval until " + told[-1][-20:])
    assert told.count("[train] 20/20 steps, reward 1.0") == 1
    assert len({task for message, task in lines if message.startswith("[train] ")}) == 1, "on the task's own page"
    [(shown,)] = prefect(f"SELECT data FROM artifact WHERE key = 'report-{record.name}' AND {own}")
    assert json.loads(shown) == note
    stages = prefect(f"SELECT data FROM artifact WHERE key IS NULL AND task_run_id IS NOT NULL AND {own}")
    assert [json.loads(data).split("**")[1] for (data,) in stages] == [*STAGES]


def prefect(query: str) -> list[tuple[str, ...]]:
    with sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db") as database:
        return database.execute(query).fetchall()


def _killed_in_training(scripted: ladder_clone.Scripted, at_hand: AtHand) -> str:
    """Returns the name of the run, whose driver is dead, and of which no process is left."""
    (scripted.script / "pause-train").write_text("0.2")
    with scripted.start("run") as driver:
        deadline = time.monotonic() + 120
        while (
            not (steps := list(scripted.clone.state.glob("progress/train-*/metrics.jsonl")))
            or len(steps[0].read_text().splitlines()) < 5
        ):
            assert time.monotonic() < deadline, "training never began"
            time.sleep(0.05)
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=10)
    assert [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert "(cut off)" in at_hand(scripted.root, "runs").stdout
    (scripted.script / "pause-train").unlink()
    [record] = records.load_all(scripted.clone)
    assert record.state == "running"
    return record.name


def _mlflow_shows_the_drift(scripted: ladder_clone.Scripted, record: RunRecord, folder: Path) -> None:
    """Each feature's effect, also in thresholds, and the page with the pictures."""
    client = tracking.client(scripted.clone)
    numbers = client.get_run(record.mlflow_run_id).data.metrics
    assert (numbers["drift/effect/note_length"], numbers["drift/effect/vocabulary"]) == (0.71, 0.83)
    assert numbers["drift/train/note_length"] == pytest.approx(0.71 / 0.3)
    assert numbers["drift/train/vocabulary"] == pytest.approx((0.83 - 0.5) / (0.65 - 0.5))
    assert "drift/train/corrected" not in numbers, "it was compared with nothing"
    path = client.download_artifacts(record.mlflow_run_id, f"{record.name}.drift.html", str(folder))
    page = Path(path).read_text(encoding="utf-8")
    assert "6 of 6 features drifted" in page
    assert "data/inbox/window.jsonl" in page


@pytest.mark.story
def test_drift_that_says_stop_ends_the_ladder_with_its_numbers(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a", "drift_stop")
    done = at_hand(scripted.root, "run", "--set", "train.steps=3")
    assert done.returncode == 0, done.stderr
    assert "Stopped after drift, which is a result too" in done.stdout
    assert scripted.ran() == ["traffic", "drift"]
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.verdict, record.decision) == ("stopped", "stop", None)
    tags = tracking.client(scripted.clone).get_run(record.mlflow_run_id).data.tags
    assert tags["outcome"] == "stopped after drift", "N14: not a success like any other"
    shown = prefect(f"SELECT state_type, state_name FROM flow_run WHERE id = '{record.flow_run_id}'")
    assert shown == [("COMPLETED", "Stopped")]
    _mlflow_shows_the_drift(scripted, record, tmp_path)
    refused = at_hand(scripted.root, "approve", record.name, "--reason", "why", *people.by("Ada"))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: run {record.name} came to no decision (stopped")


@pytest.mark.story
def test_a_training_that_collapsed_ends_the_ladder_before_the_look(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    path = scripted.script / "data/train/report.json"
    why = "training collapsed at step 9, for the second time: the mean reward fell. Lower train.lr"
    falls = [Fall(step=4, reason="the mean reward fell", back_to=0, lr=2e-4)]
    none = {"trained": False, "weights": "none", "path": None, "sha256": None}
    changes = none | {"reason": why, "collapsed": "the mean reward fell", "falls": falls}
    reports.write(reports.read(TrainReport, path).model_copy(update=changes), path)
    done = at_hand(scripted.root, "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Lower train.lr") == 1
    assert scripted.ran()[-1] == "train"
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.message, record.decision) == ("stopped", why, None)
    assert "registration" not in [each.entry.act.kind for each in book.read(scripted.clone, reverify=True).stored]
    assert "training collapsed" in at_hand(scripted.root, "runs").stdout
    page = scripted.clone.page(record.name).read_text()
    assert "Training collapsed" in page
    assert "At step 4 it collapsed: the mean reward fell. It went back to the weights of step 0" in page
