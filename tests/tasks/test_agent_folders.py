"""Two agents in folders of a user's repository: their runs, and what each may not touch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import ladder_clone
import people
import pytest
import yaml
from ladder_clone import Scripted

from rft import commands, sources
from rft.errors import UserError
from tasks import audit, backup
from tasks.audit import Question
from tasks.ledger import book
from tasks.runs import clone as clones
from tasks.runs import records, repro, workspace
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

AGENTS = ("agents/refunds", "agents/billing")
OF_OUT = hashlib.md5(b"1\n1\n", usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ladder_clone.make(tmp_path_factory.mktemp("workspace"), agents=AGENTS).root.parent


@pytest.fixture
def refunds(_made: Path, tmp_path: Path) -> Scripted:
    """A copy whose stages write to the original's script, which no test changes."""
    shutil.copytree(_made / "clone", tmp_path / "clone", symlinks=True)
    return Scripted(Clone(tmp_path / "clone", AGENTS[0]), _made / "script")


@pytest.fixture
def billing(refunds: Scripted) -> Scripted:
    return replace(refunds, clone=Clone(refunds.root, AGENTS[1]))


@pytest.mark.slow
def test_a_run_is_of_one_agent_and_lies_in_its_folder(refunds: Scripted) -> None:
    done = refunds.rft("run")
    assert done.returncode == 0, done.stderr
    (record,) = records.load_all(refunds.clone)
    assert (record.agent, record.folder, record.decision) == ("refunds", "agents/refunds", "promote")
    at = Revision(refunds.clone, record.revision or "")
    changed = refunds.git("diff", "--name-only", f"{at.commit}^", at.commit).splitlines()
    assert all(name.startswith("agents/refunds/") for name in changed), changed
    assert at.model == "refunds"
    assert "data/train/weights" in at.outs
    assert refunds.git("status", "--porcelain") == ""


@pytest.mark.slow
def test_two_agents_at_once_have_champions_of_their_own(
    refunds: Scripted, billing: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # the audit asks the workspace's own store
    started = [one.start("run") for one in (refunds, billing)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    found = {record.agent: record for record in records.load_all(refunds.clone)}
    assert {name: record.decision for name, record in found.items()} == {"refunds": "promote", "billing": "promote"}
    for name, record in found.items():
        approved = refunds.rft("approve", record.name, "--reason", f"{name} is better", *people.by("Ada"))
        assert approved.returncode == 0, approved.stderr
        champion = (refunds if name == "refunds" else billing).rft("champion")
        assert record.name in champion.stdout, champion.stdout + champion.stderr
    state = book.read(refunds.clone).state
    assert state.champion("refunds") != state.champion("billing")
    asked = refunds.rft("audit")
    assert asked.returncode == 0, asked.stderr
    assert "refunds@" in asked.stdout
    assert "billing@" not in asked.stdout
    back = billing.rft("rollback", "--reason", "try it", *people.by("Ada"))
    assert "The champion of billing is the beginning again" in back.stdout, back.stdout + back.stderr
    assert book.read(refunds.clone).state.champion("refunds") == state.champion("refunds")
    for name in found:
        told = audit.ask(refunds.clone, Question(f"{name}@champion"), report_line=lambda _: None)
        assert [link for link in told.links if link.state in ("altered", "missing")] == []


@pytest.mark.slow
def test_an_edit_elsewhere_makes_no_run_dirty_and_its_own_does(refunds: Scripted) -> None:
    with (refunds.root / "agents/billing/recipes/tiny/tools.py").open("a") as file:
        file.write("# edited\n")
    (refunds.root / "app.py").write_text("print('of another program')\n")
    assert refunds.rft("run", "--clean-only", "--until", "policy").returncode == 0
    with (refunds.home / "recipes/tiny/tools.py").open("a") as file:
        file.write("# edited\n")
    refused = refunds.rft("run", "--clean-only", "--until", "policy")
    assert refused.returncode == 2
    assert "agents/refunds/recipes/tiny/tools.py" in refused.stderr


@pytest.mark.slow
def test_what_a_recipe_imports_from_elsewhere_is_its_runs_too(
    refunds: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (refunds.root / "lib").mkdir()
    (refunds.root / "lib/money.py").write_text("EURO = 100\n")
    refunds.set_params(recipe={"sources": ["lib"]})
    refused = refunds.rft("run", "--clean-only", "--until", "policy")
    assert "the tree has uncommitted work (lib/money.py)" in refused.stderr, refused.stderr
    refunds.git("add", "--all")
    refunds.git("commit", "--quiet", "--message", "money")
    (refunds.root / "lib/more.py").write_text("CENT = 1\n")
    done = refunds.rft("run")
    assert done.returncode == 0, done.stderr
    (record,) = records.load_all(refunds.clone)
    assert record.edited == ["lib/more.py"]
    at = Revision(refunds.clone, record.revision or "")
    hashes = json.loads(at.file("data/engine/train.json") or b"")
    assert {name for name in hashes if name.startswith("recipe:")} == {"recipe:lib/money.py", "recipe:lib/more.py"}
    assert "recipe:lib/money.py" not in (at.file("data/engine/gate.json") or b"").decode()
    told = audit.ask(refunds.clone, Question(record.name), report_line=lambda _: None)
    assert [link for link in told.links if link.state in ("altered", "missing")] == []
    (refunds.clone.state / "laid").mkdir()
    at.lay_tree(refunds.clone.state / "laid" / "tree")
    laid = refunds.clone.state / "laid/tree/agents/refunds/recipes/tiny"
    assert sources.top(laid) == refunds.clone.state / "laid/tree", "the revision's own, to play and to promote it"
    ran = len(refunds.ran())
    (refunds.root / "lib/money.py").write_text("EURO = 101\n")
    assert refunds.rft("run", "--until", "policy").returncode == 0
    assert "policy" in refunds.ran()[ran:], "what it imports has changed"
    gone = refunds.rft("run", "--set", "recipe.sources=[lib/gone.py]")
    assert (gone.returncode, "recipe.sources: 'lib/gone.py': there is none in" in gone.stderr) == (2, True)


@pytest.mark.slow
def test_the_users_filters_and_hooks_do_not_run_in_our_worktrees(refunds: Scripted, tmp_path: Path) -> None:
    """Git LFS is such a filter. A file of the agent itself would be a pointer there, so it is
    refused."""
    marked = tmp_path / "marked"
    touch = f"sh -c 'touch {marked}; cat'"
    for name, value in (("smudge", touch), ("clean", "cat"), ("required", "true")):
        refunds.git("config", f"filter.shout.{name}", value)
    hook = refunds.root / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {marked}\n")
    hook.chmod(0o755)
    (refunds.root / ".gitattributes").write_text("*.bin filter=shout\n")
    (refunds.root / "large.bin").write_bytes(b"large")
    refunds.git("add", "--all")
    refunds.git("commit", "--quiet", "--message", "large files")
    done = refunds.rft("run", "--until", "policy")
    assert done.returncode == 0, done.stderr
    assert not marked.exists()
    (record,) = records.load_all(refunds.clone)
    assert refunds.git("diff", "--name-only", record.commit, record.revision or "", "--", "large.bin") == ""
    (refunds.home / "recipes/tiny/rows.bin").write_bytes(b"rows")
    refused = refunds.rft("run", "--until", "policy")
    assert refused.returncode == 2
    assert "agents/refunds/recipes/tiny/rows.bin: Git keeps it by a filter (shout)" in refused.stderr


@pytest.mark.parametrize("folder", ["../../elsewhere", "/etc", "agents/../../x"])
def test_a_forged_revision_leads_nowhere_outside(refunds: Scripted, folder: str) -> None:
    tree = refunds.git("rev-parse", "HEAD^{tree}")
    message = f'run x: promote\n\n{{"name": "x", "key": "k", "folder": "{folder}"}}'
    forged = Revision(refunds.clone, refunds.git("commit-tree", tree, "-m", message))
    for read in (lambda: forged.folder, lambda: forged.file("params.yaml"), lambda: forged.outs):
        with pytest.raises(UserError, match="as its agent's folder: it was forged"):
            read()


@pytest.mark.slow
def test_a_sparse_checkout_runs_once_it_has_what_is_needed(refunds: Scripted, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    refunds.git("clone", "--quiet", "--no-checkout", ".", str(sparse))
    here = replace(refunds, clone=Clone(sparse, AGENTS[0]))
    here.git("sparse-checkout", "set", "--cone", AGENTS[0], "rft", ".rft")
    here.git("checkout", "--quiet", "main")
    refused = here.rft("run", "--until", "policy")
    assert (refused.returncode, ".dvc/config is in Git and is not checked out" in refused.stderr) == (2, True)
    here.git("sparse-checkout", "add", ".dvc")
    shutil.copytree(refunds.home / "data/inbox", here.home / "data/inbox")
    done = here.rft("run", "--until", "policy")
    assert done.returncode == 0, done.stderr
    (record,) = records.load_all(here.clone)
    assert not record.dirty
    assert here.git("diff", "--name-only", record.commit, record.revision or "", "--", AGENTS[1]) == "", "none is lost"


# -- back-up ---------------------------------------------------------------------------------------
@pytest.fixture
def with_origin(refunds: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """A program whose history is at its remote, with a promoted run of an agent, an edit of the
    user's elsewhere, and an experiment that is none of ours."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (refunds.root / "history.bin").write_bytes(os.urandom(1 << 20))
    refunds.git("add", "history.bin")
    refunds.git("commit", "--quiet", "--message", "a large history")
    refunds.git("clone", "--quiet", "--bare", ".", str(tmp_path / "origin.git"))
    refunds.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    refunds.git("fetch", "--quiet", "origin")
    record = ladder_clone.run_ladder(refunds)
    assert people.approve(refunds.clone, record.name).promoted
    theirs = refunds.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "dvc: commit experiment 1a2b")
    refunds.git("update-ref", f"refs/exps/{theirs[:2]}/{theirs[2:]}/brisk-owl", theirs)
    (refunds.root / "app.py").write_text("print('of another program')\n")
    (refunds.home / "notes.txt").write_text("of the agent\n")
    return refunds


@pytest.mark.slow
def test_a_backup_holds_what_is_ours_and_a_reference_to_the_programs_history(
    with_origin: Scripted, tmp_path: Path
) -> None:
    saved = backup.save(with_origin.clone, tmp_path / "saved", lambda *_: None).made
    assert saved.git.needs
    assert saved.git.size < 1 << 20, "the history is at the remote"
    assert not any("brisk-owl" in name for name in saved.git.refs)
    assert not any(file.path == "app.py" for file in saved.files)
    assert any("outside of the agents' folders" in line for line in saved.left_out)

    into = tmp_path / "restored"
    backup.restore(tmp_path / "saved", into, lambda *_: None)
    there = Clone(into, AGENTS[0])
    assert records.load_all(there) == records.load_all(with_origin.clone)
    assert book.read(there, reverify=True).state.champion("refunds") == 6
    assert (there.home / "notes.txt").read_text() == "of the agent\n"
    assert there.mlruns.joinpath("mlflow.db").exists()
    assert there.git("rev-parse", "HEAD") == with_origin.git("rev-parse", "HEAD")
    assert "theirs" not in there.git("for-each-ref")
    told = audit.ask(there, Question("refunds@champion"), report_line=lambda _: None)
    assert [link for link in told.links if link.state in ("altered", "missing")] == []


@pytest.mark.slow
def test_a_history_that_is_gone_is_asked_for(with_origin: Scripted, tmp_path: Path) -> None:
    backup.save(with_origin.clone, tmp_path / "saved", lambda *_: None)
    (tmp_path / "origin.git").rename(tmp_path / "moved.git")
    into = tmp_path / "restored"
    with pytest.raises(UserError, match=r"history is not in the back-up, and .*origin.git lacks .*--repository PATH"):
        backup.restore(tmp_path / "saved", into, lambda *_: None)
    assert not into.exists()
    backup.restore(tmp_path / "saved", into, lambda *_: None, str(tmp_path / "moved.git"))
    assert book.read(Clone(into), reverify=True).state.champion("refunds") == 6


@pytest.mark.slow
def test_a_history_that_no_remote_has_is_in_the_backup(with_origin: Scripted, tmp_path: Path) -> None:
    with_origin.git("remote", "remove", "origin")
    assert backup.save(with_origin.clone, tmp_path / "saved", lambda *_: None).made.git.needs == []
    backup.restore(tmp_path / "saved", tmp_path / "restored", lambda *_: None)
    assert (tmp_path / "restored/history.bin").exists()


# -- which agent -----------------------------------------------------------------------------------
def chosen(monkeypatch: pytest.MonkeyPatch, where: Path, name: str | None = None) -> str | None:
    monkeypatch.chdir(where)
    if name:
        monkeypatch.setenv(commands.AGENT, name)
    return clones.find().agent_folder


def test_the_agent_is_that_of_the_current_folder_or_the_one_that_is_named(
    refunds: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(monkeypatch, refunds.home / "recipes") == "agents/refunds"
    assert chosen(monkeypatch, refunds.root / "agents/billing") == "agents/billing"
    assert chosen(monkeypatch, refunds.root) is None
    with pytest.raises(UserError, match=r"which agent\? There are: refunds \(agents/refunds\), billing"):
        _ = clones.find().home
    assert chosen(monkeypatch, refunds.root, "billing") == "agents/billing"
    with pytest.raises(
        UserError, match=r"--agent biling: no agent of this workspace has that name. Did you mean .*billing"
    ):
        chosen(monkeypatch, refunds.root, "biling")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("agents: [agents/refunds, agents/gone]", "agents/gone has no params.yaml. If the folder has moved"),
        ("agents: [agents/refunds, agents/refunds/]", "a folder is named twice"),
        ("agents: [../elsewhere]", "is not a folder below the top"),
        ("agent: [agents/refunds]", "unknown key 'agent'"),
        ("[agents/refunds]", "rft.yaml: holds list, expected keys such as 'agents:'"),
    ],
)
def test_a_mistake_in_the_workspaces_file_is_named(refunds: Scripted, written: str, says: str) -> None:
    (refunds.root / workspace.FILE).write_text(written)
    with pytest.raises(UserError) as refused:
        workspace.agents(refunds.root)
    assert says in str(refused.value)


def test_a_copied_agent_is_named_with_both_folders(refunds: Scripted) -> None:
    shutil.copytree(refunds.home, refunds.root / "agents/copy")
    workspace.write(refunds.root, workspace.Workspace(agents=(*AGENTS, "agents/copy")))
    with pytest.raises(UserError, match=r"agents/refunds and agents/copy are both named 'refunds'.*agent: NAME"):
        workspace.agents(refunds.root)


@pytest.mark.slow
def test_an_agent_that_moved_keeps_its_champion_and_its_results(refunds: Scripted) -> None:
    assert refunds.rft("run").returncode == 0
    (record,) = records.load_all(refunds.clone)
    refunds.git("mv", "agents/refunds", "agents/money")
    workspace.write(refunds.root, workspace.Workspace(agents=("agents/money", "agents/billing")))
    moved = replace(refunds, clone=Clone(refunds.root, "agents/money"))
    refunds.git("commit", "--quiet", "--all", "--message", "moved")
    done = moved.rft("run")
    assert done.returncode == 0, done.stderr
    again = next(one for one in records.load_all(refunds.clone) if one.name != record.name)
    assert (again.agent, again.folder) == ("refunds", "agents/money")
    assert set(again.stages.values()) <= {"restored", "unchanged"}, again.stages


# -- nothing of the user's is ours -----------------------------------------------------------------
@pytest.mark.slow
def test_gc_leaves_experiments_and_results_of_the_users_own_pipelines(refunds: Scripted) -> None:
    root = refunds.root
    (root / "own").mkdir()
    (root / "own/in").write_text("1\n")
    count = {"cmd": "cat in in > out", "deps": ["in"], "outs": ["out"]}
    (root / "own/dvc.yaml").write_text(yaml.safe_dump({"stages": {"count": count}}))

    def dvc(*arguments: str) -> None:
        repro.dvc(root / "own", *arguments)

    dvc("repro", "--quiet")
    refunds.git("add", "own")
    refunds.git("commit", "--quiet", "--message", "a pipeline of my own")
    dvc("exp", "save", "--name", "mine")
    (root / "own/dvc.lock").unlink()
    refunds.git("rm", "--quiet", "-r", "--cached", "own")
    shutil.rmtree(root / "own")
    refunds.git("commit", "--quiet", "--message", "gone")
    assert refunds.rft("run", "--until", "policy").returncode == 0
    days = {"retention": {"work_days": 0, "logs_days": 0, "pages_days": 0, "cache_days": 0}}
    refunds.set_params(run=days)

    def theirs() -> set[str]:
        cache, names = root / ".dvc/cache", refunds.git("for-each-ref", "--format=%(refname)", "refs/exps").splitlines()
        entries = {path for path in (cache / "runs").glob("*/*/*") if b"cat in in" in path.read_bytes()}
        counted = cache / "files/md5" / OF_OUT[:2] / OF_OUT[2:]
        found = {*entries, *([counted] if counted.exists() else [])}
        return {name for name in names if name.endswith("/mine")} | set(map(str, found))

    before = theirs()
    assert len(before) == 3, before
    done = refunds.rft("runs", "gc", "--yes")
    assert done.returncode == 0, done.stderr
    assert theirs() == before


@pytest.mark.slow
def test_the_workspaces_file_names_the_ledger_and_keeps_what_people_wrote(refunds: Scripted) -> None:
    path = refunds.root / workspace.FILE
    path.write_text("# ours\n" + path.read_text())
    refunds.git("commit", "--quiet", "--all", "--message", "words")
    assert refunds.rft("run").returncode == 0
    approved = refunds.rft("approve", records.load_all(refunds.clone)[0].name, "--reason", "why", *people.by("Ada"))
    assert "rft.yaml names it now. Commit that file" in approved.stdout + approved.stderr
    found = workspace.read(refunds.root)
    assert found is not None
    assert found.ledger is not None
    assert found.ledger["genesis"] == book.read(refunds.clone).state.genesis
    assert found.agents == AGENTS
    assert path.read_text().startswith("# ours\n")
    assert not (refunds.root / "infra").exists()
    done = refunds.rft("run", "--clean-only", "--until", "policy")
    assert done.returncode == 0, done.stderr
    workspace.set_ledger(refunds.root, {"genesis": "0" * 64})
    assert path.read_text().count("ledger:") == 1
    assert "names the ledger 0000" in refunds.rft("champion").stderr or refunds.rft("champion").returncode == 2
