"""One stage under DVC: whether it ran, what it said, what its failure says, and that nothing of it
outlives us."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import ladder_clone
import psutil
import pytest

from rft import config, progress
from rft.errors import InfrastructureError, RftError
from tasks.runs import engine, repro
from tasks.runs.repro import Outcome

EXAMPLES = ("imitated.json", "keys.json", "train.jsonl", "validation.jsonl")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    made = ladder_clone.make(tmp_path_factory.mktemp("stages"))
    made.set_params(**{section: {} for section in ("examples", "drift")}, traffic={"min_conversations": 1})
    return made


def run_stage(scripted: ladder_clone.Scripted, stage: str = "policy") -> Outcome:
    engine.write(scripted.root, config.Recipe(path=str(scripted.root / "recipes/tiny")), scripted.clone.state)
    return repro.repro(scripted.root, stage, scripted.clone.state, log=scripted.clone.log("by-hand", stage))


@pytest.mark.slow
def test_a_stage_runs_once_then_is_unchanged_or_restored(
    scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.set_params(policy={"seed": 1})
    capsys.readouterr()
    assert run_stage(scripted).how == "ran"
    assert re.fullmatch(r"\[policy\] 1/1 done\n  ✓ policy +\d+\.\d s\n", capsys.readouterr().out), (
        "DVC's own words are left out"
    )
    assert run_stage(scripted).how == "unchanged"
    (scripted.root / "dvc.lock").unlink()
    assert run_stage(scripted).how == "restored"
    assert scripted.ran().count("policy") == 1
    scripted.set_params(policy={"seed": 2})
    assert run_stage(scripted).how == "ran"


@pytest.mark.slow
def test_a_stage_fails_with_its_own_words_and_exit_code(scripted: ladder_clone.Scripted) -> None:
    scripted.set_params(policy={"seed": 3})
    (scripted.script / "fail-policy").write_text("the tool server is down: start it.\nIt was asked twice.")
    with pytest.raises(
        RftError, match=r"^stage policy: the tool server is down: start it\.\nIt was asked twice\.$"
    ) as failed:
        run_stage(scripted)
    assert failed.value.exit_code == InfrastructureError.exit_code
    (scripted.script / "fail-policy").unlink()
    assert run_stage(scripted).how == "ran"


@pytest.mark.slow
def test_a_crash_shows_the_end_of_what_was_printed(scripted: ladder_clone.Scripted) -> None:
    scripted.set_params(policy={"seed": 4})
    stage_folder = scripted.script / "data/policy"
    stage_folder.rename(stage_folder.with_name("elsewhere"))
    with pytest.raises(RftError, match=r"(?s)stage policy crashed.*FileNotFoundError.*whole output: .*policy\.log"):
        run_stage(scripted)
    stage_folder.with_name("elsewhere").rename(stage_folder)


WORKING = """
    from functools import partial
    progress.once("policy", params, partial(make, params))


def make(params, work, stage_folder):
    with (SCRIPT / "computed").open("a") as file:
        file.write("once\\n")
    shutil.copytree(SCRIPT / "data/policy", stage_folder, dirs_exist_ok=True)
    (stage_folder / "seed").write_text(str(params.policy.seed))
"""


@pytest.fixture
def computing(scripted: ladder_clone.Scripted) -> Iterator[Callable[[], int]]:
    """The policy stage keeps its work until it is safe. How often it has computed it."""
    path = scripted.root / "rft/stages/policy.py"
    text = path.read_text()
    path.write_text(text.split("    work(params)")[0] + WORKING)
    yield lambda: (scripted.script / "computed").read_text().count("once")
    path.write_text(text)
    (scripted.script / "computed").unlink()


@pytest.mark.slow
def test_what_dvc_could_not_commit_is_not_computed_again(
    scripted: ladder_clone.Scripted, computing: Callable[[], int]
) -> None:
    """R2. The stage was over, and DVC failed before dvc.lock had its outputs."""
    scripted.set_params(policy={"seed": 5})
    cache = scripted.root / ".dvc/cache/files"
    cache.mkdir(parents=True, exist_ok=True)
    cache.rename(cache.with_name("elsewhere"))
    cache.write_text("a disk that is gone")
    with pytest.raises(InfrastructureError, match="DVC could not run it"):
        run_stage(scripted)
    cache.unlink()
    cache.with_name("elsewhere").rename(cache)
    (work,) = progress.works(scripted.clone.state)
    assert work.complete
    assert run_stage(scripted).how == "ran"
    assert (computing(), progress.works(scripted.clone.state)) == (1, []), "DVC has it: it is kept no longer"
    assert run_stage(scripted).how == "unchanged"


@pytest.mark.slow
def test_a_stage_under_dvc_takes_only_its_own_work_away(
    scripted: ladder_clone.Scripted, computing: Callable[[], int]
) -> None:
    """R2. An older try with other settings, finished and never committed, stays."""
    scripted.set_params(policy={"seed": 6})
    engine.write(scripted.root, config.Recipe(path=str(scripted.root / "recipes/tiny")), scripted.clone.state)
    place = {"RFT_STATE": str(scripted.clone.state)}
    subprocess.run([sys.executable, "-m", "rft", "policy"], cwd=scripted.root, env=os.environ | place, check=True)
    (mine,) = progress.works(scripted.clone.state)
    scripted.set_params(policy={"seed": 7})
    assert run_stage(scripted).how == "ran"
    assert [one.path for one in progress.works(scripted.clone.state)] == [mine.path]
    scripted.set_params(policy={"seed": 6})
    assert run_stage(scripted).how == "ran"
    assert (computing(), progress.works(scripted.clone.state)) == (2, []), (
        "by hand and once more: what was done by hand is taken up"
    )


def test_what_dvc_cannot_do_is_said_in_its_words(scripted: ladder_clone.Scripted) -> None:
    with pytest.raises(
        InfrastructureError, match=r"(?s)stage gate: DVC could not run it: .*data/drift/report\.json.*rft stage"
    ):
        run_stage(scripted, "gate")


DRIVER = """
import signal, sys
from pathlib import Path
from tasks.runs import repro as stages
# a shell's background job ignores it, and its children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
root = Path(sys.argv[1])
stages.repro(root, "train", root / ".rft")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_no_stage_outlives_its_driver(scripted: ladder_clone.Scripted, way: signal.Signals) -> None:
    scripted.set_params(train={"seed": int(way)})
    for name in (
        "policy/x",
        "champion/x",
        "baseline/report.json",
        "prompt/prompt.json",
        *(f"examples/{one}" for one in EXAMPLES),
    ):
        path = scripted.root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (scripted.script / "pause-train").write_text("0.5")
    before = len(scripted.lines())
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(scripted.root)], cwd=ladder_clone.ROOT, stderr=subprocess.DEVNULL
    ) as driver:
        stage = psutil.Process(
            waited_for(lambda: int(scripted.lines()[before].split()[1]) if len(scripted.lines()) > before else None)
        )
        driver.send_signal(way)
        driver.wait(10)
    stage.wait(5)
    assert not (scripted.root / "data/train/report.json").exists()
    (scripted.script / "pause-train").unlink()


def waited_for(seen, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := seen()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing was seen in {seconds} s")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("", f"the engine in {ladder_clone.ROOT} is another one: rft/stages/policy.py"),
        ("its own", "is to run with the engine in "),
    ],
)
def test_a_stage_refuses_another_engine(scripted: ladder_clone.Scripted, named: str, says: str) -> None:
    """A stage must run the engine that the run was begun with, whatever is installed."""
    engine.write(scripted.root, config.Recipe(path=str(scripted.root / "recipes/tiny")), scripted.clone.state)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rft", "policy"],
        cwd=scripted.root,
        env={"PYTHONPATH": str(ladder_clone.ROOT), "RFT_ENGINE": named and str(scripted.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("times", "ends_well"), [(1, True), (9, False)])
@pytest.mark.parametrize(
    "says",
    [
        f"[Errno 2] No such file or directory: '/x/.dvc/cache/runs/b8/{'b8' * 32}/.XCJXeD-kue.tmp'",
        "unable to remove '/x/data/prompt/report.json' without a confirmation. Use `-f` to force.",
    ],
)
def test_where_an_equal_run_disturbs_dvc_it_is_asked_again(
    scripted: ladder_clone.Scripted, monkeypatch: pytest.MonkeyPatch, says: str, times: int, ends_well: bool
) -> None:
    scripted.set_params(policy={"seed": 40 + times + len(says)})
    told = f"ERROR: failed to reproduce 'policy': {says}"
    started, real = list[str](), repro.dvc_process.started

    @contextlib.contextmanager
    def disturbed(*arguments, **more):
        started.append("")
        with real(*arguments, **more) as process:
            if len(started) <= times:
                process.wait()
                yield SimpleNamespace(
                    pid=process.pid, stdout=io.StringIO(f"{told}\n"), poll=lambda: 255, wait=lambda: 255
                )
            else:
                yield process

    monkeypatch.setattr(repro, "dvc_process", SimpleNamespace(started=disturbed))
    if ends_well:
        assert run_stage(scripted).how in ("ran", "unchanged")
        assert len(started) == 2
    else:
        with pytest.raises(InfrastructureError, match="DVC could not run it"):
            run_stage(scripted)
        assert len(started) == 3
