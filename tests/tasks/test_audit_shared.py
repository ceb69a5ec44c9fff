"""An audit in a clone that has nothing but what Git and DVC's remote give it."""

from __future__ import annotations

from pathlib import Path

import people
import pytest
from test_promotion_shared import shared

from rft.errors import UserError
from rft.reports.audit import Audit
from tasks import audit
from tasks.audit import Question
from tasks.promotion import acts
from tasks.runs import records
from tasks.runs.clone import Clone

pytestmark = pytest.mark.story  # clones with a Git remote and a DVC remote: half a minute


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone that shares its ledger and its bytes, and promoted a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        clone = shared(tmp_path_factory.mktemp("shared"))
        run = records.load_all(clone)[0]
        acts.request_promotion(clone, run)
        people.approve(clone, run.name)
    clone.git("add", "infra/ledger.yaml")
    clone.git("commit", "--quiet", "--message", "name the ledger")
    clone.git("push", "--quiet", "origin", "main")
    return clone


def cloned(here: Clone, place: Path, *options: str) -> Clone:
    remote = f"file://{here.root.parent / 'remote.git'}"
    here.git("clone", "--quiet", "--branch", "main", *options, remote, str(place))
    return Clone(place)


def ask(clone: Clone, **more) -> Audit:
    return audit.ask(clone, Question(), report_line=lambda _: None, **more)


def test_a_fresh_clone_fetches_all_by_hash(here: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = cloned(here, tmp_path / "there")
    found, own = ask(there), ask(here)
    assert found.broken() == own.broken() == []
    assert found.ledger == own.ledger
    differ = {(link.source, link.says) for link in found.links if link.state != "verified"}
    assert {source.partition("/")[0] for source, _ in differ} <= {"alias:mlflow", "alias:file", f"stage:{run(here)}"}
    assert {says for source, says in differ if source.startswith("stage")} == {"was given"}, "the log is the user's"


def run(clone: Clone) -> str:
    return records.load_all(clone)[0].name


def test_without_asking_a_remote_nothing_is_green_that_is_not_here(
    here: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = cloned(here, tmp_path / "there")
    there.git("fetch", "--quiet", "origin", "rft-ledger:refs/rft/ledger")
    found = ask(there, fetches=False)
    wrote = {link.state for link in found.links if link.says == "wrote"}
    assert wrote == {"missing"}
    assert all("--no-fetch" in link.why for link in found.links if link.says == "wrote")


def test_a_shallow_clone_is_told_how_to_become_whole(here: Clone, tmp_path: Path) -> None:
    there = cloned(here, tmp_path / "there", "--depth", "1")
    with pytest.raises(UserError, match="unshallow"):
        ask(there)
