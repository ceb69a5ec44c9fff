"""A run that ends before the look, and an inconclusive one that is looked at again on more
examples: with real Prefect, DVC and Git."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ladder_clone
import people
import pytest
import sample_reports
import yaml
from at_hand import AtHand

from flows import extension, pipeline, results
from flows.cli import run
from rft.errors import UserError
from tasks.dependencies import STAGES
from tasks.ledger import book
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def inconclusive(folder: Path, offers_blocks: bool = True) -> ladder_clone.Scripted:
    scripted = ladder_clone.make(folder, "inconclusive")
    change(scripted.script / "data/examples/report.json", offers_blocks=offers_blocks)
    return scripted


def looks(clone: Clone) -> list[int]:
    return [look.act.look for look in book.read(clone, reverify=True).state.looks.values()]


@pytest.mark.story
def test_only_the_look_is_new_and_it_is_the_next_one(
    tmp_path: Path, at_hand: AtHand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = inconclusive(tmp_path / "a")
    scripted.set_params(train={"steps": 3})
    scripted.git("commit", "--quiet", "--all", "--message", "three steps")
    first = recorded(scripted)
    results.show(scripted.clone, first)
    output = capsys.readouterr().out
    assert "Extend   " in output
    assert f"extend {first.name}" in output
    assert (scripted.ran(), looks(scripted.clone)) == ([], [1])

    # the code of today is another, the settings too; what is looked at again is what was
    (scripted.root / "more.py").write_text("print('later')")
    scripted.git("add", "more.py")
    scripted.git("commit", "--quiet", "--message", "later")
    scripted.set_params(train={"steps": 5})
    with (scripted.script / "data/examples/test.jsonl").open("a") as file:
        file.write(json.dumps({"id": "fresh", "messages": [{"role": "user", "content": "fresh"}]}) + "\n")
    again = at_hand(scripted.root, "runs", "extend", first.name[-4:])
    assert (again.returncode, again.stderr) == (0, ""), again.stderr
    assert f"Run {first.name} saw 288 test examples; 1 block of 288 more are joined to them." in again.stdout
    assert (
        "Skipped, because nothing that they depend on has changed: traffic, drift, policy, baseline, prompt, train."
        in again.stdout
    )
    assert scripted.ran() == ["examples", "challenger", "gate"]
    second = records.load_all(scripted.clone)[-1]
    assert (second.extends, second.more_blocks, second.commit, second.dirty) == (first.name, 1, first.commit, False)
    params = yaml.safe_load(Revision(scripted.clone, second.revision or "").file("params.yaml") or b"")
    assert (params["examples"]["blocks"], params["train"]["steps"]) == (2, 3)
    assert looks(scripted.clone) == [1, 2]

    # and where the cache lost the prompt, and it comes out otherwise, the test set stays closed
    forget(scripted.clone, "prompt")
    report = scripted.script / "data/prompt/report.json"
    winner = json.loads(report.read_text())["winner"] | {"system": "another"}
    change(report, winner=winner)
    lost = at_hand(scripted.root, "runs", "extend", second.name, "--blocks", "2")
    assert lost.returncode == 3
    assert (
        f"came to another prompt result than run {second.name}, which it extends. Stage prompt ran again" in lost.stderr
    )
    assert lost.stderr.rstrip().endswith("--set examples.blocks=4")
    assert looks(scripted.clone) == [1, 2]
    assert scripted.ran()[3:] == ["examples", "prompt"]


def forget(clone: Clone, stage: str) -> None:
    """Remove a stage from DVC's run cache."""
    kept = [path for path in (clone.dvc_cache / "runs").rglob("*") if path.is_file()]
    of_stage = [path for path in kept if yaml.safe_load(path.read_text())["cmd"].endswith(f" {stage}")]
    assert of_stage
    for path in of_stage:
        shutil.rmtree(path.parent)


@pytest.mark.story
def test_a_run_may_end_before_the_look_and_another_goes_on(tmp_path: Path, at_hand: AtHand) -> None:
    scripted = ladder_clone.make(tmp_path / "a")
    done = at_hand(scripted.root, "run", "--until", "train")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "Stopped after train, as --until asked: no look was taken" in done.stdout
    assert "Go on" in done.stdout
    [record] = records.load_all(scripted.clone)
    assert (record.state, record.decision, record.until) == ("stopped", None, "train")
    assert scripted.ran() == [*STAGES][:7]
    assert book.read(scripted.clone).state.looks == {}
    assert "stopped after train" in at_hand(scripted.root, "runs").stdout
    assert "Stopped after train" in scripted.clone.page(record.name).read_text().replace("stopped", "Stopped")
    refused = at_hand(scripted.root, "approve", record.name, "--reason", "why", *people.by("Ada"))
    assert refused.returncode == 2
    on = at_hand(scripted.root, "run")
    assert on.returncode == 0, on.stderr
    assert scripted.ran() == [*STAGES]
    assert [each.state for each in records.load_all(scripted.clone)] == ["stopped", "finished"]
    assert looks(scripted.clone) == [1]


# -- what cannot be extended -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a clone with a run that ended as inconclusive. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("inconclusive")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        recorded(inconclusive(folder))
    return folder


@pytest.fixture
def fresh(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    shutil.copytree(template, tmp_path, symlinks=True, dirs_exist_ok=True)
    return ladder_clone.Scripted(Clone(tmp_path / "clone"), tmp_path / "script")


def ended(scripted: ladder_clone.Scripted) -> RunRecord:
    return records.load_all(scripted.clone)[-1]


def recorded(scripted: ladder_clone.Scripted, **changes: Any) -> RunRecord:
    record = ladder_clone.run_ladder(scripted, **changes)
    assert record.decision == "inconclusive"
    return record


@pytest.mark.slow
def test_as_many_blocks_as_would_probably_settle_it(fresh: ladder_clone.Scripted) -> None:
    fresh.set_params(examples={"test": 100})
    record = recorded(fresh)
    found = extension.from_run(fresh.clone, record.name)
    assert (found.blocks, found.params.examples.blocks) == (3, 4), "226 more, in blocks of 100"
    assert extension.from_run(fresh.clone, record.name, 1).params.examples.blocks == 2
    assert found.description.endswith("saw 100 test examples; 3 blocks of 100 more are joined to them.")
    decision = fresh.script / "data/gate/decision.json"
    change(decision, more_examples=None)
    fresh.set_params(examples={"test": 101})
    assert extension.from_run(fresh.clone, recorded(fresh).name).blocks == 1, "at least one"


@pytest.mark.slow
def test_section_run_is_of_today(fresh: ladder_clone.Scripted) -> None:
    record = ended(fresh)
    fresh.set_params(run={"max_hours": 3})
    assert extension.from_run(fresh.clone, record.name).params.run.max_hours == 3


@pytest.mark.slow
def test_a_decided_run_needs_no_more_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path)
    record = ladder_clone.run_ladder(scripted)
    with pytest.raises(UserError, match=f"run {record.name} ended as promote, and more examples help"):
        extension.from_run(scripted.clone, record.name)


@pytest.mark.slow
def test_a_recipe_without_blocks_says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = inconclusive(tmp_path, offers_blocks=False)
    with pytest.raises(UserError, match=r"recipes/tiny/examples\.py offered no blocks .*`block: int = 0`.*rft run"):
        extension.from_run(scripted.clone, recorded(scripted).name)


@pytest.mark.slow
def test_another_champion_is_another_question(fresh: ladder_clone.Scripted) -> None:
    record = ended(fresh)
    records.save(fresh.clone, record.model_copy(update={"champion_version": 7}))
    with pytest.raises(UserError, match="was judged against champion 7, and the beginning is served now"):
        extension.from_run(fresh.clone, record.name)


@pytest.mark.slow
def test_looks_that_are_spent_cannot_be_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    fresh = inconclusive(tmp_path)
    record = recorded(fresh, gate=sample_reports.GATE.model_copy(update={"looks": 1}))
    with pytest.raises(
        UserError, match=r"gate\.looks = 1, and this would be look 2 .*the next block, examples\.block: 1"
    ):
        extension.from_run(fresh.clone, record.name)


@pytest.mark.slow
def test_what_was_removed_cannot_be_looked_at_again(fresh: ladder_clone.Scripted) -> None:
    record = ended(fresh)
    records.save(fresh.clone, record.model_copy(update={"bytes_removed": "2026-01-01"}))
    with pytest.raises(UserError, match=r"`rft runs gc` removed what run .* had made"):
        extension.from_run(fresh.clone, record.name)


def test_the_command_line_and_the_flow_end_at_the_same_stages() -> None:
    """The flow is heavy to load, so the verb has a list of its own."""
    assert (*pipeline.UNTIL,) == run.UNTIL
