"""The work of a stage until it is safe: what is never done twice, under which conditions it is
taken up again, and what a kill may leave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rft import config, files, needs, progress, reports
from rft.errors import InfrastructureError, UserError
from rft.trainer.collapse import Guard
from tests import tiny_recipe
from tests.ladder import again, inside, params, run, stage_hashes
from tests.ladder_clone import ROOT

STAGES = ("policy", "baseline", "prompt", "train", "challenger")
"""Those that take minutes."""


# -- what was finished (R2) ------------------------------------------------------------------------
@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it, and from then on no rollout may be sampled and no optimizer step taken."""
    handles: list[Any] = []

    def forbid(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something that takes minutes was done a second time")

    def begin() -> None:
        monkeypatch.setattr("rft.rollouts.runner.run_rollouts", forbid)
        handles.append(register_optimizer_step_pre_hook(forbid))

    yield begin
    for handle in handles:
        handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_what_is_done_is_not_done_again(
    ladder: Path,
    tmp_path: Path,
    ladder_recipe: Path,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
    idle: Callable[[], None],
):
    """R2. Killed while it wrote its report, after the last rollout or step; then again and again
    after its end, before DVC had it. DVC empties the stage's folder before each start."""

    def killed(report: reports.Report, path: Path) -> None:
        raise KeyboardInterrupt

    shutil.copytree(ladder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / stage)
    with inside(tmp_path):
        with monkeypatch.context() as patch:
            patch.setattr(reports, "write", killed)
            with pytest.raises(KeyboardInterrupt):
                run(stage, params(ladder_recipe))
        idle()
        times = []
        for _ in range(3):
            shutil.rmtree(tmp_path / "data" / stage, ignore_errors=True)
            run(stage, params(ladder_recipe))
            assert stage_hashes(tmp_path, stage) == stage_hashes(ladder, stage)
            times += [path.read_bytes() for path in (tmp_path / "data" / stage).glob("timing.json")]
    assert len(set(times)) == (0 if stage == "policy" else 1), (
        "wall times and trace ids too are those of the one computation"
    )


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_training_that_stopped_early_does_not_go_on(
    ladder: Path,
    tmp_path: Path,
    ladder_recipe: Path,
    keep: str,
    monkeypatch: pytest.MonkeyPatch,
    idle: Callable[[], None],
):
    """R2. Killed between its last step and its files: why it stopped, and which weights were best,
    must be in the last checkpoint. Who watches for a collapse is asleep: this rate brings one."""
    monkeypatch.setattr(Guard, "saw", lambda *_: "")
    monkeypatch.setattr(Guard, "checked", lambda *_: "")
    changes = {"lr": 0.3, "steps": 6, "validate_every": 1, "keep": keep, "stop": {"patience": 2}, "checkpoint_every": 4}
    whole = again(ladder, tmp_path / "whole", ladder_recipe, "train", train=changes)
    assert "stopped early" in reports.read(reports.TrainReport, whole / "data/train/report.json").reason

    def killed(report: reports.Report, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reports, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            again(ladder, tmp_path / "killed", ladder_recipe, "train", train=changes)
    idle()
    with inside(tmp_path / "killed"):
        run("train", params(ladder_recipe, train=changes))
    assert stage_hashes(tmp_path / "killed", "train") == stage_hashes(whole, "train")


def test_a_finished_folder_that_was_damaged_is_named(tmp_path: Path, settings: config.Params):
    with inside(tmp_path):
        progress.once("baseline", settings, leave("1"))
        (work,) = progress.works()
        (work.path / "shelf/report.json").write_text("2")
        with pytest.raises(
            UserError, match=r"baseline-\w+/shelf: has changed since the stage finished on .*delete .*baseline-"
        ):
            progress.once("baseline", settings, leave("3"))
        (work.path / "complete.json").write_text("{")
        with pytest.raises(UserError, match="has changed since the stage finished"):
            progress.once("baseline", settings, leave("3"))
        assert Path("data/baseline/report.json").read_text() == "1"


def test_what_else_lies_in_the_stage_folder_stays_and_stale_folders_do_not(tmp_path: Path, settings: config.Params):
    def build(work: Path, stage_folder: Path) -> None:
        (stage_folder / "weights").mkdir()
        (stage_folder / "weights/a").write_text("new")

    (tmp_path / "data/train/weights").mkdir(parents=True)
    (tmp_path / "data/train/weights/b").write_text("old")
    (tmp_path / "data/train/.gitignore").write_text("/weights\n")
    with inside(tmp_path):
        progress.once("train", settings, build)
    assert sorted(path.name for path in (tmp_path / "data/train").rglob("*")) == [".gitignore", "a", "weights"]


def test_a_stage_that_did_not_begin_leaves_no_work(tmp_path: Path, settings: config.Params):
    def fails(work: Path, stage_folder: Path) -> None:
        raise UserError("no examples")

    def begins(work: Path, stage_folder: Path) -> None:
        (work / "rollouts").mkdir()
        raise UserError("no grader")

    with inside(tmp_path):
        with pytest.raises(UserError, match="no examples"):
            progress.once("baseline", settings, fails)
        assert progress.works() == []
        with pytest.raises(UserError, match="no grader"):
            progress.once("baseline", settings, begins)
        assert [(one.stage, one.complete) for one in progress.works()] == [("baseline", False)]


# -- by hand, and under `tasks` --------------------------------------------------------------------
@pytest.fixture
def settings(ladder_recipe: Path) -> config.Params:
    return params(ladder_recipe)


def leave(word: str) -> Callable[[Path, Path], None]:
    """A stage that leaves one file."""
    return lambda work, stage_folder: (stage_folder / "report.json").write_text(word) and None


def aged(work: Path, days: float) -> None:
    then = time.time() - 86400 * days
    for path in [*work.rglob("*"), work]:
        os.utime(path, (then, then))


def test_by_hand_the_next_stage_clears_what_was_finished_a_week_ago(
    tmp_path: Path, settings: config.Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """R2, R25. Never what is not finished, what is younger, or in a run."""
    with inside(tmp_path):
        days = {"baseline": 8, "prompt": 6, "train": 9}
        for stage in days:
            progress.once(stage, settings, leave("1"))
        for one in progress.works():
            if one.stage == "train":
                (one.path / "complete.json").unlink()
            aged(one.path, days[one.stage])
        monkeypatch.setenv("RFT_RUN", "r-1")
        progress.once("policy", settings, leave("1"))
        assert len(progress.works()) == 4
        monkeypatch.delenv("RFT_RUN")
        capsys.readouterr()
        progress.once("challenger", settings, leave("1"))
        assert {one.stage for one in progress.works()} == {"policy", "prompt", "train", "challenger"}
        assert "[challenger] cleared .rft/progress/baseline-" in capsys.readouterr().out
        aged(next(one.path for one in progress.works() if one.stage == "policy"), 30)
        progress.once("policy", settings, leave("2"))
        assert Path("data/policy/report.json").read_text() == "1", "its own is what it wants, however old"


def test_who_worked_in_a_folder_is_remembered(tmp_path: Path, settings: config.Params, monkeypatch: pytest.MonkeyPatch):
    """One of them may be waiting to go on from there: neither another run nor a try by hand may
    make `rft runs gc` forget it."""

    def part(work: Path, stage_folder: Path) -> None:
        (work / "rollouts").mkdir(exist_ok=True)
        raise KeyboardInterrupt

    with inside(tmp_path):
        for name in ("r-1", "r-2", "r-1", ""):
            monkeypatch.setenv("RFT_RUN", name)
            with pytest.raises(KeyboardInterrupt):
                progress.once("baseline", settings, part)
        assert [one.runs for one in progress.works()] == [("r-2", "r-1")]
        progress.once("baseline", settings, leave("1"))
        aged(progress.works()[0].path, 8)
        progress.once("prompt", settings, leave("1"))
        assert [one.stage for one in progress.works()] == ["baseline", "prompt"], (
            "only those of no run are cleared by hand"
        )
        file = next(one.path for one in progress.works() if one.stage == "baseline") / "work.json"
        # of an engine that wrote down the last one only
        file.write_text(json.dumps({"stage": "baseline", "run": "r-3"}))
        assert [one.runs for one in progress.works() if one.stage == "baseline"] == [("r-3",)]


def test_when_dvc_is_done_the_work_of_just_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """R2. Seen from another folder, as `tasks` does. Not that of other settings, and nothing that
    is not finished."""
    tree, place = tmp_path / "tree", tmp_path / ".rft"
    tiny_recipe.make(tree)
    shutil.copytree(ROOT / "rft", tree / "rft", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("RFT_STATE", str(place))
    mine, other = (tiny_recipe.params(Path("tiny"), baseline={"k": k}) for k in (2, 3))
    with inside(tree):
        for stage, settings in (("baseline", mine), ("baseline", other), ("prompt", mine)):
            progress.once(stage, settings, leave("1"))
    there = {one.path for one in progress.works()}
    monkeypatch.delenv("RFT_STATE")
    progress.forget("baseline", mine, tree, place)
    (gone,) = there - {one.path for one in progress.works(place)}
    assert gone.name.startswith("baseline-")
    for one in progress.works(place):
        (one.path / "complete.json").unlink()
    progress.forget("baseline", other, tree, place)
    assert len(progress.works(place)) == 2


# -- the key (R13) ---------------------------------------------------------------------------------
def key(stage: str, settings: config.Params) -> str:
    return progress.folder(stage, *needs.from_params(stage, settings)).name


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_work_is_known_by_all_that_the_stage_depends_on_and_by_nothing_else(tmp_path: Path, stage: str):
    """R13. The recipe's bytes, each section of dvc.yaml, each file that it reads; never where the
    clone lies, or another stage's settings."""
    known = needs.NEEDS[stage]
    names: list[str] = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        tiny_recipe.make(tmp_path / place)
        with inside(tmp_path / place):
            names.append(key(stage, tiny_recipe.params(Path("tiny"))))
    assert len(set(names)) == 1
    changes: dict[str, dict[str, Any]] = {
        "recipe": {"options": {"polite": True}},
        "tools": {"timeout_s": 7},
        "rollout": {"max_turns": 3},
        "examples": {"keys": {"id": "name"}},
        "policy": {"threads": 1},
        "baseline": {"k": 3},
        "prompt": {"k": 5},
        "train": {"lr": 0.1},
        "challenger": {"k": 9},
        "traffic": {"min_conversations": 7},
        "drift": {"alpha": 0.5},
        "gate": tiny_recipe.gate() | {"min_gain": 0.5},
    }
    with inside(tmp_path / "a"):
        for section, change in changes.items():
            raw = {"recipe": {"path": "tiny"}, "gate": tiny_recipe.gate()}
            raw[section] = raw.get(section, {}) | change
            depends = section in {name.partition(".")[0] for name in known.sections}
            assert (key(stage, config.parse(raw)) != names[0]) is depends, section
        for file in [*known.files, *needs.engine(stage)]:
            path = Path("tiny/tools.py" if file == needs.RECIPE else file)
            before = key(stage, tiny_recipe.params(Path("tiny")))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{path.read_text() if path.exists() else ''}\n# another")
            assert key(stage, tiny_recipe.params(Path("tiny"))) != before, file


def test_every_section_was_tried_above():
    sections = {name.partition(".")[0] for known in needs.NEEDS.values() for name in known.sections}
    assert sections <= set(config.Params.model_fields)


@pytest.mark.slow
def test_r13_more_test_examples_repeat_no_training(tmp_path: Path) -> None:
    """Only what opens the test set depends on it."""
    tiny_recipe.make(tmp_path)
    with inside(tmp_path):
        one, two = (tiny_recipe.params(Path("tiny"), examples={"blocks": blocks}) for blocks in (1, 2))
        assert [stage for stage in needs.NEEDS if key(stage, one) != key(stage, two)] == ["examples"]


@pytest.mark.slow
def test_a_baseline_that_was_cut_off_is_not_finished_under_another_grader(
    ladder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """R13. Some of its rollouts were graded by a grader that is no more."""
    from rft.rollouts import runner

    ours = tiny_recipe.teachable(tiny_recipe.make(tmp_path))
    measure, done = runner.RolloutRunner.measure, []

    def cut(self: Any, *args: Any, **kwargs: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return measure(self, *args, **kwargs)

    shutil.copytree(ladder / "data", tmp_path / "cut/data", ignore=shutil.ignore_patterns("baseline"))
    with inside(tmp_path / "cut"):
        monkeypatch.setattr(runner.RolloutRunner, "measure", cut)
        with pytest.raises(KeyboardInterrupt):
            run("baseline", params(ours))
        monkeypatch.undo()
        text = (ours / "tools.py").read_text()
        assert "score = float(" in text
        (ours / "tools.py").write_text(text.replace("score = float(", "score = 0.5 * float("))
        run("baseline", params(ours))
    scores = reports.read(reports.BaselineReport, tmp_path / "cut/data/baseline/report.json").sampled.rows
    assert {score for row in scores for score in row.scores} == {0.0, 0.5}


# -- one process a folder, and the progress of all (R25) -------------------------------------------
HOLDER = """
import sys, time
from rft import progress
from tests import tiny_recipe
from pathlib import Path

def make(work, stage_folder):
    (work / "rollouts").mkdir(exist_ok=True)
    print("there", flush=True)
    time.sleep(60)

progress.once("baseline", tiny_recipe.params(Path("tiny")), make)
"""


@pytest.mark.slow
def test_a_second_process_is_refused_and_a_live_folder_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """R25. The lock is the kernel's: it goes with the process, killed or not."""
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.2)
    tiny_recipe.make(tmp_path)
    settings = tiny_recipe.params(Path("tiny"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RFT_RUN": "r-1"}
    with (
        inside(tmp_path),
        subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        (found,) = progress.works()
        assert (found.stage, found.complete, found.live, found.runs) == ("baseline", False, True, ("r-1",))
        assert not progress.remove(found.path)
        with pytest.raises(
            InfrastructureError,
            match=rf"another process \(pid {holder.pid} of run r-1, since 20.*stage baseline .*Wait until it ends",
        ):
            progress.once("baseline", settings, leave("2"))
        assert found.path.exists()
        assert not Path("data/baseline").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not progress.works()[0].live
        progress.once("baseline", settings, leave("2"))
        assert Path("data/baseline/report.json").read_text() == "2"


def test_all_work_is_listed_with_what_a_person_wants_to_know(tmp_path: Path, settings: config.Params):
    with inside(tmp_path):
        assert progress.works() == []
        progress.once("baseline", settings, leave("12345"))
        old = Path(".rft/progress/train-0123456789abcdef")  # of an engine that wrote nothing about itself
        (old / "checkpoints").mkdir(parents=True)
        (old / "checkpoints/state.pt").write_bytes(b"x" * 1000)
        aged(old, 3)
        Path(".rft/progress/notes").mkdir()
    first, second = progress.works(tmp_path / ".rft")
    assert (first.path, first.stage, first.complete, first.num_bytes, first.live, first.runs) == (
        tmp_path / old,
        "train",
        False,
        1000,
        False,
        (),
    )
    assert first.age_s == pytest.approx(3 * 86400, abs=60)
    assert (second.stage, second.complete, second.live, second.runs) == ("baseline", True, False, ())
    assert 5 < second.num_bytes < 1000
    assert second.age_s < 60
    assert progress.remove(first.path)
    assert not progress.remove(first.path)
    assert [one.stage for one in progress.works(tmp_path / ".rft")] == ["baseline"]
    assert sorted(path.name for path in (tmp_path / ".rft/progress").iterdir())[1:] == ["notes"]


# -- kill windows (R22) ----------------------------------------------------------------------------
PUBLISHER = """
import os, signal, sys
from pathlib import Path
from rft import files

number, exchange = int(sys.argv[1]), sys.argv[2] == "exchange"
if not exchange:
    files._exchange = lambda a, b: False
seen = 0

def count(event, *args):
    global seen
    if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym"):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

part, whole = Path("part"), Path("whole")
part.mkdir()
(part / "a").write_text("new")
(part / "b").write_text("new")
sys.addaudithook(lambda event, args: count(event))
files.publish(part, whole)
"""


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_kill_never_leaves_a_published_folder_without_a_whole_one(tmp_path: Path, way: str):
    """R22. At every operation that changes a name, in turn. Where names can swap, nothing need be
    recovered."""
    kills, found = 0, set[str]()
    for number in range(1, 30):
        place = tmp_path / str(number)
        (place / "whole").mkdir(parents=True)
        (place / "whole/a").write_text("old")
        (place / "whole/b").write_text("old")
        done = subprocess.run(
            [sys.executable, "-c", PUBLISHER, str(number), way],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
        if way == "renames":
            files.recover(place)
            assert not list(place.glob("*.aside"))
        contents = {path.read_text() for path in (place / "whole").iterdir()}
        assert len(contents) == 1
        assert sorted(path.name for path in (place / "whole").iterdir()) == ["a", "b"]
        found |= contents
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        kills += 1
    assert contents == {"new"}
    assert kills >= 3
    assert found == {"old", "new"}


def test_a_start_takes_back_what_a_kill_left_aside(tmp_path: Path, settings: config.Params):
    """R22. Where the system cannot swap two names, there is a moment with neither."""

    def make(work: Path, stage_folder: Path) -> None:
        if not (work / "checkpoint").exists():
            (work / "checkpoint.aside").mkdir()
            raise KeyboardInterrupt
        leave("gone on")(work, stage_folder)

    with inside(tmp_path):
        with pytest.raises(KeyboardInterrupt):
            progress.once("policy", settings, make)
        progress.once("policy", settings, make)
        assert Path("data/policy/report.json").read_text() == "gone on"


def test_removing_that_was_killed_is_finished_by_the_next(tmp_path: Path, settings: config.Params):
    with inside(tmp_path):
        progress.once("baseline", settings, leave("1"))
        (work,) = progress.works()
        work.path.rename(work.path.with_name(work.path.name + ".gone"))
        assert progress.works() == []
        progress.once("prompt", settings, leave("1"))
        assert progress.remove(progress.works()[0].path)
        assert list(Path(".rft/progress").iterdir()) == []


def test_the_marker_says_when_what_and_how_much(tmp_path: Path, settings: config.Params):
    with inside(tmp_path):
        progress.once("baseline", settings, leave("12345"))
        (work,) = progress.works()
    marker = json.loads((tmp_path / work.path / "complete.json").read_text())
    assert (marker["stage"], marker["num_bytes"]) == ("baseline", 5)
    assert marker["finished"].endswith("Z")
