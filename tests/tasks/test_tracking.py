"""What MLflow holds of a run: settings without secrets, numbers once, training while it goes on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ladder_clone
import pytest
from local_servers import dead_port

from rft import process
from rft.errors import InfrastructureError
from rft.reports import ExamplesReport, Metric, TrafficReport
from tasks.display import datasets, mlflow_store, tracking
from tasks.display.tracking import Tracker
from tasks.runs import outbox, records
from tasks.runs.artifacts import Revision
from tasks.runs.records import RunRecord
from tasks.runs.run import Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    record = RunRecord(
        name="r-1",
        key="k",
        commit="c",
        edits_sha256=None,
        champion_version=0,
        window="w",
        inputs=[],
        started=records.now(),
        started_by="Ada",
    )
    return Run(scripted.clone, record)


def opened(run: Run, lines: list[str] | None = None) -> Tracker:
    return Tracker(run, "tiny", print if lines is None else lines.append)


def shown(tracker: Tracker) -> Any:
    """The MLflow run, once it was told everything."""
    assert tracker.settle(60)
    return tracking.client(tracker._run.clone).get_run(tracker._run.record.mlflow_run_id)


def history(tracker: Tracker, key: str) -> list[tuple[int, float]]:
    found = tracking.client(tracker._run.clone).get_metric_history(shown(tracker).info.run_id, key)
    return sorted((one.step, one.value) for one in found)


def test_settings_numbers_and_tags(run: Run) -> None:
    tracker = opened(run)
    raw = {
        "train": {"lr": 0.003, "lora": {"r": 16}},
        "tools": {"headers": {"Authorization": "env:KEY", "X-Tenant": "s3cret"}, "server_url": None},
    }
    tracker.settings(raw, {"git_commit": "c"})
    tracker.stage(
        "baseline",
        "restored",
        {"reward/mean": Metric(value=0.5, low=0.4, high=0.6, n=9), "share/mixed": 0.25, "none": None},
    )
    tracker.end("stopped")
    held = shown(tracker)
    assert held.data.params == {
        "train.lr": "0.003",
        "train.lora.r": "16",
        "tools.headers.Authorization": "env:KEY",
        "tools.headers.X-Tenant": "(not shown)",
        "tools.server_url": "null",
    }
    expected = {
        "baseline/reward/mean": 0.5,
        "baseline/reward/mean/low": 0.4,
        "baseline/reward/mean/high": 0.6,
        "baseline/share/mixed": 0.25,
    }
    assert held.data.metrics == expected
    assert held.data.tags["stage.baseline"] == "cached (restored)"
    assert held.info.status == "FINISHED"
    assert held.info.run_name == run.name
    assert held.info.artifact_uri.startswith((run.clone.root / "mlruns/artifacts").as_uri())


@pytest.mark.slow
def test_datasets_are_named_by_the_hashes_of_dvc_once(run: Run) -> None:
    """A lock as DVC wrote it; of the test set a hash and a count, and no row of any set."""
    scripted = ladder_clone.Scripted(run.clone, run.clone.root.parent / "script")
    at = Revision(run.clone, ladder_clone.run_ladder(scripted).revision or "")
    run.tree.mkdir(parents=True)
    (run.tree / "dvc.lock").write_bytes(at.file("dvc.lock") or b"")
    traffic, examples = at.report(TrafficReport), at.report(ExamplesReport)
    assert traffic
    assert examples
    tracker = opened(run)
    for _ in range(2):
        tracker.datasets(datasets.of_traffic(run.tree, traffic))
        tracker.datasets(datasets.of_examples(run.tree, examples))
    named = {}
    for each in shown(tracker).inputs.dataset_inputs:
        tags = {tag.key: tag.value for tag in each.tags}
        named[tags.pop("mlflow.data.context")] = (each.dataset, tags)
    assert len(shown(tracker).inputs.dataset_inputs) == 4, "each once"
    assert {*named} == {"traffic", "train", "validation", "test"}
    for dataset, tags in named.values():
        assert dataset.digest == tags["dvc.md5"] == at.outs[dataset.name].md5
        assert json.loads(dataset.source) == {"path": tags["dvc.path"], "md5": tags["dvc.md5"]}
        assert (dataset.source_type, dataset.schema) == ("dvc", None)
    assert json.loads(named["test"][0].profile) == {"num_rows": examples.counts["test"]}
    assert named["test"][1]["content_sha256"] == examples.sha256["test"]
    assert named["traffic"][1]["window_sha256"] == traffic.sha256
    assert ladder_clone.ROW not in str([each[0].to_dictionary() for each in named.values()])


def test_the_run_of_a_name_is_found_in_this_store_only(run: Run) -> None:
    tracker = opened(run)
    store, run_id = tracking.client(run.clone), shown(tracker).info.run_id
    assert tracking.run_of(store, "tiny", run.name) == run_id
    for model, name in (("tiny", "another"), ("nobody", run.name), ("tiny", "it's")):
        assert tracking.run_of(store, model, name) is None


def test_an_adopted_run_goes_on_in_the_same_mlflow_run_without_duplicates(run: Run) -> None:
    rows = [
        {"step": step, "reward/mean": step / 10, "left_out/no variance (of 64)": step, "note": "text"}
        for step in range(1, 8)
    ]
    first = opened(run)
    first.steps(rows[:5], "train/")
    first.steps(rows[3:], "train/")
    assert first.settle(60)
    again = opened(Run(run.clone, records.find(run.clone, run.name), adopted=True))
    assert shown(again).info.run_id == shown(first).info.run_id
    again.steps([row | {"reward/mean": 99.0} for row in rows[:6]], "train/")
    again.steps([*rows, {"step": 8, "reward/mean": 0.8}], "train/")
    assert history(again, "train/reward/mean") == [(step, step / 10) for step in range(1, 9)]
    assert history(again, "train/left_out/no variance _of 64_") == [(step, float(step)) for step in range(1, 8)]


def test_training_is_followed_while_it_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "EVERY_S", 0.02)
    tracker, path, seen = opened(run), tmp_path / "metrics.jsonl", threading.Event()
    steps = tracker.steps

    def watched(rows: Any, prefix: str = "", kept: bool = True) -> None:
        steps(rows, prefix, kept)
        if rows:
            seen.set()

    monkeypatch.setattr(tracker, "steps", watched)
    with tracker.live() as live:
        live.follow(path, "train/")  # it does not exist yet
        path.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n" + '{"step": 2, "los')
        assert seen.wait(10)
        assert history(tracker, "train/loss") == [(1, 2.0)], "a line that is half written waits"
    path.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n" + json.dumps({"step": 2, "loss": float("nan")}) + "\n")
    tracker.steps(tracking.whole_rows(path), "train/")
    assert history(tracker, "train/loss") == [(1, 2.0)], "what is not a number is not a point of a curve"


def test_the_address_is_the_clones_own_or_the_one_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking.address(run.clone) == f"sqlite:///{run.clone.root}/mlruns/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert tracking.address(SimpleNamespace(root=run.clone.root)) == "http://mlflow:5000"  # type: ignore[arg-type]


# -- a store that is down --------------------------------------------------------------------------
def told(run: Run, lines: list[str]) -> Tracker:
    """All that a run tells."""
    tracker = opened(run, lines)
    tracker.settings({"train": {"lr": 0.003}}, {"git_commit": "c"})
    tracker.stage("baseline", "ran", {"share/mixed": 0.25})
    tracker.steps([{"step": step, "loss": float(step)} for step in range(1, 4)], "train/")
    page = run.clone.page(run.name)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("<!doctype html>")
    tracker.page(page)
    tracker.tag(state="finished")
    tracker.end("finished")
    return tracker


def assert_whole(run: Run) -> None:
    """MLflow shows it all, once."""
    client, record = tracking.client(run.clone), records.find(run.clone, run.name)
    held = client.get_run(record.mlflow_run_id)
    assert held.data.params == {"train.lr": "0.003"}
    assert held.data.metrics == {"baseline/share/mixed": 0.25, "train/loss": 3.0}
    tags = held.data.tags
    assert (tags["git_commit"], tags["stage.baseline"], tags["state"]) == ("c", "ran", "finished")
    assert held.info.status == "FINISHED"
    assert [one.step for one in client.get_metric_history(record.mlflow_run_id, "train/loss")] == [1, 2, 3]
    assert [one.path for one in client.list_artifacts(record.mlflow_run_id)] == [f"{run.name}.html"]
    assert len(client.search_runs([held.info.experiment_id], f"tags.run = '{run.name}'")) == 1


def test_a_locked_database_holds_no_run(run: Run) -> None:
    """D8. The lock outlasts all that the run tells; when it ends, all is shown."""
    lines: list[str] = []
    holder = sqlite3.connect(run.clone.root / "mlruns/mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    tracker = told(run, lines)
    assert not tracker.settle(0.2), "nothing was taken yet"
    holder.close()
    assert tracker.settle(60)
    tracker.close()
    assert_whole(run)
    assert outbox.owed(run.clone, tracking.FOLDER) == []
    assert lines == []


@pytest.mark.parametrize("is_over", [False, True])
def test_a_call_that_hung_until_after_the_runs_end_writes_nothing(run: Run, is_over: bool) -> None:
    """Another process sends the line again by then, and the late one marked the run as running."""
    found: list[str] = []
    raised: list[Exception] = []
    store = mlflow_store.Store(run.clone, lambda name, run_id: found.append(name))
    line = json.dumps({"run": run.name, "model": "tiny", "do": "status", "given": "RUNNING"})

    def send() -> None:
        try:
            store.send(outbox.Piece(run.clone.state / "r-1.ndjson", f"{line}\n"))
        except InfrastructureError as error:
            raised.append(error)

    holder = sqlite3.connect(run.clone.root / "mlruns/mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    store.is_over = is_over
    holder.close()
    thread.join(60)
    assert (found, ["the run is over" in str(error) for error in raised]) == (
        ([], [True]) if is_over else ([run.name], [])
    )


def test_what_could_not_be_shown_is_said_once_and_made_up_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where MLflow's folder was."""
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01, 0.02))
    lines: list[str] = []
    place, aside = run.clone.root / "mlruns", run.clone.root / "aside"
    place.rename(aside)
    place.write_text("")
    tracker = told(run, lines)
    tracker.close()
    assert len(lines) in (1, 2), lines
    assert "lines not taken by MLflow's store at sqlite:///" in lines[-1]
    assert f"{run.name}.ndjson: the next run that tells it sends them first" in lines[-1]
    assert outbox.owed(run.clone, tracking.FOLDER) == [run.name]
    place.unlink()
    aside.rename(place)
    run.update(state="finished")
    tracking.make_up(run.clone, lines.append)
    assert_whole(run)
    assert outbox.owed(run.clone, tracking.FOLDER) == []
    tracking.make_up(run.clone, lines.append)
    assert_whole(run)


def test_the_next_run_makes_up_for_the_last_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01, 0.02))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{dead_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    lines: list[str] = []
    told(run, lines).close()
    run.update(state="finished")
    assert "no connection. Start it" in lines[-1]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    second = Run(run.clone, run.record.model_copy(update={"name": "r-2", "mlflow_run_id": None}))
    tracker = told(second, lines)
    tracker.close()
    assert_whole(run)
    assert_whole(second)
    assert outbox.owed(run.clone, tracking.FOLDER) == []


def test_a_database_that_was_replaced_is_told_everything_again(run: Run) -> None:
    """An open database that was removed would take the rest, and nobody would ever see it."""
    tracker = told(run, [])
    assert tracker.settle(60)
    first, database = run.record.mlflow_run_id, run.clone.root / "mlruns/mlflow.db"
    database.unlink()
    shutil.copy2(ladder_clone._empty_store(), database)
    tracker.tag(state="finished")
    assert tracker.settle(60)
    tracker.close()
    assert run.record.mlflow_run_id != first
    assert_whole(run)


def test_a_silent_server_holds_no_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "END_S", 0.2)
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ada:s3cret@127.0.0.1:{silent.getsockname()[1]}")
        told(run, lines).close()
    [line] = lines
    assert "no answer within 0.2 s" in line
    assert "s3cret" not in line
    assert outbox.owed(run.clone, tracking.FOLDER) == [run.name]


def test_a_line_that_mlflow_calls_wrong_stops_no_other(run: Run) -> None:
    lines: list[str] = []
    tracker = opened(run, lines)
    tracker.settings({"train": {"lr": 0.1}}, {"a": "1"})
    tracker.settings({"train": {"lr": 0.2}}, {"b": "2"})  # MLflow lets no setting change
    held = shown(tracker)
    tracker.close()
    assert held.data.params == {"train.lr": "0.1"}
    assert (held.data.tags["a"], held.data.tags["b"]) == ("1", "2")
    assert "calls 1 line wrong; they are put aside in" in lines[-1]
    assert '"0.2"' in (run.clone.state / "mlflow" / f"{run.name}.refused").read_text()


def test_what_a_killed_run_kept_is_told_by_the_next_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line was cut off in the middle; what MLflow has already is not told twice."""
    tracker = told(run, [])
    assert tracker.settle(60)
    file = run.clone.state / "mlflow" / f"{run.name}.ndjson"
    kept = file.read_text()
    tracker.close()
    assert not file.exists()
    file.write_text(kept + '{"run": "r-1", "do": "ta')
    again = opened(Run(run.clone, records.find(run.clone, run.name), adopted=True))
    again.end("finished")
    assert again.settle(60)
    again.close()
    assert_whole(run)


def test_how_a_run_ended_is_told_for_one_that_could_not_say_so(run: Run) -> None:
    """Its process was killed, and the next run recorded it."""
    tracker = opened(run)
    tracker.tag(git_commit="c")
    assert shown(tracker).info.status == "RUNNING"
    run.update(state="killed", revision="a" * 40)
    assert not tracking.says_its_end(run.clone, run.record)
    tracking.tell_end(run.clone, run.record, {"revision": "a" * 40, "gone": None}, None)
    assert tracking.says_its_end(run.clone, run.record)
    tracking.make_up(run.clone, print)
    held = tracking.client(run.clone).get_run(run.record.mlflow_run_id)
    assert (held.info.status, held.data.tags["revision"], held.data.tags["git_commit"]) == ("KILLED", "a" * 40, "c")


@pytest.mark.slow
def test_first_runs_at_once_lay_out_one_store(tmp_path: Path) -> None:
    """Each would migrate the empty database: two of three failed, and runs were kept to be told."""
    code = (
        "import sys; from pathlib import Path; from tasks.display import mlflow_store; from tasks.runs.clone import "
        "Clone; mlflow_store.client(Clone(Path(sys.argv[1]))).search_experiments()"
    )
    kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, env=kept | {"PYTHONPATH": str(process.ROOT)}) for _ in range(3)]
    assert [one.wait(120) for one in started] == [0, 0, 0]
