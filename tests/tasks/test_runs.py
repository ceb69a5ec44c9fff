"""A run: its worktree, the user's edits, adoption after a kill, and the revision that it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import ladder_clone
import pytest
import scripted_windows
import yaml

from rft import config, stage_files
from rft.errors import ConfigError, UserError
from rft.traffic import reading
from tasks.promotion import champions
from tasks.runs import clone, records
from tasks.runs import repro as stages
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.run import Run


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def scripted(tmp_path: Path) -> ladder_clone.Scripted:
    return ladder_clone.make(tmp_path / "a")


def plan(scripted: ladder_clone.Scripted, window: Path | None = None, clean_only: bool = False) -> runs.Plan:
    params = config.load(scripted.root / "params.yaml")
    return runs.plan(scripted.clone, params, champions.of_params(scripted.clone, params), window, clean_only)


def repro(run: Run, stage: str) -> str:
    return stages.repro(
        run.tree, stage, run.clone.state, run.name, note_group=lambda group: runs.note_group(run, group)
    ).how


@pytest.mark.slow
def test_a_run_is_recorded_and_leaves_the_clone_as_it_was(scripted: ladder_clone.Scripted) -> None:
    before = scripted.git("rev-parse", "HEAD")
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert [repro(run, "traffic"), repro(run, "drift")] == ["ran", "ran"]
    assert run.record.state == "finished"
    assert scripted.git("status", "--porcelain") == ""
    assert scripted.git("rev-parse", "HEAD") == before
    assert scripted.git("worktree", "list").count("\n") == 0
    assert not run.tree.exists()
    at = Revision(scripted.clone, run.record.revision or "")
    assert scripted.git("rev-parse", f"{at.commit}^") == before
    changed = scripted.git("diff", "--name-only", before, at.commit).split("\n")
    assert [name for name in changed if not name.startswith("data/engine/")] == [
        "data/environment.json",
        "dvc.lock",
        "params.yaml",
    ], "nothing else: no traffic, no files of stages"
    params = yaml.safe_load(at.file("params.yaml") or b"")
    assert params["traffic"]["file"] == "data/inbox/window.jsonl"
    assert len(params["traffic"]["sha256"]) == 64
    assert params["train"]["lr"] == config.Train().lr, "every value is written out"
    assert at.read("data/drift/report.json") == (scripted.script / "data/drift/report.json").read_bytes()
    assert run.name in stages.dvc(scripted.root, "exp", "list", "--all-commits"), "DVC reads our revisions"
    with runs.start(scripted.clone, plan(scripted)) as again:
        assert [repro(again, "traffic"), repro(again, "drift")] == ["restored", "restored"]
    assert again.name != run.name
    assert scripted.ran() == ["traffic", "drift"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a, b", "it's #1", """'"'"""])
def test_the_name_of_a_folder_may_hold_what_means_something_in_settings(tmp_path: Path, name: str) -> None:
    """DVC took a part of the name for its cache, outside of the clone, or none at all."""
    scripted = ladder_clone.make(tmp_path / name)
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert repro(run, "traffic") == "ran"
    assert Revision(scripted.clone, run.record.revision or "").read("data/traffic/report.json")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_users_edits_travel_and_make_the_run_dirty(scripted: ladder_clone.Scripted) -> None:
    (scripted.root / "recipes/tiny/tools.py").write_text("# edited\n")
    (scripted.root / "recipes/tiny/new file.bin").write_bytes(bytes(range(256)))
    (scripted.root / "recipes/tiny/demonstrations.py").unlink()
    (scripted.root / "secret.key").write_text("ignored by Git, so it stays here")
    scripted.set_params(train={"steps": 3})
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert (run.tree / "recipes/tiny/tools.py").read_text() == "# edited\n"
        assert (run.tree / "recipes/tiny/new file.bin").read_bytes() == bytes(range(256))
        assert not (run.tree / "recipes/tiny/demonstrations.py").exists()
        assert not (run.tree / "secret.key").exists()
        assert yaml.safe_load((run.tree / "params.yaml").read_text())["train"]["steps"] == 3
    assert run.record.dirty
    assert run.record.edited == ["recipes/tiny/demonstrations.py", "recipes/tiny/tools.py", "recipes/tiny/new file.bin"]
    at = Revision(scripted.clone, run.record.revision or "")
    assert at.file("recipes/tiny/tools.py") == b"# edited\n"
    assert at.file("recipes/tiny/demonstrations.py") is None
    with pytest.raises(UserError, match=r"uncommitted work .*demonstrations.py.* Commit it"):
        plan(scripted, clean_only=True)
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "-m", "mine")
    scripted.set_params(train={"steps": 4})
    assert not plan(scripted, clean_only=True).edits.dirty, "settings are recorded with every run: they are not an edit"
    (scripted.root / "infra").mkdir(exist_ok=True)
    (scripted.root / "infra/ledger.yaml").write_text("genesis: null\n")
    assert not plan(scripted, clean_only=True).edits.dirty, "which ledger it is says nothing about a run"


def test_a_declared_secret_is_not_recorded(scripted: ladder_clone.Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_KEY", "hunter2-hunter2")
    scripted.set_params(tools={"headers": {"Authorization": "env:TOOL_KEY"}})
    (scripted.root / "notes.txt").write_text("the key is hunter2-hunter2\n")
    with (
        pytest.raises(UserError, match=r"notes\.txt holds the value of the secret TOOL_KEY") as refused,
        runs.start(scripted.clone, plan(scripted)),
    ):
        pass
    assert "hunter2" not in str(refused.value)
    assert records.load_all(scripted.clone) == []
    assert scripted.git("worktree", "list").count("\n") == 0
    (scripted.root / "notes.txt").unlink()
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert "hunter2" not in (run.tree / "params.yaml").read_text()


def test_every_secret_that_is_not_set_is_named_before_a_run(scripted: ladder_clone.Scripted) -> None:
    scripted.set_params(tools={"headers": {"Authorization": "env:TOOL_KEY", "X-Key": "env:OTHER_KEY"}})
    with pytest.raises(ConfigError, match=r"not in the environment: OTHER_KEY, TOOL_KEY\. Export them"):
        plan(scripted)


@pytest.mark.slow
def test_a_run_that_fails_is_recorded_too(scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    """Its error is told by whoever catches it, and not among the stage's lines as well."""
    (scripted.script / "fail-drift").write_text("no disk")
    with pytest.raises(stages.StageFailed):  # noqa: PT012, SIM117 - the run must be left by the failure for its end to be recorded
        with runs.start(scripted.clone, plan(scripted)) as run:
            repro(run, "traffic")
            repro(run, "drift")
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.message) == ("failed", "stage drift: no disk")
    assert "no disk" not in capsys.readouterr().out
    assert Revision(scripted.clone, record.revision or "").read("data/traffic/report.json") is not None
    with pytest.raises(KeyboardInterrupt), runs.start(scripted.clone, plan(scripted)):
        raise KeyboardInterrupt
    assert [one.state for one in records.load_all(scripted.clone)] == ["failed", "interrupted"]


DRIVER = """
import os, signal, sys
from pathlib import Path
from rft import config
from tasks.promotion import champions
from tasks.runs import run as runs, repro as stages
from tasks.runs.clone import Clone
root = Path(sys.argv[1])
clone, params = Clone(root), config.load(root / "params.yaml")
with runs.start(clone, runs.plan(clone, params, champions.of_params(clone, params))) as run:
    stages.repro(run.tree, "traffic", clone.state, run.name)
    print(run.name, flush=True)
    sys.stdin.readline()
"""


def other_process(scripted: ladder_clone.Scripted) -> tuple[subprocess.Popen[str], str]:
    """A driver in another process, in the middle of its run."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(scripted.root)],
        cwd=ladder_clone.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout
    return driver, next(line for line in iter(driver.stdout.readline, "") if not line.startswith(("[", " "))).strip()


@pytest.mark.slow
def test_a_killed_run_is_adopted_and_another_is_cleared_away(scripted: ladder_clone.Scripted) -> None:
    driver, name = other_process(scripted)
    with driver:
        with pytest.raises(UserError, match=f"run {name}, with this very commit.* is going on in another process"):
            runs.start(scripted.clone, plan(scripted)).__enter__()
        driver.send_signal(signal.SIGKILL)
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert (run.name, run.adopted) == (name, True)
        assert [repro(run, "traffic"), repro(run, "drift")] == ["unchanged", "ran"]
    assert scripted.ran() == ["traffic", "drift"]

    driver, second = other_process(scripted)
    with driver:
        driver.send_signal(signal.SIGKILL)
    scripted.set_params(train={"steps": 3})
    with runs.start(scripted.clone, plan(scripted)) as run:
        assert not run.adopted
    states = {record.name: record.state for record in records.load_all(scripted.clone)}
    assert states == {name: "finished", second: "killed", run.name: "finished"}
    assert all(record.revision for record in records.load_all(scripted.clone))
    assert list(scripted.clone.worktrees.iterdir()) == []


def test_a_crash_between_revision_and_record_is_healed(scripted: ladder_clone.Scripted) -> None:
    with runs.start(scripted.clone, plan(scripted)) as run:
        pass
    records.save(scripted.clone, run.record.model_copy(update={"revision": None}))
    (scripted.clone.worktrees / "of-nobody").mkdir()
    assert runs.clear(scripted.clone) == [run.name]
    assert records.find(scripted.clone, run.name).revision == run.record.revision
    assert list(scripted.clone.worktrees.iterdir()) == []


def test_windows_and_what_cannot_travel(scripted: ladder_clone.Scripted, tmp_path: Path) -> None:
    elsewhere = tmp_path / "week 7.jsonl"
    rows = [ladder_clone.small(number) for number in range(60)]
    scripted_windows.write(elsewhere, rows)
    with runs.start(scripted.clone, plan(scripted, elsewhere)) as run:
        assert [each.conversation_id for each in reading.conversations(run.tree / stage_files.SNAPSHOT)] == [
            row["conversation_id"] for row in rows
        ]
    assert run.record.window == str(elsewhere)
    scripted_windows.write(scripted.root / "window in the tree.jsonl", rows)
    inside = plan(scripted, scripted.root / "window in the tree.jsonl")
    assert not inside.edits.dirty, "a window is not an edit, wherever it lies"
    with runs.start(scripted.clone, inside) as run:
        pass
    assert Revision(scripted.clone, run.record.revision or "").file("window in the tree.jsonl") is None
    with pytest.raises(UserError, match=r"there is no such file\. Set traffic\.file"):
        plan(scripted, tmp_path / "missing.jsonl")
    (scripted.root / "inner/.git").mkdir(parents=True)
    scripted.git("init", "--quiet", "inner")
    with pytest.raises(UserError, match="inner/ is a Git repository inside this one"):
        plan(scripted)
    (scripted.root / "inner").rename(tmp_path / "inner")
    with (scripted.root / "model.bin").open("wb") as file:
        file.truncate(60 * 2**20)
    with pytest.raises(UserError, match=r"model\.bin \(60 MiB\) is untracked.*dvc add"):
        plan(scripted)


def test_where_no_run_can_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not inside a Git repository"):
        clone.find()
    clone.git(tmp_path, "init", "--quiet")
    with pytest.raises(UserError, match=r"has no dvc\.yaml"):
        clone.find()
    (tmp_path / ".dvc").mkdir()
    for name in ("dvc.yaml", "params.yaml", ".dvc/config"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="no commit yet"):
        clone.find()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="git is not installed"):
        clone.find()


def test_a_clone_in_which_nothing_is_checked_out_is_told_what_to_check_out(
    scripted: ladder_clone.Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N17: a bare repository whose HEAD names another branch than was pushed."""
    bare, here = tmp_path / "bare.git", tmp_path / "empty"
    scripted.git("init", "--quiet", "--bare", "--initial-branch", "master", str(bare))
    scripted.git("push", "--quiet", str(bare), "HEAD:refs/heads/main", "HEAD:refs/heads/aside")
    scripted.git("clone", "--quiet", str(bare), str(here))
    monkeypatch.chdir(here)
    with pytest.raises(UserError, match=r"is empty: the remote's HEAD names a branch .* checkout main"):
        clone.find()


def test_a_run_is_found_by_any_unique_part_of_its_name(scripted: ladder_clone.Scripted) -> None:
    with runs.start(scripted.clone, plan(scripted)) as one:
        pass
    scripted.set_params(train={"steps": 3})
    with runs.start(scripted.clone, plan(scripted)) as two:
        pass
    assert records.find(scripted.clone, one.name).name == one.name
    assert records.find(scripted.clone, two.name[-4:]).name == two.name
    with pytest.raises(UserError, match="could be any of"):
        records.find(scripted.clone, "20")
    with pytest.raises(UserError, match="no run named 'nothing'"):
        records.find(scripted.clone, "nothing")
    message = scripted.git("log", "-1", "--format=%b", two.record.revision or "")
    assert json.loads(message)["name"] == two.name


def test_two_runs_of_one_minute_are_read_in_the_order_in_which_they_began(scripted: ladder_clone.Scripted) -> None:
    began = {"20260302-0800-ffff": "2026-03-02T08:00:10Z", "20260302-0800-aaaa": "2026-03-02T08:00:50Z"}
    for name, started in began.items():
        record = records.RunRecord(
            name=name,
            key="k",
            commit="c" * 40,
            edits_sha256=None,
            champion_version=0,
            window="w",
            inputs=[],
            started=started,
            started_by="Ada",
        )
        records.save(scripted.clone, record)
    assert [record.name for record in records.load_all(scripted.clone)] == list(began)
