"""`rft audit`: text for people, JSON and exit codes for scripts, and a page."""

from __future__ import annotations

import json
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from tasks.promotion import acts
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose only run was promoted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("audit-verb"))
        run = ladder_clone.run_ladder(scripted)
        acts.request_promotion(scripted.clone, run)
        people.approve(scripted.clone, run.name)
    return scripted.clone


@pytest.fixture(autouse=True)
def _inside(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone.root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def test_people_read_first_whether_all_fits(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "What tiny, champion 6, rests on"
    assert out[3].startswith("Every link that can be verified fits (")
    outline = out[out.index("What it rests on") :]
    assert any(line.startswith("  ✓ 1,200 conversations: window data/inbox/2026-W14.jsonl") for line in outline)
    page = Path(out[-1].split()[-1])
    assert page.read_text().startswith("<!doctype html>")
    assert cli.main(["audit", "--full"]) == 0
    assert "was signed by ada" in capsys.readouterr().out


def test_scripts_get_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "champion", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["worst"] == "verified"
    assert told["root"] == "version:tiny@6"
    assert {"question", "ledger", "nodes", "links"} <= set(told)


def test_the_conversations_behind_a_version_are_listed(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "6", "--conversations"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1200
    assert f"c-7\t{records.load_all(clone)[0].name}" in lines


def test_a_broken_link_is_told_first_and_by_the_exit_code(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    out = Revision(clone, records.load_all(clone)[0].revision or "").outs["data/gate/timing.json"]
    path = clone.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]
    path.rename(path.with_suffix(".away"))
    try:
        assert cli.main(["audit"]) == 1
        text = capsys.readouterr().out
        assert "BROKEN: stage gate wrote data/gate/timing.json" in text
        assert cli.main(["audit", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["worst"] == "missing"
    finally:
        path.with_suffix(".away").rename(path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["99"], "the ledger ends with entry 6"),
        (["other@champion"], "no model 'other'"),
        (["nothing-like-it"], "no run named"),
        (["tiny@2"], "is not a promotion"),
        (["tiny@previously"], "is not a version"),
        (["--hash", "xyz"], "is not a hash"),
        (["--hash", "0" * 40], "nothing has hash"),
        (["--person", "eve"], "nobody named 'eve'"),
        (["6", "--all"], "two questions"),
        (["3", "--conversations"], "is not a promotion"),
        (["--hash", "0" * 40, "--conversations"], "a version"),
    ],
)
def test_bad_questions(asked: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", *asked]) == 2
    assert message in capsys.readouterr().err


def test_a_version_is_exported_in_the_formats_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--export", str(tmp_path / "out")]) == 0
    names = {"README.md", "bom.cdx.json", "openlineage.ndjson", "provenance.intoto.jsonl"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert cli.main(["audit", "3", "--export", str(tmp_path / "other")]) == 2
    assert "one version" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/diary.txt").write_text("dear")
    assert cli.main(["audit", "--export", str(tmp_path / "mine")]) == 2
    assert "diary.txt" in capsys.readouterr().err
