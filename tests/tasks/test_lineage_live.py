"""Lineage events while a run goes on: to a real server, to a file, and to receivers that are dead,
slow, or say no. The run itself is never worse for it."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ladder_clone
import pytest
import yaml
from local_servers import dead_port

from rft import config, secrets
from rft.errors import ConfigError, Stopped, UserError
from tasks import stage_runner
from tasks.provenance import live, openlineage
from tasks.provenance.openlineage import Job
from tasks.runs import outbox, records
from tasks.runs.run import Run


class Catalog:
    """What a lineage server took, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[int] = []
        """Status codes of the next replies; 201 when there are none left."""
        self.silent = threading.Event()
        self.headers: list[dict[str, str]] = []
        self.taken: list[dict[str, Any]] = []
        self.methods: list[str] = []

    @property
    def story(self) -> list[tuple[str, str]]:
        return [(event["eventType"], event["job"]["name"]) for event in self.taken]


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.methods.append("GET")
            self._answer(200)

        def do_POST(self) -> None:
            here.methods.append("POST")
            body = self.rfile.read(int(self.headers["content-length"]))
            if here.silent.is_set():
                over.wait()
                return
            status = here.answers.pop(0) if here.answers else 201
            if status == 201:
                here.headers.append({name.lower(): value for name, value in self.headers.items()})
                here.taken.append(json.loads(body))
            self._answer(status)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            if status == 302:
                self.send_header("location", f"{here.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here = Catalog(f"http://127.0.0.1:{server.server_port}/api/v1/lineage")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield here
        over.set()
        server.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01, 0.05))
    monkeypatch.setattr(outbox, "END_S", 5.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    """Copy it before a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        return ladder_clone.make(tmp_path_factory.mktemp("lineage"))


@pytest.fixture
def scripted(made: ladder_clone.Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    root = Path(shutil.copytree(made.root, tmp_path / "clone"))
    for name in ("fail-traffic", "ran"):
        (made.script / name).unlink(missing_ok=True)
    monkeypatch.chdir(root)
    return ladder_clone.Scripted(type(made.clone)(root), made.script)


def params(**where: Any) -> config.Params:
    given = config.load("params.yaml")
    found = config.parse(where, "params.yaml", config.OpenLineage)
    return given.model_copy(update={"run": given.run.model_copy(update={"openlineage": found})})


@contextlib.contextmanager
def begun(scripted: ladder_clone.Scripted, settings: config.Params) -> Iterator[Run]:
    with stage_runner.recorded(scripted.clone, settings, None) as run:
        yield run


def folder(scripted: ladder_clone.Scripted) -> Path:
    return scripted.clone.state / "openlineage"


def kept(scripted: ladder_clone.Scripted) -> list[Path]:
    return sorted(folder(scripted).glob("*")) if folder(scripted).exists() else []


# -- a run -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_run_is_told_as_it_goes(
    scripted: ladder_clone.Scripted, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_KEY", "Bearer canary-value")
    settings = params(url=catalog.url, headers={"Authorization": "env:CATALOG_KEY"})
    with begun(scripted, settings) as run:
        stage_runner.repro_stage(run, "traffic")
        until = time.monotonic() + 5
        while (len(catalog.taken) < 3 or kept(scripted)) and time.monotonic() < until:
            time.sleep(0.01)
        assert catalog.story == [("START", "tiny"), ("START", "tiny.traffic"), ("COMPLETE", "tiny.traffic")], "live"
        assert kept(scripted) == [], "a kill now would repeat nothing"
        lock = yaml.safe_load((run.tree / "dvc.lock").read_text())
    assert catalog.story[3:] == [("COMPLETE", "tiny")]
    done = catalog.taken[2]
    outs = {f"tiny/{out['path']}": out["md5"] for out in lock["stages"]["traffic"]["outs"]}
    assert {one["name"]: one["facets"]["version"]["datasetVersion"] for one in done["outputs"]} == outs
    assert done["run"]["facets"]["tags"]["tags"][0]["value"] == "ran"
    assert done["inputs"][0]["facets"]["version"]["datasetVersion"] == run.record.commit
    ids = [Job("tiny", run.name, stage).run_id for stage in (None, "traffic", "traffic", None)]
    assert [event["run"]["runId"] for event in catalog.taken] == ids, "those that an export has, too"
    assert {found["authorization"] for found in catalog.headers} == {"Bearer canary-value"}
    assert kept(scripted) == []
    assert not secrets.holds(json.dumps(catalog.taken))
    [record] = records.load_all(scripted.clone)
    assert record.state == "finished"
    assert "openlineage" not in (scripted.git("show", f"{record.revision}:params.yaml"))


@pytest.mark.slow
def test_a_failure_is_told_and_what_the_stage_said_is_not(scripted: ladder_clone.Scripted, catalog: Catalog) -> None:
    (scripted.script / "fail-traffic").write_text('messages[0] is {"role": "user", "content": "canary"}')
    with pytest.raises(stage_runner.repro.StageFailed), begun(scripted, params(url=catalog.url)) as run:
        stage_runner.repro_stage(run, "traffic")
    assert catalog.story == [("START", "tiny"), ("START", "tiny.traffic"), ("FAIL", "tiny.traffic"), ("FAIL", "tiny")]
    facet = catalog.taken[2]["run"]["facets"]["errorMessage"]
    assert facet["message"] == f"stage traffic failed; its log is .rft/logs/{run.name}/traffic.log"
    assert "canary" not in json.dumps(catalog.taken)


@pytest.mark.slow
def test_a_run_that_waits_for_more_hours_has_no_end_and_goes_on_under_its_id(
    scripted: ladder_clone.Scripted, catalog: Catalog
) -> None:
    settings = params(url=catalog.url)
    with pytest.raises(Stopped), begun(scripted, settings) as run, live.stage(run, "train"):
        raise Stopped("after step 3")
    assert run.record.state == "paused"
    assert catalog.story == [("START", "tiny"), ("START", "tiny.train")]
    with begun(scripted, settings) as again:
        assert again.name == run.name
    assert catalog.story[2:] == [("RUNNING", "tiny"), ("COMPLETE", "tiny")]
    assert {event["run"]["runId"] for event in catalog.taken} == {
        Job("tiny", run.name).run_id,
        Job("tiny", run.name, "train").run_id,
    }


def test_an_interrupted_run_is_aborted(scripted: ladder_clone.Scripted, catalog: Catalog) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        begun(scripted, params(url=catalog.url)) as run,
        live.stage(run, "train"),
    ):
        raise KeyboardInterrupt
    assert catalog.story[2:] == [("ABORT", "tiny.train"), ("ABORT", "tiny")]


@pytest.mark.slow
def test_to_a_file_each_event_is_a_line(scripted: ladder_clone.Scripted) -> None:
    for _ in range(2):
        with begun(scripted, params(file=".rft/events/lineage.ndjson")):
            pass
    lines = (scripted.root / ".rft/events/lineage.ndjson").read_text().splitlines()
    assert [json.loads(line)["eventType"] for line in lines] == ["START", "COMPLETE"] * 2
    assert kept(scripted) == []
    assert scripted.git("status", "--porcelain").strip() == ""


# -- receivers that do not take them ---------------------------------------------------------------
@pytest.mark.slow
def test_a_dead_receiver_fails_no_run_and_the_next_run_brings_what_was_kept(
    scripted: ladder_clone.Scripted, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(outbox, "END_S", 0.5)
    with begun(scripted, params(url=f"http://127.0.0.1:{dead_port()}/x")) as run, live.stage(run, "drift"):
        (run.tree / "dvc.lock").write_text("stages: {}\n")
        time.sleep(0.2)
    lines = [line for line in capsys.readouterr().out.splitlines() if "[openlineage]" in line]
    assert len(lines) == 2, lines
    assert "The run goes on, and events are kept in" in lines[0]
    assert "4 events not taken by" in lines[1]
    assert "the next run that tells it sends them first" in lines[1]
    assert records.find(scripted.clone, run.name).state == "finished"
    [file] = kept(scripted)
    assert file.name == f"{run.name}.ndjson"
    assert len(file.read_text().splitlines()) == 4
    with file.open("a") as left:
        left.write('{"eventTime": "cut o')  # a process that was killed while it wrote
    monkeypatch.setattr(outbox, "END_S", 5.0)
    with begun(scripted, params(url=catalog.url)) as second:
        pass
    ids = [Job("tiny", run.name).run_id, Job("tiny", second.name).run_id]
    assert [catalog.taken[0]["run"]["runId"], catalog.taken[4]["run"]["runId"]] == ids
    assert len(catalog.taken) == 6
    assert kept(scripted) == []


def test_a_receiver_that_comes_back_gets_all_in_order(
    scripted: ladder_clone.Scripted, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """The pause of an hour ends with the run."""
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01, 3600))
    catalog.answers = [503, 401, 503, 503]
    with begun(scripted, params(url=catalog.url)) as run, live.stage(run, "drift"):
        (run.tree / "dvc.lock").write_text("stages: [of somebody's hand")
    assert [kind for kind, _ in catalog.story] == ["START", "START", "COMPLETE", "COMPLETE"]
    assert kept(scripted) == []
    output = capsys.readouterr().out
    assert "what stage drift read and wrote is not sent" in output
    assert "not taken" not in output


def test_an_event_that_is_called_wrong_stops_no_other(
    scripted: ladder_clone.Scripted, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog.answers = [422]
    with begun(scripted, params(url=catalog.url)) as run:
        pass
    assert catalog.story == [("COMPLETE", "tiny")]
    [aside] = kept(scripted)
    assert aside.name == f"{run.name}.refused"
    assert json.loads(aside.read_text())["eventType"] == "START"
    assert f"calls 1 event wrong; they are put aside in {aside}" in capsys.readouterr().out


def test_a_redirect_is_not_followed(
    scripted: ladder_clone.Scripted, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A POST that is sent elsewhere becomes a GET, and the event is lost without a word."""
    monkeypatch.setattr(outbox, "END_S", 0.3)
    catalog.answers = [302] * 1000
    with begun(scripted, params(url=catalog.url)):
        pass
    assert "GET" not in catalog.methods
    assert "it sends us elsewhere" in capsys.readouterr().out
    assert len(kept(scripted)) == 1


@pytest.mark.slow
def test_a_silent_receiver_delays_nothing(
    scripted: ladder_clone.Scripted, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(outbox, "END_S", 0.3)
    catalog.silent.set()
    with begun(scripted, params(url=catalog.url)) as run:
        before = time.monotonic()
        for _ in range(20):
            run.lineage.emit("RUNNING", run.lineage.job)
        assert time.monotonic() - before < 2
    assert "22 events not taken" in capsys.readouterr().out
    assert len(kept(scripted)[0].read_text().splitlines()) == 22


def test_what_a_live_run_keeps_is_not_taken_by_another(scripted: ladder_clone.Scripted, catalog: Catalog) -> None:
    other = Job("tiny", "20260101-0000-aaaa")
    line = openlineage.line(openlineage.event("START", other, "2026-01-01T00:00:00Z", "1"))
    file = folder(scripted) / f"{other.run}.ndjson"
    file.parent.mkdir(parents=True)
    file.write_text(line)
    with records.held(records.lock(scripted.clone, other.run)), begun(scripted, params(url=catalog.url)):
        pass
    assert len(catalog.taken) == 2
    assert file.read_text() == line


# -- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "set either file or url"),
        ({"file": "a.ndjson", "url": "http://x/"}, "set either file or url"),
        ({"file": "a.ndjson", "headers": {"A": "b"}}, "headers are sent to a url"),
        ({"file": " "}, "name a file"),
        ({"url": "marquez:5000"}, "write an address"),
        ({"url": "http://x/", "headers": {"Authorization": "Bearer abcdef"}}, "holds a key"),
        ({"url": "http://ada:pw@x/"}, "holds a user name or password"),
        ({"url": "http://x/", "retries": 3}, "unknown key"),
    ],
)
def test_settings_that_cannot_be_honored(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.parse(given, "params.yaml", config.OpenLineage)


def test_what_cannot_work_is_an_error_before_the_run(scripted: ladder_clone.Scripted) -> None:
    for where, message in (
        ({"file": "lineage.ndjson"}, "Git does not ignore it"),
        ({"file": "data/lineage.ndjson"}, "lies in data/"),
        ({"file": ".rft"}, "is a folder"),
        ({"file": "recipes"}, "is a folder"),
        ({"url": "http://127.0.0.1:1/", "headers": {"X-RFT-Step": "1"}}, "is set by agent-rft itself"),
    ):
        with pytest.raises((UserError, ConfigError), match=message), begun(scripted, params(**where)):
            pass
    with (
        pytest.raises(ConfigError, match="CATALOG_KEY, which is not set"),
        begun(scripted, params(url="env:CATALOG_KEY")),
    ):
        pass
    assert records.load_all(scripted.clone) == []
