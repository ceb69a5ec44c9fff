"""A stop in order: at run.max_hours or by `rft runs cancel`, at a checkpoint, in every stage that
takes minutes; and the same bytes after going on.

Issue 10, item 6.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import ladder_clone
import people
import pytest
import yaml

from flows import cli
from rft import config, stopping
from rft.errors import ConfigError, Stopped, UserError
from tasks import cancel, retention, stage_runner
from tasks.dependencies import STAGES
from tasks.promotion import agents, champions
from tasks.runs import records
from tasks.runs import repro as stages
from tasks.runs import run as runs
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord
from tasks.runs.run import Run
from tests import tiny_recipe
from tests.ladder import SECTIONS, again, inside, params, run, stage_hashes


# -- in the stages ---------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_warm_start_stops_after_a_step_and_ends_with_the_same_bytes(
    tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = {"demonstrations": 32, "steps": 9, "batch": 2, "checkpoint_every": 4}
    settings = params(ladder_recipe, policy={"architecture": SECTIONS["policy"]["architecture"], "warm_start": warm})
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    with inside(tmp_path / "whole"):
        run("policy", settings)
    with inside(tmp_path / "stopped"):
        for step in (1, 2):
            monkeypatch.setenv(stopping.DEADLINE, str(time.time() - 1))
            with pytest.raises(Stopped, match=rf"after step {step} of 9 of the warm start: run\.max_hours is spent"):
                run("policy", settings)
        monkeypatch.delenv(stopping.DEADLINE)
        run("policy", settings)
    assert stage_hashes(tmp_path / "stopped", "policy") == stage_hashes(tmp_path / "whole", "policy")


@pytest.mark.slow
def test_training_stops_after_a_step_and_ends_with_the_same_bytes(
    ladder: Path,
    tmp_path: Path,
    ladder_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At a step without a checkpoint of its own, and by the file that `rft runs cancel` writes."""
    monkeypatch.setenv(stopping.RUN, "run-7")
    file = stopping.request(tmp_path / ".rft", "run-7")
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(Stopped, match="after step 1 of 4: rft runs cancel asked for it"):
        again(ladder, tmp_path, ladder_recipe, "train")
    file.unlink()
    with inside(tmp_path):
        run("train", params(ladder_recipe))
    assert "continues at step 1" in capsys.readouterr().out
    assert stage_hashes(tmp_path, "train") == stage_hashes(ladder, "train")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["baseline", "prompt", "challenger"])
def test_a_measurement_stops_before_its_next_batch_and_ends_with_the_same_bytes(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The deadline passes while the first batch is rolled out: nothing of it is lost, and no second
    one begins."""
    asked = iter(["", *[stopping.BY_LIMIT] * 100])
    monkeypatch.setattr(stopping, "asked", lambda: next(asked))
    with pytest.raises(Stopped, match=r"before its next batch of rollouts: run\.max_hours is spent"):
        again(ladder, tmp_path, ladder_recipe, stage)
    kept = list((tmp_path / ".rft/progress").glob(f"{stage}-*/rollouts/*"))
    assert kept
    monkeypatch.undo()
    with inside(tmp_path):
        run(stage, params(ladder_recipe))
    assert stage_hashes(tmp_path, stage) == stage_hashes(ladder, stage)


def test_a_stage_that_was_started_by_hand_belongs_to_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stopping.RUN, raising=False)
    for nothing in ("", None):
        if nothing is None:
            monkeypatch.delenv(stopping.DEADLINE)
        else:
            monkeypatch.setenv(stopping.DEADLINE, nothing)
        stopping.check("anywhere")


# -- in a run --------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def plan(scripted: ladder_clone.Scripted, **section: object) -> runs.Plan:
    raw = yaml.safe_load((scripted.root / "params.yaml").read_text())
    settings = config.parse(raw | {"run": section})
    return runs.plan(scripted.clone, settings, champions.of_params(scripted.clone, settings))


def repro(run: Run, stage: str, deadline: float | None = None) -> str:
    return stages.repro(
        run.tree, stage, run.clone.state, run.name, log=run.clone.log(run.name, stage), deadline=deadline
    ).how


@pytest.mark.story
def test_a_run_stops_at_its_limit_and_the_same_run_goes_on_with_a_higher_one(tmp_path: Path) -> None:
    """Real DVC: no finished stage runs again because of the other limit, and the one that was
    stopped goes on where it was."""
    scripted = ladder_clone.make(tmp_path / "a")
    told = r"has worked for .* hours of run\.max_hours = 5 and stopped in order \(stage train: .*after step 1 of 20"
    with pytest.raises(Stopped, match=told):  # noqa: PT012, SIM117
        with runs.start(scripted.clone, plan(scripted, max_hours=5)) as first:
            assert {repro(first, stage) for stage in [*STAGES][:6]} == {"ran"}
            repro(first, "train", deadline=time.time())
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.revision, record.resumed) == ("paused", None, None)
    assert record.message.count("kept") == 1, "one thing is said once"
    assert record.spent_s > 0
    assert not records.alive(scripted.clone, record.name)

    elsewhere = runs.plan(scripted.clone, *_other_settings(scripted))
    with runs.start(scripted.clone, elsewhere) as other:
        assert not other.adopted
    assert records.find(scripted.clone, record.name).state == "paused", "another run leaves it alone"

    with runs.start(scripted.clone, plan(scripted, max_hours=6, retention={"work_days": 1})) as second:
        assert (second.name, second.adopted) == (first.name, True)
        assert second.record.spent_s == record.spent_s
        assert second.deadline is not None
        assert abs(second.deadline - (time.time() + 6 * 3600 - record.spent_s)) < 60, (
            "hours are added up over the starts"
        )
        assert {repro(second, stage) for stage in [*STAGES][:6]} == {"unchanged"}
        assert repro(second, "train") == "ran"
        steps = (second.stage_folder("train") / "metrics.jsonl").read_text().splitlines()
        assert len(steps) == 20
        assert "run" not in yaml.safe_load((second.tree / "params.yaml").read_text())
    assert second.record.state == "finished"
    assert second.record.spent_s > record.spent_s
    printed = scripted.clone.log(first.name, "train").read_text()
    assert printed.count("[train] 1/20 steps") == 1, "step 1 was not taken a second time"
    assert scripted.ran() == [*[*STAGES][:7], "train"]


def pause(scripted: ladder_clone.Scripted, hours: float = 5) -> RunRecord:
    """A run that has two stages behind it, and waits."""
    with pytest.raises(Stopped), runs.start(scripted.clone, plan(scripted, max_hours=hours)) as run:  # noqa: PT012
        for stage in [*STAGES][:2]:
            stage_runner.repro_stage(run, stage)
        run.update(settings=["--params", "p.yaml", "--set", f"run.max_hours={hours:g}", "--set", "train.steps=3"])
        raise Stopped("before stage baseline")
    [record] = records.load_all(scripted.clone)
    assert (record.state, len(record.stages)) == ("paused", 2)
    return record


def take_up(here: Clone, scripted: ladder_clone.Scripted, record: RunRecord) -> set[str]:
    """How the run comes by its first two stages."""
    with runs.start(here, plan(ladder_clone.Scripted(here, scripted.script), max_hours=9)) as run:
        assert (run.name, run.adopted) == (record.name, True)
        assert run.record.spent_s == record.spent_s
        return {stage_runner.repro_stage(run, stage) for stage in [*STAGES][:2]}


@pytest.mark.slow
def test_a_paused_run_whose_worktree_is_gone_goes_on_or_is_recorded(tmp_path: Path) -> None:
    """It was erased without a word, its hours too."""
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted)
    shutil.rmtree(scripted.clone.worktrees / record.name)
    (scripted.clone.worktrees / f"{record.name}.anew").mkdir()  # of a start that was killed while it laid it out
    other = Clone(Path(shutil.copytree(scripted.root, tmp_path / "b", symlinks=True)))
    assert take_up(scripted.clone, scripted, record) == {"restored"}
    [finished] = records.load_all(scripted.clone)
    assert (finished.state, bool(finished.revision), finished.stages) == ("finished", True, record.stages)
    assert list(scripted.clone.worktrees.iterdir()) == []

    ended = cancel.cancel(other, record, force=False, timeout_s=60, tell=lambda line: None)
    assert ended is not None
    assert (ended.state, ended.stages, ended.spent_s) == ("cancelled", record.stages, record.spent_s)
    assert "Its worktree was gone" in ended.message
    assert other.git("rev-parse", f"{ended.revision}^") == record.commit
    assert other.git("diff", "--stat", record.commit, ended.revision or "") == ""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["moved", "copied"])
def test_a_paused_run_goes_on_in_a_clone_that_was_moved_or_copied(tmp_path: Path, way: str) -> None:
    """Its worktree names the old place: as Git's, and as DVC's. In a copy that place is another
    clone's, which must not be touched."""
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted)
    third = Clone(Path(shutil.copytree(scripted.root, tmp_path / "c", symlinks=True)))
    if way == "moved":
        there = Clone(scripted.root.rename(tmp_path / "b"))
    else:
        there = Clone(Path(shutil.copytree(scripted.root, tmp_path / "b", symlinks=True)))
    before = {path: path.read_bytes() for path in scripted.root.rglob("*") if path.is_file() and not path.is_symlink()}
    assert take_up(there, scripted, record) == {"restored"}
    [finished] = records.load_all(there)
    assert (finished.state, finished.stages) == ("finished", record.stages)
    assert list(there.worktrees.iterdir()) == []

    ended = cancel.cancel(third, record, force=False, timeout_s=60, tell=lambda line: None)
    assert ended is not None
    assert (ended.state, ended.stages) == ("cancelled", record.stages)
    for clone, revision in ((there, finished.revision), (third, ended.revision)):
        lock = yaml.safe_load(clone.git("show", f"{revision}:dvc.lock"))
        assert {*lock["stages"]} == {*[*STAGES][:2]}
    assert {
        path: path.read_bytes() for path in scripted.root.rglob("*") if path.is_file() and not path.is_symlink()
    } == before
    if way == "copied":
        assert take_up(scripted.clone, scripted, record) == {"unchanged"}


@pytest.mark.slow
def test_gc_keeps_what_a_paused_run_goes_on_with_though_git_does_not_find_its_worktree(tmp_path: Path) -> None:
    """In a clone that was moved its bytes went, and with them hours of work; so did those of a run
    whose worktree is gone."""
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted)
    here = Clone(scripted.root.rename(tmp_path / "b"))
    keep = config.Retention(work_days=0, logs_days=0, pages_days=0, cache_days=0)

    def collect() -> list[str]:
        with retention.alone(here):
            found = retention.plan(here, keep)
            retention.carry_out(here, found, lambda done, total: None)
        assert found.items == []
        return found.kept

    assert len(collect()) == 1
    shutil.rmtree(here.worktrees / record.name)
    assert collect()[1] == f"all bytes: the worktree of run {record.name} is gone, and with it the list of its bytes"
    assert take_up(here, scripted, record) == {"restored"}


@pytest.mark.slow
def test_a_worktree_that_was_moved_to_another_disk_leaves_no_link_behind(tmp_path: Path) -> None:
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted)
    tree = scripted.clone.worktrees / record.name
    tree.rename(tmp_path / "roomy")
    tree.symlink_to(tmp_path / "roomy")
    assert take_up(scripted.clone, scripted, record) == {"unchanged"}
    assert list(scripted.clone.worktrees.iterdir()) == []


@pytest.mark.slow
def test_a_run_whose_commit_is_gone_too_ends_and_hinders_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Amended, and dropped by Git, which nothing kept from it any more. Nothing can hang below it:
    no run could start, and none be cancelled."""
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted)
    here = scripted.clone
    shutil.rmtree(here.worktrees / record.name)
    here.git("worktree", "prune")
    here.git("commit", "--quiet", "--amend", "--message", "better")
    here.git("reflog", "expire", "--expire=now", "--all")
    here.git("gc", "--quiet", "--prune=now")
    records.save(here, record.model_copy(update={"name": "killed", "state": "running"}))
    monkeypatch.chdir(here.root)
    assert cli.main(["runs", "cancel", record.name]) == 0
    assert "Nothing was recorded: it had not begun, or its worktree and commit were gone." in capsys.readouterr().out
    with runs.start(here, plan(scripted)) as new:
        pass
    assert [one.name for one in records.load_all(here)] == [new.name]


@pytest.mark.slow
def test_a_run_that_is_recorded_without_its_settings_names_no_model(tmp_path: Path) -> None:
    """Its revision holds the params.yaml of its commit, which need not name a recipe, or may name
    another."""
    scripted = ladder_clone.make(tmp_path / "a")
    here, file = scripted.clone, scripted.root / "params.yaml"
    raw = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({name: section for name, section in raw.items() if name != "recipe"}))
    here.git("commit", "--quiet", "--all", "--message", "the recipe is named by --set")
    params = config.parse(raw)
    with pytest.raises(Stopped), runs.start(here, runs.plan(here, params, champions.of_params(here, params))) as run:  # noqa: PT012
        stage_runner.repro_stage(run, "traffic")
        raise Stopped("before stage drift")
    shutil.rmtree(run.tree)
    ended = cancel.cancel(here, run.record, force=False, timeout_s=60, tell=lambda line: None)
    assert ended is not None
    assert ended.revision
    with pytest.raises(UserError, match=r"this clone has no run yet\. Start one: "):
        agents.find(here, "champion")


@pytest.mark.slow
def test_the_command_that_is_printed_for_a_paused_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the limit that is spent it would stop at once."""
    scripted = ladder_clone.make(tmp_path / "a")
    record = pause(scripted, hours=1)
    records.save(scripted.clone, record.model_copy(update={"spent_s": 7200.0}))
    monkeypatch.chdir(scripted.root)
    expected = "run --params p.yaml --set train.steps=3 --set run.max_hours=4\n"
    assert cli.main(["runs"]) == 0
    assert re.search(rf"Go on with {record.name}: .*{expected}", capsys.readouterr().out)
    with pytest.raises(UserError, match=rf"it is paused\. Go on with it: .*{expected.strip()}$"):
        people.approve(scripted.clone, record.name)
    assert cli.main(["runs", "gc"]) == 0
    end = rf" +To end it: .* cancel {record.name}\n"
    assert re.search(rf"run {record.name} is unfinished\. To go on with it: .*{expected}{end}", capsys.readouterr().out)
    assert cli.main(["runs", "cancel", record.name]) == 0
    assert re.search(rf"To go on from it with a new run: .*{expected}", capsys.readouterr().out)


def _other_settings(scripted: ladder_clone.Scripted) -> tuple[config.Params, Served]:
    settings = config.load(scripted.root / "params.yaml")
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"steps": 3})})
    return settings, champions.of_params(scripted.clone, settings)


@pytest.mark.slow
def test_the_hours_of_a_killed_start_count_to_its_last_sign_of_life(tmp_path: Path) -> None:
    scripted = ladder_clone.make(tmp_path / "a")
    with pytest.raises(Stopped), runs.start(scripted.clone, plan(scripted, max_hours=5)) as run:
        raise Stopped("before stage traffic")
    record = records.load_all(scripted.clone)[0]
    begun = time.time() - 7200
    resumed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun))
    records.save(scripted.clone, record.model_copy(update={"state": "running", "resumed": resumed, "spent_s": 60.0}))
    log = scripted.clone.log(run.name, "train")
    log.parent.mkdir(parents=True)
    log.touch()

    for file, age in ((records.path(scripted.clone, run.name), 7200), (log, 3600)):
        os.utime(file, (time.time() - age, time.time() - age))
    with runs.start(scripted.clone, plan(scripted, max_hours=5)) as again:
        assert again.adopted
        assert again.record.spent_s == pytest.approx(60 + 3600, abs=30)


def test_the_section_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    scripted = ladder_clone.make(tmp_path / "a")
    bare, full = plan(scripted), plan(scripted, max_hours=2, retention={"cache_days": 0, "pages_days": None})
    assert bare.key == full.key
    for wrong in (
        {"max_hours": 0},
        {"max_hours": float("inf")},
        {"retention": {"cache_days": -1}},
        {"retention": {"days": 3}},
        {"max_hour": 1},
    ):
        with pytest.raises(ConfigError, match=r"run\.(max_hour|retention)"):
            config.parse({"recipe": {"path": "x"}, "gate": tiny_recipe.gate(), "run": wrong})
