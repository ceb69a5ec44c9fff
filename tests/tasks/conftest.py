"""A clone with a run that may be promoted, made once for all tests of promotion."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import pytest

from tasks.display import tracking
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


@pytest.fixture(scope="session")
def clone_with_run(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with one recorded run that the gate would promote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("registry"))
        assert ladder_clone.run_ladder(scripted).decision == "promote"
        tracking.client(scripted.clone)  # its tables are made once
    return scripted.clone


@pytest.fixture
def here(clone_with_run: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(clone_with_run.root, tmp_path / "clone")))


@pytest.fixture
def run_ladder(clone_with_run: Clone, here: Clone) -> Callable[..., RunRecord]:
    """Another run of this clone that the gate would promote; `edited` takes uncommitted code
    along."""

    def run(edited: bool = False, **more) -> RunRecord:
        if edited:
            (here.root / "a.py").write_text("print('uncommitted')")
        return ladder_clone.run_ladder(ladder_clone.Scripted(here, clone_with_run.root.parent / "script"), **more)

    return run
