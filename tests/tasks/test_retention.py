"""`rft runs gc`: what is past its retention goes, and never what a champion, a request, an
unfinished run or the user needs; also through a kill -9.

Issue 10, item 6. Real Git, DVC and MLflow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from rft import config, progress
from rft.config import Retention
from rft.errors import Stopped, UserError
from tasks import cancel, retention
from tasks.dependencies import STAGES
from tasks.display import tracking
from tasks.ledger import book
from tasks.promotion import acts, agents, champions
from tasks.runs import by_hand, champion, records, repro
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.console import Lines
from tasks.runs.records import RunRecord

pytestmark = pytest.mark.story  # a minute together

ALL = Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    """Three runs, each with bytes of its own: of the first nobody will need anything, the second is
    promoted, the third waits for approval."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("retention"))
        gated = scripted.script / "data/gate/decision.json"
        promoting = gated.read_text()
        gated.write_text(promoting.replace('"promote"', '"reject"'))
        run_ladder(scripted, "first")
        gated.write_text(promoting)
        tracking.client(scripted.clone)
        second = run_ladder(scripted, "second")
        people.approve(scripted.clone, second.name)
        run_ladder(scripted, "third")
    return scripted


def run_ladder(scripted: ladder_clone.Scripted, word: str) -> RunRecord:
    """A recorded run whose policy and traffic are its own, younger than those before it."""
    wait_for_a_new_second(scripted.clone)
    (scripted.script / "data/traffic/current_profile.json").write_text(word)
    (scripted.script / "data/policy/model.bin").write_text(f"policy of {word}")
    params = config.load(scripted.root / "params.yaml")
    settings = params.model_copy(
        update={"train": params.train.model_copy(update={"steps": 1 + len(records.load_all(scripted.clone))})}
    )
    return ladder_clone.run_ladder(scripted, train=settings.train)


def wait_for_a_new_second(clone: Clone) -> None:
    """Records say in whole seconds which of two runs is older, and a scripted run takes less."""
    while records.now() in {record.started for record in records.load_all(clone)}:
        time.sleep(0.05)


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
    told = book.read(here).head
    todo = collect(here)
    assert cached(here) == before - alone
    assert {item.kind for item in todo.items} == {"bytes", "work"}, "and snapshots, which are made again"
    assert here.git("for-each-ref") == refs, "never a revision"
    assert book.read(here, reverify=True).head == told, "never the ledger"
    assert [bool(record.bytes_removed) for record in three(here)] == [True, False, False]
    assert any(f"run {second.name} is or was champion" in reason for reason in todo.kept)
    assert (
        f"run {third.name} waits for approval. To let its bytes go: rft reject {third.name} --reason TEXT" in todo.kept
    )
    assert collect(here).items == [], "a second call has nothing to do"


def test_afterwards_people_can_do_what_they_could(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serve and roll back the champion; approve the request; look at the old run's page, or be told
    honestly why not."""
    first, second, third = three(here)
    collect(here)
    params = config.load(here.root / "params.yaml")
    with runs.start(here, runs.plan(here, params, champions.of_params(here, params))) as run:
        weights = run.stage_folder("champion") / "weights/model.bin"
        assert weights.read_bytes() == b"weights of train"
    model, ada = champions.model_name(params), people.signer("Ada")
    assert people.approve(here, third.name).promoted
    back = acts.rollback(here, model, ada, "complaints").to
    assert back is not None
    assert back.run == second.name
    assert acts.rollback(here, model, ada, "more of them").to is None
    assert people.approve(here, second.name).promoted
    assert champions.of_params(here, params).weights is not None

    monkeypatch.chdir(here.root)
    capsys.readouterr()
    assert cli.main(["runs", "report", first.name]) == 2
    output = capsys.readouterr().err
    assert "is past its retention: `rft runs gc` removed its bytes at" in output
    assert "run.retention.cache_days" in output
    assert cli.main(["runs", "report", second.name]) == 0


def test_what_a_user_put_under_dvc_stays_though_a_run_left_the_same_bytes(here: Clone) -> None:
    """Under an old commit of a branch, and, not committed yet, in the working tree."""
    first = three(here)[0]
    mine = Revision(here, first.revision or "").outs["data/traffic/current_profile.json"].md5
    for name, text in (("old.csv", "first"), ("new.csv", "first")):
        (here.root / name).write_text(text)
    repro.dvc(here.root, "add", "--quiet", "old.csv")
    here.git("add", "old.csv.dvc")
    here.git("commit", "--quiet", "-m", "a table")
    (here.root / "old.csv.dvc").unlink()
    here.git("commit", "--quiet", "-am", "no table")
    collect(here)
    assert mine in cached(here), "dvc gc --workspace would have removed it"
    here.git("checkout", "--quiet", "--orphan", "fresh", "HEAD")
    here.git("commit", "--quiet", "-m", "fresh")
    here.git("branch", "--quiet", "-D", "main")
    repro.dvc(here.root, "add", "--quiet", "new.csv")
    collect(here)
    assert mine in cached(here)
    (here.root / "new.csv.dvc").unlink()
    collect(here)
    assert mine not in cached(here), "nobody names it any more"


def test_an_unfinished_run_goes_on(template: ladder_clone.Scripted, here: Clone) -> None:
    """With its worktree, its work folder, its log and its finished stages, whatever their age."""
    params = config.load(here.root / "params.yaml")
    settings = params.model_copy(update={"train": params.train.model_copy(update={"steps": 9})})
    what = runs.plan(here, settings, champions.of_params(here, settings))
    with pytest.raises(KeyboardInterrupt), runs.start(here, what) as run:  # noqa: PT012
        for stage in [*STAGES][:3]:
            repro.repro(run.tree, stage, here.state, run.name, log=here.log(run.name, stage))
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
        assert {repro.repro(again.tree, stage, here.state, again.name).how for stage in [*STAGES][:3]} == {"unchanged"}


def test_the_work_of_a_paused_run_stays_though_another_run_worked_there_later(
    here: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only gate.min_gain differs: both runs share the work folder of the policy. The second went on
    with it and ended; the first waits."""
    monkeypatch.setenv("RFT_STATE", str(here.state))
    monkeypatch.chdir(here.root)
    params = config.load(here.root / "params.yaml")

    def cut_off(work: Path, stage_folder: Path) -> None:
        (work / "checkpoint").write_text("step 5")
        raise Stopped("after step 5 of 20")

    def work(name: str) -> None:
        monkeypatch.setenv("RFT_RUN", name)
        progress.once("policy", params, cut_off)

    with pytest.raises(Stopped), runs.start(here, runs.plan(here, params, champions.of_params(here, params))) as first:
        work(first.name)
    settings = params.model_copy(update={"gate": params.gate.model_copy(update={"min_gain": 0.31})})
    plan = runs.plan(here, settings, champions.of_params(here, settings))
    with pytest.raises(KeyboardInterrupt), runs.start(here, plan) as second:  # noqa: PT012
        with pytest.raises(Stopped):
            work(second.name)
        raise KeyboardInterrupt
    with pytest.raises(Stopped):
        work("")  # by hand
    assert [records.find(here, one.name).state for one in (first, second)] == ["paused", "interrupted"]
    (found,) = progress.works(here.state)
    collect(here)
    assert (found.path / "checkpoint").exists()
    cancel.cancel(here, records.find(here, first.name), force=False, timeout_s=60, tell=lambda line: None)
    collect(here)
    assert not found.path.exists(), "nobody goes on from it any more"


def test_not_while_a_stage_runs_by_hand_and_none_begins_meanwhile(here: Clone) -> None:
    """One that keeps no work, such as traffic: the worktree and what it writes to the cache are in
    danger all the same."""
    params = config.load(here.root / "params.yaml")
    begun: list[str] = []

    class Person(Lines):
        """Who collects while the stage runs."""

        def begin(self, stage: str) -> None:
            with pytest.raises(
                UserError,
                match=r"a stage is being run by hand in this clone \(`rft stage run`\)\. Nothing was removed\.",
            ):
                collect(here)
            begun.append(stage)

    token = repro.listener.set(Person())
    try:
        by_hand.run_stage(here, params, "traffic")
    finally:
        repro.listener.reset(token)
    assert begun == ["traffic"]
    with retention.alone(here), pytest.raises(UserError, match=r"`rft runs gc` is at work in it\. Wait for it"):
        by_hand.run_stage(here, params, "traffic")


KEEPS_WORK = """
from rft import progress

def run(params):
    progress.once("policy", params, lambda work, stage_folder: (stage_folder / "report.json").write_text("{}"))
"""


def test_a_stage_by_hand_clears_what_was_finished_a_week_ago(here: Clone) -> None:
    """It says that it is in no run by an empty name, which was taken for one."""
    params = config.load(here.root / "params.yaml")
    (here.root / "rft/stages/policy.py").write_text(KEEPS_WORK)
    old, young = folder(here, "train", None), folder(here, "prompt", None)
    for path in (old, young):
        (path / "complete.json").write_text("{}")
    age(old, 8)
    by_hand.run_stage(here, params, "policy")
    assert (old.exists(), young.exists()) == (False, True)


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
    assert {
        (item.kind, item.path.name)
        for item in _planned(here, Retention(work_days=32, logs_days=None, pages_days=32, cache_days=32))
    } == {("worktrees", "of-nobody")}
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


def test_the_run_cache_forgets_what_is_gone_and_dvc_computes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real DVC: before, an equal run is restored; after, it runs again and nothing is in its way.
    What a kept run needs is restored still."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    params = config.load(scripted.root / "params.yaml")

    def run(seed: int, *names: str) -> list[str]:
        settings = params.model_copy(update={"policy": params.policy.model_copy(update={"seed": seed})})
        (scripted.script / "data/policy/model.bin").write_text(str(seed))
        what = runs.plan(scripted.clone, settings, champions.of_params(scripted.clone, settings))
        with runs.start(scripted.clone, what) as one:
            return [repro.repro(one.tree, name, scripted.clone.state, one.name).how for name in names]

    assert run(1, "policy") == ["ran"]
    assert run(2, "policy", "traffic") == ["ran", "ran"]
    assert run(1, "policy") == ["restored"]
    todo = collect(scripted.clone)
    assert {item.kind for item in todo.items} == {"bytes", "work"}, "and snapshots, which are made again"
    assert not any("run " in reason and "champion" in reason for reason in todo.kept)
    assert run(1, "policy") == ["ran"]
    assert run(2, "policy", "traffic") == ["restored", "restored"], (
        "windows are compared with its traffic: its bytes stay"
    )
    assert repro.dvc(scripted.root, "status").strip()


KILLED = """
import os, signal, sys
from pathlib import Path
from rft.config import Retention
from tasks import retention
from tasks.runs.clone import Clone
clone, after = Clone(Path(sys.argv[1])), int(sys.argv[2])
def tell(done, total):
    if done == after:
        os.kill(os.getpid(), signal.SIGKILL)
with retention.alone(clone):
    at_once = Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0)
    retention.carry_out(clone, retention.plan(clone, at_once), tell)
"""


def test_a_kill_in_the_middle_leaves_what_a_second_call_removes(here: Clone) -> None:
    first, second, third = three(here)
    kept = needs(here, second) | needs(here, third)
    folder(here, "train", None)
    expected = {item.path for item in _planned(here, ALL)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(here.root), str(len(expected) // 2)], cwd=ladder_clone.ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    left = {path for path in expected if path.exists()}
    assert 0 < len(left) < len(expected)
    assert {item.path for item in collect(here).items} == left
    assert [path for path in expected if path.exists()] == []
    assert kept <= cached(here)
    with pytest.raises(UserError, match="past its retention"):
        Revision(here, first.revision or "").read("data/traffic/current_profile.json")


def test_not_while_a_run_is_going_on(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The issue's bad input: a clear message, and nothing lost. And no run begins while it
    looks."""
    params = config.load(here.root / "params.yaml")
    monkeypatch.chdir(here.root)
    before = cached(here)
    with runs.start(here, runs.plan(here, params, champions.of_params(here, params))) as run:
        assert cli.main(["runs", "gc", "--yes", "--set", "run.retention.cache_days=0"]) == 2
        output = capsys.readouterr().err
        assert f"error: run {run.name} is going on" in output
        assert re.search(
            rf"Nothing was removed\. Wait until it ends, or end it: \S*rft runs cancel {run.name}\n", output
        )
    assert cached(here) == before
    with retention.alone(here):
        begun = threading.Event()
        what = runs.plan(here, params, champion.BEGINNING)

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


def test_it_says_before_it_deletes(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here.root)
    before = cached(here)
    assert cli.main(["runs", "gc"]) == 0
    assert "Nothing is past its retention." in capsys.readouterr().out, "all of it is young"
    assert cli.main(["runs", "gc", "--set", "run.retention.cache_days=0"]) == 0
    output = capsys.readouterr().out
    first, second, third = three(here)
    for phrase in (
        "files in DVC's cache",
        f"of run {first.name}",
        f"kept: run {second.name} is or was champion",
        f"kept: run {third.name} waits",
    ):
        assert phrase in output
    assert "Nothing was removed. To remove it: " in output
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda question: "no")
    assert cli.main(["runs", "gc", "--set", "run.retention.cache_days=0"]) == 0
    assert cached(here) == before
    assert cli.main(["runs", "gc", "--yes", "--set", "run.retention.cache_days=0"]) == 0
    assert "Removed " in capsys.readouterr().out
    assert cached(here) < before
    assert cli.main(["runs", "gc", "--set", "run.retention.cash_days=0"]) == 2
    assert "unknown key 'run.retention.cash_days'. Did you mean 'cache_days'?" in capsys.readouterr().err


def test_a_cache_that_others_share_is_left_alone(here: Clone, tmp_path: Path) -> None:
    shutil.move(here.dvc_cache, tmp_path / "shared")
    (here.root / ".dvc/config.local").write_text(f'[cache]\n    dir = "{tmp_path / "shared"}"\n')
    before = cached(here)
    todo = collect(here)
    assert any("is outside of this clone" in reason for reason in todo.kept)
    assert cached(here) == before


def test_a_request_waits_though_the_record_of_its_run_is_lost(here: Clone) -> None:
    """`rft` itself says of a damaged record: delete the file, the revision is safe. Then its bytes
    must be, too."""
    third = three(here)[2]
    kept = needs(here, third)
    records.path(here, third.name).unlink()
    collect(here)
    assert kept <= cached(here)


def test_the_beginning_and_its_doctor_keep_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the beginning is champion its base policy stays, though a newer run ended after
    traffic; and what gc removed is not a fault of the settings."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a", "reject")
    params = config.load(scripted.root / "params.yaml")
    other = params.policy.model_copy(update={"seed": 7})
    (scripted.script / "data/policy/model.bin").write_text("another policy")
    old = ladder_clone.run_ladder(scripted, policy=other)
    measured = run_ladder(scripted, "measured")
    (scripted.script / "data/traffic/current_profile.json").write_text("newest")
    settings = params.model_copy(update={"policy": params.policy.model_copy(update={"seed": 8})})
    wait_for_a_new_second(scripted.clone)
    what = runs.plan(scripted.clone, settings, champions.of_params(scripted.clone, settings))
    with pytest.raises(KeyboardInterrupt), runs.start(scripted.clone, what) as run:  # noqa: PT012
        repro.repro(run.tree, "traffic", scripted.clone.state, run.name)
        raise KeyboardInterrupt
    assert "data/traffic/report.json" in Revision(scripted.clone, run.record.revision or "").outs
    monkeypatch.chdir(scripted.root)
    assert cli.main(["runs", "gc", "--yes", "--set", "run.retention.cache_days=0"]) == 0
    assert f"kept: run {measured.name} holds the base policy of tiny's beginning" in capsys.readouterr().out
    removed = {record.name: bool(record.bytes_removed) for record in three(scripted.clone)}
    assert removed == {old.name: True, measured.name: False, run.name: False}
    agent = agents.find(scripted.clone, "champion")
    assert agent.run == measured.name
    with agents.laid_out(agent) as tree:
        assert (tree / "data/policy/model.bin").read_text() == "policy of measured"

    assert cli.main(["doctor", "--only", "template", "--json", "--set", "policy.seed=7"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (found["template"]["status"], "no model yet" in found["template"]["words"]) == ("skipped", True), (
        "its own bytes are gone: build it"
    )


KILLED_AT_WORK = """
import os, signal, sys
from pathlib import Path
from rft import config
from tasks.promotion import agents
from tasks.runs import by_hand as byhand, repro as stages
from tasks.runs.clone import Clone
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
clone = Clone(Path(sys.argv[1]))
if sys.argv[2] == "agent":
    with agents.laid_out(agents.find(clone, "champion")):
        die()
stages.repro = die
byhand.run_stage(clone, config.load(clone.root / "params.yaml"), "policy")
"""


def test_what_a_killed_play_or_stage_left_goes_and_what_one_uses_stays(here: Clone) -> None:
    """A whole model lies in each: `rft play`, `rft export` and `rft stage run` lay an agent or a
    worktree out in .rft."""
    for what in ("agent", "stage"):
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT_WORK, str(here.root), what], cwd=ladder_clone.ROOT, check=False
        )
        assert done.returncode == -signal.SIGKILL
    [left] = here.state.glob("agent-*")
    hand = here.state / "by-hand"
    assert list(left.rglob("data/policy/report.json"))
    assert (hand / "tree/params.yaml").exists()
    young = Retention(work_days=1, logs_days=None, pages_days=None, cache_days=None)
    assert _planned(here, young) == []
    for path in (left, hand):
        age(path, 2)
    with records.held(by_hand.lock(here)), pytest.raises(UserError, match="a stage is being run by hand"):
        _planned(here, young)
    with agents.laid_out(agents.find(here, "champion")) as tree:
        age(tree.parent, 2)
        assert [(item.kind, item.path) for item in collect(here, young).items] == [("work", left), ("work", hand)]
        assert tree.is_dir()
    assert not left.exists()
    assert not hand.exists()
    assert "by-hand" not in here.git("worktree", "list")


def test_a_play_that_ends_while_gc_looks_is_no_error(here: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rft runs gc` came to a FileNotFoundError, at whatever age. And it locks no folder that is
    young: its owner would find the lock taken."""
    young = here.state / "agent-young"
    young.mkdir()
    agents.scratch_lock(young).touch()
    monkeypatch.setattr(retention, "_scratch", lambda clone: iter([clone.state / "agent-gone", young]))
    monkeypatch.setattr(retention, "_is_free", lambda lock: pytest.fail(f"{lock} was tried"))
    assert _planned(here, Retention(work_days=1, logs_days=None, pages_days=None, cache_days=None)) == []
