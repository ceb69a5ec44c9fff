"""A stop in order: at run.max_hours or by `rft cancel`, at a checkpoint, in every stage that takes minutes; and the same bytes after going on.

Issue 10, item 6.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import ladder_clone
import pytest
import yaml

from rft import config, stopping
from rft.errors import ConfigError, Stopped
from tasks import records, registry, runs, stages
from tasks.dependencies import STAGES
from tasks.runs import Run
from tests import tiny_recipe
from tests.ladder import SECTIONS, again, inside, params, run, shelf


# -- in the stages ---------------------------------------------------------------------------------------------------------
def test_the_warm_start_stops_after_a_step_and_ends_with_the_same_bytes(tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert shelf(tmp_path / "stopped", "policy") == shelf(tmp_path / "whole", "policy")


def test_training_stops_after_a_step_and_ends_with_the_same_bytes(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a step without a checkpoint of its own, and by the file that `rft cancel` writes."""
    monkeypatch.setenv(stopping.RUN, "run-7")
    file = stopping.request(tmp_path / ".rft", "run-7")
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(Stopped, match="after step 1 of 4: rft cancel asked for it"):
        again(ladder, tmp_path, ladder_recipe, "train")
    file.unlink()
    with inside(tmp_path):
        run("train", params(ladder_recipe))
    assert "continues at step 1" in capsys.readouterr().out
    assert shelf(tmp_path, "train") == shelf(ladder, "train")


@pytest.mark.parametrize("stage", ["baseline", "prompt", "challenger"])
def test_a_measurement_stops_before_its_next_batch_and_ends_with_the_same_bytes(
    ladder: Path, tmp_path: Path, ladder_recipe: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The deadline passes while the first batch is rolled out: nothing of it is lost, and no second one begins."""
    asked = iter(["", *[stopping.BY_LIMIT] * 100])
    monkeypatch.setattr(stopping, "asked", lambda: next(asked))
    with pytest.raises(Stopped, match=r"before its next batch of rollouts: run\.max_hours is spent"):
        again(ladder, tmp_path, ladder_recipe, stage)
    kept = list((tmp_path / ".rft/progress").glob(f"{stage}-*/rollouts/*"))
    assert kept
    monkeypatch.undo()
    with inside(tmp_path):
        run(stage, params(ladder_recipe))
    assert shelf(tmp_path, stage) == shelf(ladder, stage)


def test_a_stage_that_was_started_by_hand_belongs_to_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stopping.RUN, raising=False)
    for nothing in ("", None):
        if nothing is None:
            monkeypatch.delenv(stopping.DEADLINE)
        else:
            monkeypatch.setenv(stopping.DEADLINE, nothing)
        stopping.check("anywhere")


# -- in a run --------------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def plan(scripted: ladder_clone.Scripted, **section: object) -> runs.Plan:
    raw = yaml.safe_load((scripted.root / "params.yaml").read_text())
    settings = config.parse(raw | {"run": section})
    return runs.plan(scripted.clone, settings, registry.served(scripted.clone, settings))


def repro(run: Run, stage: str, deadline: float | None = None) -> str:
    return stages.repro(run.tree, stage, run.clone.state, run.name, log=run.clone.log(run.name, stage), deadline=deadline).how


def test_a_run_stops_at_its_limit_and_the_same_run_goes_on_with_a_higher_one(tmp_path: Path) -> None:
    """Real DVC: no finished stage runs again because of the other limit, and the one that was stopped goes on where it was."""
    scripted = ladder_clone.make(tmp_path / "a")
    with pytest.raises(Stopped, match=r"has worked for .* hours of run\.max_hours = 5 and stopped in order \(stage train: .*after step 1 of 20"):  # noqa: PT012, SIM117
        with runs.start(scripted.clone, plan(scripted, max_hours=5)) as first:
            assert {repro(first, stage) for stage in [*STAGES][:6]} == {"ran"}
            repro(first, "train", deadline=time.time())
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.revision, record.resumed) == ("paused", None, None)
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
        assert abs(second.deadline - (time.time() + 6 * 3600 - record.spent_s)) < 60, "hours are added up over the starts"
        assert {repro(second, stage) for stage in [*STAGES][:6]} == {"unchanged"}
        assert repro(second, "train") == "ran"
        steps = (second.shelf("train") / "metrics.jsonl").read_text().splitlines()
        assert len(steps) == 20
        assert "run" not in yaml.safe_load((second.tree / "params.yaml").read_text())
    assert second.record.state == "finished"
    assert second.record.spent_s > record.spent_s
    printed = scripted.clone.log(first.name, "train").read_text()
    assert printed.count("[train] 1/20 steps") == 1, "step 1 was not taken a second time"
    assert scripted.ran() == [*[*STAGES][:7], "train"]


def _other_settings(scripted: ladder_clone.Scripted) -> tuple[config.Params, registry.Served]:
    settings = config.load(scripted.root / "params.yaml")
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"steps": 3})})
    return settings, registry.served(scripted.clone, settings)


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
    for wrong in ({"max_hours": 0}, {"max_hours": float("inf")}, {"retention": {"cache_days": -1}}, {"retention": {"days": 3}}, {"max_hour": 1}):
        with pytest.raises(ConfigError, match=r"run\.(max_hour|retention)"):
            config.parse({"recipe": {"path": "x"}, "gate": tiny_recipe.gate(), "run": wrong})
