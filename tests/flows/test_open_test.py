"""The test set stays closed: what `rft rollouts`, `rft rollouts replay` and `rft runs report` show
of it, what opens it, and what that costs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from rft import config, stage_files
from rft.rollouts import log as rollout_log
from tasks.ledger import book
from tasks.ledger.entry import Opened
from tasks.promotion import acts
from tasks.runs import champion, records
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.run import user

Rft = Callable[..., tuple[int, str, str]]
WHY = ("--reason", "where does it lose?")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("closed"))
        ladder_clone.run_ladder(scripted)
    return scripted.root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A copy: what is opened stays open."""
    shutil.copytree(made, tmp_path / "clone", symlinks=True)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(tmp_path / "clone")


@pytest.fixture
def rft(here: Clone, capsys: pytest.CaptureFixture[str]) -> Rft:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def openings(clone: Clone) -> list[Opened]:
    return [*book.read(clone).state.opened.values()]


@pytest.mark.slow
def test_rollouts_of_the_test_set_are_counted_and_not_shown(here: Clone, rft: Rft) -> None:
    run = records.load_all(here)[0].name
    code, out, err = rft("rollouts", "--json", "--stage", "challenger")
    assert (code, {row["split"] for row in rows(out)}) == (0, {"validation"})
    assert {row["arm"] for row in rows(out)} == {"champion", "champion_new_prompt", "challenger"}
    assert "1,440 rollouts of the test set stay closed" in err
    assert f"rft rollouts list {run} --open-test --reason TEXT" in err
    tested = _tested(here)
    assert rft("rollouts", "group", tested.example_id, "--stage", "challenger")[0] == 2
    code, _, err = rft("rollouts", "show", tested.rollout_id)
    assert code == 2
    assert "stay closed" in err
    assert rft("rollouts", "--json", "--where", "split = 'test'")[1] == ""
    listed = rft("rollouts", "--stage", "challenger")[1]
    assert re.search(r"72 of \d+ rollouts of run", listed)
    assert "1,440 rollouts of the test set stay closed" in listed
    summary = rft("rollouts", "summary", "--stage", "challenger")[1]
    assert "1512 sampled" in summary, "counts are not secret"
    assert "1 sampled" not in rft("rollouts", "summary", "--example", tested.example_id, "--stage", "challenger")[1]
    assert not openings(here)


def _tested(clone: Clone) -> rollout_log.LogRow:
    content = Revision(clone, records.load_all(clone)[0].revision or "").read(stage_files.rollouts("challenger"))
    assert content
    return rollout_log.read(content)[0]


@pytest.mark.slow
def test_opening_is_an_entry_once_and_retires_the_set(here: Clone, rft: Rft, monkeypatch: pytest.MonkeyPatch) -> None:
    run = records.load_all(here)[0].name
    code, out, err = rft("rollouts", "--json", "--stage", "challenger", "--open-test")
    assert (code, out) == (2, "")
    assert "--open-test needs --reason TEXT" in err
    assert rft("rollouts", *WHY)[0] == 2, "a reason of nothing"
    assert not openings(here)

    monkeypatch.setenv("JUDGE_KEY", "sesame-open-9")
    params = here.root / "params.yaml"
    params.write_text(params.read_text() + "tools:\n  headers:\n    Authorization: env:JUDGE_KEY\n")
    why = ("--reason", "the judge said sesame-open-9")
    code, out, err = rft("rollouts", "list", run, "--json", "--stage", "challenger", "--open-test", *why)
    assert (code, {row["split"] for row in rows(out)}) == (0, {"test", "validation"})
    state = book.read(here).state
    [(number, opened)] = state.opened.items()
    look = state.looks[opened.registration].act
    assert (opened.run, opened.model, opened.test_sha256) == (run, "tiny", look.test_sha256)
    assert (opened.examples, opened.who) == (look.examples, user(here))
    assert "sesame" not in opened.reason
    assert f"open by entry {number} of the ledger" in err
    assert rft("rollouts", "list", run, "--json", "--open-test")[0] == 0, "which is known now"
    assert len(openings(here)) == 1
    assert f"test {look.test_sha256[:12]} is OPENED, and retired" in rft("ledger")[1]
    entries = [json.loads(line) for line in rft("ledger", "--json")[1].splitlines()]
    assert [entry["act"]["run"] for entry in entries if entry["act"]["kind"] == "opened"] == [run]


@pytest.mark.slow
def test_the_page_of_an_opened_test_set_is_another_file(here: Clone, rft: Rft) -> None:
    run = records.load_all(here)[0].name
    code, out, _ = rft("runs", "report", run)
    closed = Path(out.strip())
    assert code == 0
    text = closed.read_text()
    assert "the test set stays closed" in text
    assert "example n-00" not in text
    assert rft("runs", "report", run, "--open-test")[0] == 2
    code, out, _ = rft("runs", "report", run, "--open-test", *WHY)
    opened = Path(out.splitlines()[-1])
    assert code == 0
    assert opened != closed
    assert "From the test set, which is open by entry" in opened.read_text()
    assert "example n-00" in opened.read_text()
    assert closed.read_text() == text
    assert len(openings(here)) == 1
    assert rft("rollouts", "summary", run, "--open-test")[0] == 0
    assert len(openings(here)) == 1


@pytest.mark.slow
def test_a_request_comes_before_the_opening_or_never(here: Clone, rft: Rft) -> None:
    run = records.load_all(here)[0].name
    assert rft("runs", "report", run, "--open-test", *WHY)[0] == 0
    code, _, err = rft("approve", run, "--reason", "good", *people.by("Ada"))
    assert code == 2
    assert "opened the test set of run" in err
    assert "before anybody was asked to promote it" in err


@pytest.mark.slow
def test_what_was_asked_for_before_stays_valid(here: Clone, rft: Rft) -> None:
    [record] = records.load_all(here)
    request = acts.request_promotion(here, record, lambda _: None)
    assert rft("runs", "report", record.name, "--open-test", *WHY)[0] == 0
    people.approve(here, record.name)
    assert book.read(here).state.requests[request.number].promoted


@pytest.mark.slow
def test_stage_files_of_a_folder_are_opened_without_a_look(made: Path, here: Clone, rft: Rft) -> None:
    shutil.copytree(made.parent / "script/data", here.root / "data", dirs_exist_ok=True)
    code, out, err = rft("rollouts", "--here", "--json", "--stage", "challenger")
    assert (code, {row["split"] for row in rows(out)}) == (0, {"validation"})
    assert "rft rollouts list --here --open-test --reason TEXT" in err
    assert rft("rollouts", "--here", "--open-test", *WHY)[0] == 0
    [opened] = openings(here)
    assert (opened.registration, opened.model) == (0, "tiny")


def test_a_list_is_erased_by_name_and_the_ledger_says_what_that_means(here: Clone, rft: Rft) -> None:
    [look] = book.read(here).state.looks
    md5 = book.read(here).state.looks[look].act.examples.md5
    (here.root / ".dvc/config.local").write_text("['remote \"store\"']\n    url = s3://bucket/of/ours\n")
    code, out, _ = rft("ledger", "erase", str(look), "--reason", "past its time")
    assert code == 0
    assert "is erased here, and its test set is retired" in out
    assert f"s3://bucket/of/ours/files/md5/{md5[:2]}/{md5[2:]}" in out
    output = rft("ledger")[1]
    assert f"the list of examples of entry {look} is ERASED, so their looks are counted no more" in output
    assert "and the set is retired: past its time" in output
    assert rft("ledger", "verify")[0] == 0


@pytest.mark.slow
def test_a_run_that_never_came_to_its_test_set_has_nothing_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path)
    shutil.rmtree(scripted.script / "data/challenger")
    shutil.rmtree(scripted.script / "data/gate")
    params = config.load(scripted.root / "params.yaml")
    with runs.start(scripted.clone, runs.plan(scripted.clone, params, champion.BEGINNING)) as run:
        shutil.copytree(scripted.script / "data", run.tree / "data", dirs_exist_ok=True)
    monkeypatch.chdir(scripted.root)
    for verb in ("runs report", "rollouts list"):
        assert cli.main([*verb.split(), run.name, "--open-test", *WHY]) == 2
        assert "so there is nothing to open" in capsys.readouterr().err
    assert book.read(scripted.clone).state.number == 0
