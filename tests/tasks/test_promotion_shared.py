"""Promotion across clones: what an approver elsewhere can read, and what must be uploaded first."""

from __future__ import annotations

import shutil
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from rft import config
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book, keys
from tasks.ledger.authorise import Refused
from tasks.ledger.policy import EnrolMachine, Rules, SetRules
from tasks.promotion import acts, agents, champions, counting, elsewhere, sharing
from tasks.runs import records, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

pytestmark = pytest.mark.story  # several clones each: half a minute together


def only(clone: Clone) -> RunRecord:
    return records.load_all(clone)[0]


def params(clone: Clone) -> config.Params:
    return config.load(clone.root / "params.yaml")


def name_store(clone: Clone, url: str) -> None:
    """Name a DVC remote in the clone's settings."""
    settings = clone.root / ".dvc/config"
    with_remote = settings.read_text().replace("[core]", "[core]\n    remote = store")
    settings.write_text(f"{with_remote}['remote \"store\"']\n    url = {url}\n")


def shared(folder: Path) -> Clone:
    """A clone with a bare Git remote and a DVC remote that its commit names."""
    scripted = ladder_clone.make(folder)
    remote = folder / "remote.git"
    scripted.git("init", "--quiet", "--bare", str(remote))
    scripted.git("remote", "add", "origin", str(remote))
    name_store(scripted.clone, str(folder / "store"))
    (scripted.root / "infra").mkdir(exist_ok=True)
    (scripted.root / "infra/ledger.yaml").write_text("remote: origin\n")
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "shared")
    scripted.git("push", "--quiet", "origin", "main")
    assert ladder_clone.run_ladder(scripted).decision == "promote"
    return scripted.clone


def test_an_approver_in_another_clone_reads_the_ledger_and_the_revision_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    ours = shared(tmp_path)
    record = only(ours)
    acts.request_promotion(ours, record)
    assert ours.git("status", "--porcelain") == "", "a ledger that nobody counts on yet is named nowhere"
    ours.git("clone", "--quiet", "--branch", "main", str(tmp_path / "remote.git"), str(tmp_path / "theirs"))
    theirs = Clone(tmp_path / "theirs")
    theirs.state.mkdir()

    # an unknown machine: told what to do, and nothing is changed
    with pytest.raises(Refused, match="is not enrolled in the ledger"):
        people.approve(theirs, record.name)
    ada = people.signer("Ada")
    acts.reject(ours, record.name, ada, "not yet")
    assert f"genesis: {book.latest(ours).state.genesis}" in (ours.root / "infra/ledger.yaml").read_text()
    key = acts.enrolled(EnrolMachine, name="theirs", key=keys.machine(theirs).public)
    acts.change(theirs, key, ada, "the second clone")
    acts.lift(theirs, record.name, ada, "now")
    made = people.approve(theirs, record.name).promoted
    assert made is not None
    assert not list(theirs.runs.glob("*.json"))
    assert book.read(theirs).state.champion("tiny") == made.number
    assert champions.of_params(ours, params(ours)).champion.version == made.number
    assert agents.find(theirs, "champion").run == record.name
    shutil.move(tmp_path / "remote.git", tmp_path / "away.git")
    with pytest.raises(InfrastructureError, match=r"infra/ledger.yaml.* Nothing was appended"):
        acts.rollback(theirs, "tiny", ada, "why")
    assert champions.of_params(theirs, params(theirs)).champion.version == made.number, "a run goes on"


def test_n3_an_approver_elsewhere_sees_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They signed blind: their clone knew no run, no page and no rollouts of it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    ours = shared(tmp_path)
    name = only(ours).name
    acts.request_promotion(ours, only(ours))
    ours.git("clone", "--quiet", "--branch", "main", str(tmp_path / "remote.git"), str(tmp_path / "theirs"))
    theirs = Clone(tmp_path / "theirs")
    monkeypatch.chdir(theirs.root)

    def output_of(*words: str) -> str:
        assert cli.main(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    with pytest.raises(UserError, match="no run named 'nothing'"):
        elsewhere.find(theirs, "nothing")
    output_of("ledger")  # which fetches it
    listed = output_of("runs")
    assert f"{name} promote" in listed
    assert "clone's)" in listed
    page = Path(output_of("runs", "report", name[-6:]).splitlines()[-1])
    assert page == theirs.page(name)
    assert "mean reward" in page.read_text()
    assert "of run" in output_of("rollouts", "list", name, "--stage", "baseline", "--worst", "2")
    assert records.load_all(theirs) == [], "nothing is claimed to have run here"
    assert cli.main(["approve", name, "--reason", "seen", "--key", str(people.signer("Ada").key.file)]) == 2
    captured = capsys.readouterr()
    assert "is not enrolled in the ledger" in captured.err, "this machine"
    assert "The question: Is it better?" in captured.out
    assert "That run is another clone's. Its page: " in captured.out


def test_a_relative_remote_of_dvc_is_the_clones_and_not_a_scratch_folders(here: Clone) -> None:
    """The push went into a folder that was deleted after it, and was found to have arrived."""
    store = here.root.parent / "store"
    name_store(here, "../../store")
    at = Revision(here, only(here).revision or "")
    transfer.push(here, at.commit)
    assert len([path for path in store.rglob("*") if path.is_file()]) > 10
    shutil.rmtree(here.dvc_cache)
    assert not at.is_cached()
    transfer.fetch(here, at)
    assert at.is_cached()


def named_late(clone: Clone, folder: Path) -> Clone:
    """Name a remote, of Git and of DVC, in a clone whose ledger goes on for some time. Returns
    another clone of it, which has the files of the first."""
    bare = folder / "remote.git"
    clone.git("init", "--quiet", "--bare", str(bare))
    clone.git("remote", "add", "origin", str(bare))
    name_store(clone, str(folder / "store"))
    text = (clone.root / "infra/ledger.yaml").read_text()
    (clone.root / "infra/ledger.yaml").write_text(text.replace("remote: null", "remote: origin"))
    clone.git("commit", "--all", "--quiet", "--message", "shared")
    clone.git("push", "--quiet", "origin", "main")
    clone.git("clone", "--quiet", "--branch", "main", str(bare), str(folder / "theirs"))
    (folder / "theirs/.rft").mkdir()
    return Clone(folder / "theirs")


@pytest.mark.parametrize("by", ["an act", "hand"])
def test_a_request_from_before_there_was_a_remote_is_approved_elsewhere(here: Clone, tmp_path: Path, by: str) -> None:
    name, ada = only(here).name, people.signer("Ada")
    acts.reject(here, name, ada, "not yet")
    acts.lift(here, name, ada, "now")
    with pytest.raises(UserError, match=r"infra/ledger\.yaml names no remote"):
        sharing.share(here)
    theirs = named_late(here, tmp_path)
    store, lines = tmp_path / "store", []
    machine = acts.enrolled(EnrolMachine, name="theirs", key=keys.machine(theirs).public)
    if by == "an act":  # the first that shares the ledger brings the bytes along
        acts.change(here, machine, ada, "the second clone", lines.append)
        listed = "[ledger] 1 list of test examples at DVC's remote"
        assert lines == [listed, f"[ledger] the bytes of run {name} are at DVC's remote"]
        acts.change(here, SetRules(model=None, rules=Rules(approval_days=3)), ada, "shorter", lines.append)
        assert len(lines) == 2, "once"
    else:
        here.git("push", "--quiet", "origin", "refs/rft/ledger:refs/heads/rft-ledger")
        acts.change(theirs, machine, ada, "the second clone")
        mine = book.read(here).stored[0].entry.machine
        with pytest.raises(
            InfrastructureError, match=rf"bytes of run {name} are not in this clone.*{mine}.*rft ledger share"
        ):
            people.approve(theirs, name)
        assert not store.exists()
        assert sharing.share(here) == [name]
    [look] = book.read(theirs).state.looks.values()
    assert len(transfer.fetch_file(theirs, counting.out(look.act.examples))) == look.act.examples.size
    made = people.approve(theirs, name).promoted
    assert made is not None
    assert champions.of_params(here, params(here)).champion.version == made.number


def test_without_a_remote_of_dvc_nothing_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path)
    scripted.git("init", "--quiet", "--bare", str(tmp_path / "remote.git"))
    scripted.git("remote", "add", "origin", str(tmp_path / "remote.git"))
    record = ladder_clone.run_ladder(scripted)
    (scripted.root / "infra").mkdir(exist_ok=True)
    (scripted.root / "infra/ledger.yaml").write_text("remote: origin\n")
    with pytest.raises(InfrastructureError, match="dvc remote add --default"):
        acts.request_promotion(scripted.clone, record)
    assert book.read(scripted.clone).state.requests == {}
