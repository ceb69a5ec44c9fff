"""A store that is down ends no run that only shows it: MLflow's, Prefect's. All kinds of faults:
bench/stores_down.py."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import ladder_clone
import pytest
from at_hand import AtHand
from local_servers import dead_port

from flows.server import Server, prefect_server
from rft.errors import InfrastructureError
from tasks.display import tracking
from tasks.runs import outbox, records
from tasks.runs.clone import Clone


@pytest.mark.story
def test_mlflows_database_is_locked_from_before_a_run_until_after_it(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: it ended the run with a traceback."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    holder = sqlite3.connect(scripted.root / "mlruns/mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    ended = at_hand(scripted.root, "run", "--until", "policy")
    assert ended.returncode == 0, ended.stderr
    assert "lines not taken by MLflow's store at sqlite:///" in ended.stdout
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.mlflow_run_id) == ("stopped", None)
    listed = at_hand(scripted.root, "runs").stdout
    assert record.name in listed
    assert f"MLflow may not show all of {record.name} yet" in listed
    holder.close()

    tracking.make_up(scripted.clone, print)
    [record] = records.load_all(scripted.clone)
    shown = tracking.client(scripted.clone).get_run(record.mlflow_run_id)
    assert shown.info.status == "FINISHED"
    assert (shown.data.tags["revision"], shown.data.tags["stage.policy"]) == (record.revision, "ran")
    assert outbox.owed(scripted.clone, tracking.FOLDER) == []
    assert "MLflow may not show" not in at_hand(scripted.root, "runs").stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """Its Prefect cannot have a home: a file stands where that would be."""
    here = Clone(tmp_path)
    here.state.mkdir()
    (here.state / "prefect").write_text("no folder")
    monkeypatch.setenv("PREFECT_HOME", str(here.state / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return here


@pytest.mark.story
def test_prefect_begins_without_its_history_where_that_cannot_be_opened(
    place: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(place, full=False, port=0)
    try:
        server.ready()
    finally:
        server.stop()
    assert "Prefect's history will not show this run" in capsys.readouterr().err
    assert (place.state / "prefect").read_text() == "no folder"


@pytest.mark.story
def test_the_schedules_need_the_history(place: Clone) -> None:
    server = Server(place, full=True, port=0)
    try:
        with pytest.raises(InfrastructureError, match=r"did not start\. Its log"):
            server.ready()
    finally:
        server.stop()


def test_a_named_server_that_does_not_answer_is_replaced_for_this_run(
    place: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = f"http://ada:s3cret@127.0.0.1:{dead_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", named)
    with prefect_server(place) as server:
        assert server is not None
        assert os.environ["PREFECT_API_URL"] == f"{server.url}/api"
    assert os.environ["PREFECT_API_URL"] == named
    output = capsys.readouterr().err
    assert "does not answer, so it will not show this run. Start it, or unset PREFECT_API_URL" in output
    assert "s3cret" not in output
