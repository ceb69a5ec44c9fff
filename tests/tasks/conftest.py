"""A clone with a run that may be promoted, made once for all tests of promotion."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ladder_clone
import pytest

from tasks.display import tracking
from tasks.runs import dvc_process, repro
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def _loaded_dvc() -> Iterator[None]:
    """DVC is loaded once, and forks for each command as for the stages of a run: to load it takes a
    second each time."""
    loaded = dvc_process.Loaded()

    def started(tree: Path, arguments: list[str], more: dict[str, str], of_run: Any = None) -> Any:
        if more or of_run:
            return dvc_process.started(tree, arguments, more, of_run)
        if loaded._process is None:
            loaded.start(ROOT, {})
        return dvc_process.started(ROOT, ["--cd", str(tree), *arguments], {}, loaded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repro, "dvc_process", SimpleNamespace(started=started))
        yield
    loaded.stop()


@pytest.fixture(scope="session")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with one recorded run that the gate would promote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("registry"))
        assert ladder_clone.climb(scripted).decision == "promote"
        tracking.client(scripted.clone)  # its tables are made once
    return scripted.clone


@pytest.fixture
def here(climbed: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(climbed.root, tmp_path / "clone")))


@pytest.fixture
def climb(climbed: Clone, here: Clone) -> Callable[..., RunRecord]:
    """Another run of this clone that the gate would promote; `edited` takes uncommitted code
    along."""

    def run(edited: bool = False, **more) -> RunRecord:
        if edited:
            (here.root / "a.py").write_text("print('uncommitted')")
        return ladder_clone.climb(ladder_clone.Scripted(here, climbed.root.parent / "script"), **more)

    return run
