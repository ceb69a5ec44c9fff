"""The test examples are opened for a look that the ledger has registered, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ladder_clone import Scripted

from rft import __main__ as stages
from rft import config, files, reports, stage_files
from rft.errors import RftError
from tasks.runs import by_hand, engine
from tests import tiny_recipe

ROW = '{"id": "e-1", "messages": [{"role": "user", "content": "Look it up."}]}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tiny_recipe.make(tmp_path)
    settings = {"recipe": {"path": str(made)}, "gate": tiny_recipe.gate()}
    (tmp_path / "params.yaml").write_text(json.dumps(settings), encoding="utf-8")
    test = tmp_path / stage_files.examples_file("test")
    test.parent.mkdir(parents=True)
    test.write_text(ROW, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    engine.write(tmp_path, config.Recipe(path=str(made)), tmp_path / "state")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], opening: reports.Opening) -> str:
    stage_files.write(opening)
    assert stages.main(["challenger"]) == 2
    return capsys.readouterr().err


def test_no_stage_by_hand_opens_the_test_examples(folder: Path, capsys: pytest.CaptureFixture[str]):
    told = printed(capsys, reports.Opening())
    assert "data/registration/opening.json: the test examples stay closed, because no look at them is regis" in told
    assert "rft run" in told
    assert "rft stage run challenger" not in told
    other = reports.Opening(look="a" * 64, test_sha256="b" * 64)
    assert "only a look at others is registered" in printed(capsys, other)
    right = reports.Opening(look="a" * 64, test_sha256=files.sha256(folder / stage_files.examples_file("test")))
    assert "stay closed" not in printed(capsys, right), "it went on, to what is missing here"


@pytest.mark.slow
def test_rft_stage_refuses_and_leaves_the_stage_folder_alone(run_by_hand: Scripted):
    clone = run_by_hand.clone
    stage_folder = clone.root / stage_files.folder("challenger")
    before = {path.name: path.read_bytes() for path in stage_folder.iterdir()}

    with pytest.raises(RftError, match="the test examples stay closed"):
        by_hand.run_stage(clone, config.load(clone.root / "params.yaml"), "challenger")
    assert {path.name: path.read_bytes() for path in stage_folder.iterdir()} == before


@pytest.fixture
def run_by_hand(tmp_path: Path) -> Scripted:
    """A clone whose data/ holds the files of a whole ladder."""
    import shutil

    import ladder_clone

    made = ladder_clone.make(tmp_path)
    shutil.copytree(made.script / "data", made.clone.root / "data", dirs_exist_ok=True)
    return made
