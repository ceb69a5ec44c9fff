"""Verbs that show or write one small thing, through the command line; each is as it is in a run."""

from __future__ import annotations

import json
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from tasks.display import tracking
from tasks.runs import records


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    made = ladder_clone.make(tmp_path_factory.mktemp("small"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        ladder_clone.run_ladder(made)
    return made


@pytest.fixture
def home(scripted: ladder_clone.Scripted, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(scripted.root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return scripted.root


def test_the_base_model_is_the_one_that_a_run_would_find(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "model"]) == 0
    assert "the embedded policy, which stage `policy` builds" in capsys.readouterr().out
    assert cli.main(["doctor", "model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "embedded"


def test_a_log_is_counted_and_its_snapshot_placed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["traffic", "ingest", "data/inbox/window.jsonl"]) == 0
    assert "conversations" in capsys.readouterr().out
    assert (home / "data/window").is_dir()


def test_the_engine_is_written_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stage", "engine"]) == 0
    assert "Written: " in capsys.readouterr().out
    assert cli.main(["stage", "engine"]) == 0
    assert "nothing, it is that of data/engine already" in capsys.readouterr().out
    assert len(list((home / "data/engine").glob("*.json"))) >= 9


def test_the_newest_runs_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "list", "-n", "1"]) == 0
    listed = capsys.readouterr().out
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out == listed


def test_an_owner_lets_clocks_disagree(
    home: Path, scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    tracking.client(scripted.clone)
    people.approve(scripted.clone, records.load_all(scripted.clone)[0].name)
    assert cli.main(["ledger", "clocks", "--days", "3", "--reason", "a flat battery", *people.by("Ada")]) == 0
    assert "no entry is refused because two clocks disagree" in capsys.readouterr().out


def test_the_thresholds_of_a_model_are_shown_compared_and_signed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ledger", "policy", "show"]) == 0
    assert "gate.min_gain = " in capsys.readouterr().out
    assert cli.main(["ledger", "policy", "show", "--set", "gate.min_gain=0.2"]) == 0
    assert "tiny: gate.min_gain: " in capsys.readouterr().out
    assert cli.main(["ledger", "policy", "sign", "--reason", "nothing new", *people.by("Ada")]) == 2
    assert "these are the thresholds of tiny already" in capsys.readouterr().err
