"""`rft gc`: what is past its retention goes, and never what a champion, a request, an unfinished run or the user needs; also through a kill -9.

Issue 10, item 6. Real Git, DVC and MLflow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ladder_clone
import pytest

from flows import cli
from rft import config
from rft.config import Retention
from rft.errors import UserError
from tasks import ledger, records, registry, retention, runs, stages, tracking
from tasks.artifacts import Revision
from tasks.clone import Clone
from tasks.dependencies import STAGES
from tasks.records import RunRecord

ALL = Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    """Three runs, each with bytes of its own: of the first nobody will need anything, the second is promoted, the third waits for approval."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("retention"))
        first = climb(scripted, "first")
        tracking.client(scripted.clone)
        second = climb(scripted, "second")
        registry.approve(scripted.clone, second, "Ada", "better")
        climb(scripted, "third")
        registry.reject(scripted.clone, first, "Ada", "too few")
    return scripted


def climb(scripted: ladder_clone.Scripted, word: str) -> RunRecord:
    """A recorded run whose policy and traffic are its own."""
    (scripted.script / "data/traffic/conversations.jsonl").write_text(word)
    (scripted.script / "data/policy/model.bin").write_text(f"policy of {word}")
    params = config.load(scripted.root / "params.yaml")
    settings = params.model_copy(update={"train": params.train.model_copy(update={"steps": 1 + len(records.load_all(scripted.clone))})})
    return ladder_clone.climb(scripted, train=settings.train)


@pytest.fixture
def here(template: ladder_clone.Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(template.root, tmp_path / "clone", symlinks=True)))


def three(clone: Clone) -> list[RunRecord]:
    """Oldest first; their names tell the minute only."""
    return sorted(records.load_all(clone), key=lambda record: record.started)


def collect(clone: Clone, keep: Retention = ALL) -> retention.Plan:
    with retention.alone(clone):
        todo = retention.plan(clone, keep)
        retention.carry_out(clone, todo, lambda done, total: None)
    return todo


def cached(clone: Clone) -> set[str]:
    return {path.parent.name + path.name for path in (clone.dvc_cache / "files/md5").glob("*/*")}


def needs(clone: Clone, record: RunRecord) -> set[str]:
    """Every object of a run."""
    at = Revision(clone, record.revision or "")
    folders = [out for out in at.outs.values() if out.is_folder]
    return {out.md5 for out in at.outs.values()} | {md5 for out in folders for _, md5 in at.files(out.path)}


def test_the_bytes_of_an_old_run_go_and_those_that_others_need_stay(here: Clone) -> None:
    first, second, third = three(here)
    before = cached(here)
    kept = needs(here, second) | needs(here, third)
    alone = needs(here, first) - kept
    assert alone
    refs = here.git("for-each-ref")
    told = (here.ledger).read_bytes()
    todo = collect(here)
    assert cached(here) == before - alone
    assert {item.kind for item in todo.items} == {"bytes"}
    assert here.git("for-each-ref") == refs, "never a revision"
    assert here.ledger.read_bytes() == told, "never the ledger"
    assert [bool(record.bytes_removed) for record in three(here)] == [True, False, False]
    assert any(f"run {second.name} is or was champion" in reason for reason in todo.kept)
    assert any(f"run {third.name} waits for approval" in reason for reason in todo.kept)
    assert collect(here).items == [], "a second call has nothing to do"
    assert registry.revisions(here) == {second.revision}, "and were the ledger another clone's, the registry would keep it"


def test_afterwards_people_can_do_what_they_could(here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Serve and roll back the champion; approve the request; look at the old run's page, or be told honestly why not."""
    first, second, third = three(here)
    collect(here)
    params = config.load(here.root / "params.yaml")
    with runs.start(here, runs.plan(here, params, registry.served(here, params))) as run:
        weights = run.shelf("champion") / "weights/model.bin"
        assert weights.read_bytes() == b"weights of train"
    assert registry.rollback(here, registry.model_name(params), "Ada", "complaints").run is None
    assert registry.approve(here, second, "Ada", "it was not us").after == "2"
    records.save(here, third.model_copy(update={"champion_version": 2}))
    assert registry.approve(here, records.find(here, third.name), "Ada", "better still").action == "promote"
    assert registry.rollback(here, registry.model_name(params), "Ada", "back").run == second.name
    assert registry.served(here, params).weights is not None

    monkeypatch.chdir(here.root)
    capsys.readouterr()
    assert cli.main(["report", first.name]) == 2
    said = capsys.readouterr().err
    assert "is past its retention: `rft gc` removed its bytes at" in said
    assert "run.retention.cache_days" in said
    assert cli.main(["report", second.name]) == 0


def test_what_a_user_put_under_dvc_stays_though_a_run_left_the_same_bytes(here: Clone) -> None:
    """Under an old commit of a branch, and, not committed yet, in the working tree."""
    first = three(here)[0]
    mine = Revision(here, first.revision or "").outs["data/traffic/conversations.jsonl"].md5
    for name, text in (("old.csv", "first"), ("new.csv", "first")):
        (here.root / name).write_text(text)
    stages.dvc(here.root, "add", "--quiet", "old.csv")
    here.git("add", "old.csv.dvc")
    here.git("commit", "--quiet", "-m", "a table")
    (here.root / "old.csv.dvc").unlink()
    here.git("commit", "--quiet", "-am", "no table")
    collect(here)
    assert mine in cached(here), "dvc gc --workspace would have removed it"
    here.git("checkout", "--quiet", "--orphan", "fresh", "HEAD")
    here.git("commit", "--quiet", "-m", "fresh")
    here.git("branch", "--quiet", "-D", "main")
    stages.dvc(here.root, "add", "--quiet", "new.csv")
    collect(here)
    assert mine in cached(here)
    (here.root / "new.csv.dvc").unlink()
    collect(here)
    assert mine not in cached(here), "nobody names it any more"


def test_an_unfinished_run_goes_on(template: ladder_clone.Scripted, here: Clone) -> None:
    """With its worktree, its work folder, its log and its finished stages, whatever their age."""
    params = config.load(here.root / "params.yaml")
    settings = params.model_copy(update={"train": params.train.model_copy(update={"steps": 9})})
    what = runs.plan(here, settings, registry.served(here, settings))
    with pytest.raises(KeyboardInterrupt), runs.start(here, what) as run:  # noqa: PT012
        for stage in [*STAGES][:3]:
            stages.repro(run.tree, stage, here.state, run.name, log=here.log(run.name, stage))
        raw = records.path(here, run.name).read_bytes()
        tree = shutil.copytree(run.tree, here.root.parent / "tree", symlinks=True)
        raise KeyboardInterrupt
    here.git("update-ref", "-d", f"refs/exps/{run.record.commit[:2]}/{run.record.commit[2:]}/{run.name}")
    here.git("worktree", "add", "--quiet", "--force", "--detach", str(run.tree), run.record.commit)
    shutil.copytree(tree, run.tree, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
    records.path(here, run.name).write_bytes(raw)
    work = folder(here, "train", run.name)
    other = folder(here, "prompt", None)
    todo = collect(here)
    assert any(f"run {run.name} is unfinished" in reason for reason in todo.kept)
    assert (work.exists(), other.exists(), run.tree.exists()) == (True, False, True)
    assert here.log(run.name, "traffic").exists()
    with runs.start(here, what) as again:
        assert (again.name, again.adopted) == (run.name, True)
        assert {stages.repro(again.tree, stage, here.state, again.name).how for stage in [*STAGES][:3]} == {"unchanged"}


def folder(clone: Clone, stage: str, run: str | None) -> Path:
    """Unfinished work, as a stage leaves it."""
    path = clone.state / "progress" / f"{stage}-{'0123456789abcdef'}"
    path.mkdir(parents=True)
    (path / "work.json").write_text(json.dumps({"stage": stage, "run": run}))
    (path / "state.pt").write_bytes(b"x" * 1000)
    return path


def test_worktrees_work_logs_and_pages_go_by_their_age(here: Clone) -> None:
    first, second, _ = three(here)
    old, young = folder(here, "train", "gone"), folder(here, "prompt", None)
    paths = {
        "old log": here.log(first.name, "train"),
        "young log": here.log(second.name, "train"),
        "by hand": here.log("by-hand", "train"),
        "old page": here.page(first.name),
        "champion's page": here.page(second.name),
        "drift": here.state / "cache/drift-1.json",
        "scratch": here.state / "tmpabc/index",
    }
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    for name in ("old log", "by hand", "old page", "champion's page", "drift", "scratch"):
        age(paths[name].parent, 31)
    age(old, 31)
    (here.worktrees / "of-nobody").mkdir(parents=True)
    keep = Retention(work_days=30, logs_days=30, pages_days=30, cache_days=None)
    assert {(item.kind, item.path.name) for item in _planned(here, Retention(work_days=32, logs_days=None, pages_days=32, cache_days=32))} == {
        ("worktrees", "of-nobody")
    }
    todo = collect(here, keep)
    assert [(item.kind, item.path.name) for item in todo.items] == [
        ("worktrees", "of-nobody"),
        ("work", old.name),
        ("work", "tmpabc"),
        ("logs", first.name),
        ("logs", "train.log"),
        ("pages", f"{first.name}.html"),
        ("pages", "drift-1.json"),
    ]
    assert "untouched for 31 days" in todo.items[1].why
    assert {name for name, path in paths.items() if path.exists()} == {"young log", "champion's page"}
    assert (old.exists(), young.exists(), list(here.worktrees.iterdir())) == (False, True, [])


def age(path: Path, days: float) -> None:
    for one in [path, *path.rglob("*")]:
        os.utime(one, (time.time() - days * 86400,) * 2)


def _planned(here: Clone, keep: Retention) -> list[retention.Item]:
    with retention.alone(here):
        return retention.plan(here, keep).items


def test_the_run_cache_forgets_what_is_gone_and_dvc_computes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real DVC: before, an equal run is restored; after, it runs again and nothing is in its way. What a kept run needs is restored still."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    params = config.load(scripted.root / "params.yaml")

    def run(seed: int, *names: str) -> list[str]:
        settings = params.model_copy(update={"policy": params.policy.model_copy(update={"seed": seed})})
        (scripted.script / "data/policy/model.bin").write_text(str(seed))
        what = runs.plan(scripted.clone, settings, registry.served(scripted.clone, settings))
        with runs.start(scripted.clone, what) as one:
            return [stages.repro(one.tree, name, scripted.clone.state, one.name).how for name in names]

    assert run(1, "policy") == ["ran"]
    assert run(2, "policy", "traffic") == ["ran", "ran"]
    assert run(1, "policy") == ["restored"]
    todo = collect(scripted.clone)
    assert {item.kind for item in todo.items} == {"bytes"}
    assert not any("run " in reason and "champion" in reason for reason in todo.kept)
    assert run(1, "policy") == ["ran"]
    assert run(2, "policy", "traffic") == ["restored", "restored"], "windows are compared with its traffic: its bytes stay"
    assert stages.dvc(scripted.root, "status").strip()


KILLED = """
import os, signal, sys
from pathlib import Path
from rft.config import Retention
from tasks import retention
from tasks.clone import Clone
clone, after = Clone(Path(sys.argv[1])), int(sys.argv[2])
def tell(done, total):
    if done == after:
        os.kill(os.getpid(), signal.SIGKILL)
with retention.alone(clone):
    retention.carry_out(clone, retention.plan(clone, Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0)), tell)
"""


def test_a_kill_in_the_middle_leaves_what_a_second_call_removes(here: Clone) -> None:
    first, second, third = three(here)
    kept = needs(here, second) | needs(here, third)
    folder(here, "train", None)
    expected = {item.path for item in _planned(here, ALL)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(here.root), str(len(expected) // 2)], cwd=ladder_clone.ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    left = {path for path in expected if path.exists()}
    assert 0 < len(left) < len(expected)
    assert {item.path for item in collect(here).items} == left
    assert [path for path in expected if path.exists()] == []
    assert kept <= cached(here)
    with pytest.raises(UserError, match="past its retention"):
        Revision(here, first.revision or "").read("data/traffic/conversations.jsonl")


def test_not_while_a_run_is_going_on(here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The issue's bad input: a clear message, and nothing lost. And no run begins while it looks."""
    params = config.load(here.root / "params.yaml")
    monkeypatch.chdir(here.root)
    before = cached(here)
    with runs.start(here, runs.plan(here, params, registry.served(here, params))) as run:
        assert cli.main(["gc", "--yes", "--set", "run.retention.cache_days=0"]) == 2
        said = capsys.readouterr().err
        assert f"error: run {run.name} is going on" in said
        assert f"Nothing was removed. Wait until it ends, or end it: rft cancel {run.name}" in said
    assert cached(here) == before
    with retention.alone(here):
        begun = threading.Event()
        what = runs.plan(here, params, registry.BEGINNING)

        def begin() -> None:
            with runs.start(here, what):
                begun.set()

        person = threading.Thread(target=begin)
        person.start()
        assert not begun.wait(0.3)
    person.join()
    assert begun.is_set()


class Terminal:
    def isatty(self) -> bool:
        return True


def test_it_says_before_it_deletes(here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(here.root)
    before = cached(here)
    assert cli.main(["gc"]) == 0
    assert "Nothing is past its retention." in capsys.readouterr().out, "all of it is young"
    assert cli.main(["gc", "--set", "run.retention.cache_days=0"]) == 0
    said = capsys.readouterr().out
    first, second, third = three(here)
    for words in ("files in DVC's cache", f"of run {first.name}", f"kept: run {second.name} is or was champion", f"kept: run {third.name} waits"):
        assert words in said
    assert "Nothing was removed. To remove it: " in said
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda question: "no")
    assert cli.main(["gc", "--set", "run.retention.cache_days=0"]) == 0
    assert cached(here) == before
    assert cli.main(["gc", "--yes", "--set", "run.retention.cache_days=0"]) == 0
    assert "Removed " in capsys.readouterr().out
    assert cached(here) < before
    assert cli.main(["gc", "--set", "run.retention.cash_days=0"]) == 2
    assert "unknown key 'run.retention.cash_days'. Did you mean 'cache_days'?" in capsys.readouterr().err


def test_a_cache_that_others_share_is_left_alone(here: Clone, tmp_path: Path) -> None:
    shutil.move(here.dvc_cache, tmp_path / "shared")
    (here.root / ".dvc/config.local").write_text(f'[cache]\n    dir = "{tmp_path / "shared"}"\n')
    before = cached(here)
    todo = collect(here)
    assert any("lies outside of this clone" in reason for reason in todo.kept)
    assert cached(here) == before


def test_a_request_waits_though_the_record_of_its_run_is_lost(here: Clone) -> None:
    """`rft` itself says of a damaged record: delete the file, the revision is safe. Then its bytes must be, too."""
    third = three(here)[2]
    kept = needs(here, third)
    records.path(here, third.name).unlink()
    collect(here)
    assert kept <= cached(here)


def test_a_promotion_that_was_cut_off_keeps_its_bytes(here: Clone) -> None:
    """It is finished at the next look at the champion, and needs them then."""
    first = three(here)[0]
    act = ledger.acts(here)[0].model_copy(update={"id": "x", "run": first.name, "revision": first.revision})
    ledger.announce(here, act)
    assert collect(here).items == []
