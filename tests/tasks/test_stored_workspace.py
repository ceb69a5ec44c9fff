"""A workspace that the code of November 2026 wrote: it verifies, is audited, and goes on to a
promotion.

tests/golden/workspace.tar.xz holds a clone after two runs of scripted stages
(tests/ladder_clone.py, at commit af656ea). Ada approved the first. The second waits, with her key
beside the clone. It is never recorded anew: an auditor asks a year later.
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from rft import config
from tasks import audit
from tasks.audit import Question
from tasks.ledger import book, statement
from tasks.ledger.keys import Key
from tasks.promotion import acts, champions, registration
from tasks.promotion.acts import Signer
from tasks.runs import artifacts, records, upgrade
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "golden" / "workspace.tar.xz"
THEN = "2026-12-01T00:00:00Z"
"""A few days after it was written, before the request expires."""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(statement, "now", lambda: THEN)
    with tarfile.open(STORED) as file:
        file.extractall(tmp_path, filter="data")
    return Clone(tmp_path / "clone")


def test_its_ledger_verifies_with_the_code_of_today_and_without(clone: Clone) -> None:
    state = book.read(clone, reverify=True).state
    assert [state.champion(model) for model in state.moves] == [min(state.promotions)]
    command = ["sh", str(ROOT / "docs/verify-ledger.sh"), str(clone.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"OK: {state.number} entries, the last is {state.head}"


@pytest.mark.slow
def test_its_champion_is_audited_without_a_broken_link(clone: Clone) -> None:
    found = audit.ask(clone, Question(None), report_line=lambda _: None)
    assert found.broken() == []
    assert {link.state for link in found.links} == {"verified"}


def test_the_comparison_that_waits_is_a_look_that_is_known(clone: Clone) -> None:
    """Whatever a look hashes is called as it was: another hash would be another look, and cost."""
    waits = records.load_all(clone)[-1]
    at, params = Revision(clone, waits.revision), config.load(clone.root / "params.yaml")
    assert [name for name, _ in upgrade.rewrite(clone)] == ["dvc.yaml"], "what its user is told: rft upgrade"
    with runs.start(clone, runs.plan(clone, params, champions.of_params(clone, params))) as run:
        artifacts.restore(at, run.tree)
        made = registration.register(run, lambda _: None)
    assert made.entry == registration.entry_number(at, waits.name)


@pytest.mark.slow
def test_what_waited_is_approved_and_promoted(clone: Clone) -> None:
    waits = records.load_all(clone)[-1].name
    public = " ".join((clone.root.parent / "Ada.pub").read_text().split()[:2])
    ada = Signer(Key(public, clone.root.parent / "Ada"), "ada")
    assert acts.approve(clone, waits, ada, "fewer calls", False).approval_status.is_enough
    promoted = acts.promote(clone, waits).promoted
    assert promoted is not None
    assert book.read(clone, reverify=True).state.champion("tiny") == promoted.number
