"""What `rft traffic drift` prints and writes: a table in the order of the page, options that fit
together, and the history of a clone's runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ladder_clone
import pytest
from rich.console import Console

from flows import cli, drift
from rft import reports
from rft.page import DriftComparison
from rft.reports import DriftReport, TrafficReport, drift_wording
from tasks.display import comparisons
from tasks.display.comparisons import History
from tasks.runs import artifacts, records
from tasks.runs.clone import Clone
from tasks.runs.git import git_bytes
from tests.page import sample_drift

pytestmark = pytest.mark.slow


def told(report: DriftReport, width: int = 100) -> list[str]:
    return [line.plain for line in drift.lines(report, width)]


# -- the table -------------------------------------------------------------------------------------
def test_the_table_is_grouped_and_what_drifted_stands_first() -> None:
    lines = told(sample_drift.full())
    titles = [line for line in lines[1:] if line[:1].isalpha()]
    assert titles[:4] == [
        "Input against the training examples, recipe icd10 (2,000)",
        "Input against the validation examples, recipe icd10 (192)",
        "Input against the test examples, recipe icd10 (288)",
        "Input against the earlier window, data/inbox/2026-W13.jsonl (1,180)",
    ]
    start = lines.index(titles[0])
    signs = [line[2] for line in lines[start + 1 : lines.index(titles[1])] if line[:2] == "  " and line[2:3].strip()]
    assert "".join(signs) == "✗✗✗✗✓✓"
    assert lines[-2].startswith("refresh: Rebuild the examples from this window")
    assert "broken contract: values to be between on latency_s: 0.11 to 9,212" in lines


def test_the_short_form_is_the_verdict_and_each_of_a_few_features_once() -> None:
    report = sample_drift.full()
    lines = [line.plain for line in drift.brief(report, "rft traffic drift w.jsonl", 100)]
    assert lines[0].startswith("refresh: Rebuild the examples from this window")
    rows = [line for line in lines if line[2:3] in "✗✓?" and " of " in line]
    names = [row.split()[1] for row in rows]
    assert len(rows) == len(set(names)) == 4
    compared = [feature for feature in report.features if feature.effect is not None]
    ratios: dict[str, float] = {}
    for feature in compared:
        if feature.drifted and feature.group == "input":
            ratios[feature.feature] = max(drift_wording.ratio(feature), ratios.get(feature.feature, 0))
    assert names[: len(ratios)] == sorted(ratios, key=lambda name: -ratios[name])[:4]
    assert all(", against the " in row for row in rows)
    hidden = sum(feature.drifted for feature in compared) - 4
    command = "rft traffic drift w.jsonl"
    message = f"{len(compared) - 4} more comparisons, {hidden} of them drifted; all with their numbers: {command}"
    assert lines[-1] == message


def test_the_short_form_of_a_quiet_window_has_what_came_nearest() -> None:
    lines = [line.plain for line in drift.brief(sample_drift.quiet(), "rft traffic drift w.jsonl", 100)]
    assert len([line for line in lines if line[2:3] == "✓"]) == 4
    assert "of them drifted" not in lines[-1]
    bare = sample_drift.quiet().model_copy(update={"features": []})
    assert len(list(drift.brief(bare, "rft traffic drift w.jsonl"))) <= 3


def test_columns_are_aligned_over_all_groups() -> None:
    rows = [line for line in told(sample_drift.full(), 80) if line[2:3] in "✗✓?" and " of " in line]
    assert len(rows) == 30
    places = {line.index(" of 0.") for line in rows}
    assert len(places) == 1
    assert {line.index("q 0.") for line in rows} == {rows[0].index("q 0.")}


def test_what_drifted_is_told_in_words_within_the_width() -> None:
    lines = told(sample_drift.full(), 60)
    assert "      words that users write: 'refund' 12.1% -> 31.4%," in lines
    assert max(map(len, lines[:-4])) <= 60 + len("Input against the validation examples, recipe icd10 (192)")
    assert all(len(line) <= 60 for line in lines if line.startswith("      "))
    assert "      no reference yet; now 3fa91c02be77 100%" in lines


def test_what_a_window_names_moves_no_cursor() -> None:
    evil = "\x1b[2Jgone\r"
    row = sample_drift.full().features[0].model_copy(update={"feature": evil, "detail": evil})
    report = sample_drift.full().model_copy(update={"features": [row], "advice": evil, "reason": evil})
    found = "\n".join(told(report))
    assert "\x1b" not in found
    assert "\r" not in found
    assert "\\x1b[2Jgone" in found


def test_a_window_of_which_nothing_was_compared_is_told_too(tmp_path: Path) -> None:
    out = io.StringIO()
    bare = sample_drift.quiet().model_copy(update={"features": [], "data_docs": "reports/index.html"})
    drift.tell(Clone(tmp_path), bare, Console(file=out, width=80), "w.jsonl")
    assert out.getvalue().splitlines()[0] == "w.jsonl: 900 conversations against 2,000"
    assert "Data Docs: " in out.getvalue()


# -- options ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no FILE. Name a window of traffic"),
        (["w.jsonl", "--history"], "--history shows what runs found"),
        (["--history", "--against", "w.jsonl"], "--history shows what runs found"),
        (["w.jsonl", "-n", "3"], "Add --history"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["traffic", "drift", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_page_is_written_whole_and_a_folder_is_refused(tmp_path: Path) -> None:
    found = [DriftComparison("w.jsonl", "w.jsonl", sample_drift.full())]
    drift.write_page(tmp_path / "new/page.html", found)
    assert (tmp_path / "new/page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(reports.base.UserError, match=r"a folder\. Name a file"):
        drift.write_page(tmp_path, found)


# -- the history of a clone ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[ladder_clone.Scripted, list[str]]:
    """Four runs: quiet, quiet again, drifted, and one whose bytes are gone. Two are real, and two
    have the revision of one of them."""
    scripted = ladder_clone.make(tmp_path_factory.mktemp("history"))
    names: list[str] = []
    for seed, report in enumerate((sample_drift.quiet(), sample_drift.quiet("vocabulary", 9.0))):
        reports.write(report, scripted.script / "data/drift/report.json")
        scripted.set_params(challenger={"seed": seed})
        scripted.git("commit", "--quiet", "--all", "--message", f"seed {seed}")
        real = ladder_clone.run_ladder(scripted)
        for copy in (0, 1):
            name = f"{real.name}-{copy}" if copy else real.name
            started = f"2026-04-0{2 * seed + copy + 1}T00:00:00Z"
            gone = "2026-05-01T00:00:00Z" if (seed, copy) == (1, 1) else None
            change = {"name": name, "started": started, "bytes_removed": gone}
            records.save(scripted.clone, real.model_copy(update=change))
            names.append(name)
    return scripted, names


def test_the_runs_of_a_clone_are_read_from_their_revisions(clone: tuple[ladder_clone.Scripted, list[str]]) -> None:
    scripted, names = clone
    found = comparisons.history(scripted.clone, "tiny")
    assert [comparison.name for comparison in found.comparisons] == [names[0], names[2], names[3]]
    assert [comparison.alike for comparison in found.comparisons] == [1, 0, 0]
    assert found.comparisons[1].report == sample_drift.quiet("vocabulary", 9.0)
    assert "were removed at 2026-05-01" in found.comparisons[2].missing
    traffic = reports.read(TrafficReport, scripted.script / "data/traffic/report.json")
    assert found.comparisons[0].when == f"{traffic.first[:10]} to {traffic.last[:10]}"
    assert comparisons.history(scripted.clone, "another") == History([], 0)
    assert [comparison.name for comparison in comparisons.history(scripted.clone, "tiny", last=2).comparisons] == names[
        2:
    ]


def test_of_many_runs_with_the_same_content_one_is_read(
    clone: tuple[ladder_clone.Scripted, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted, names = clone
    calls: list[tuple[str, ...]] = []

    def counted(where: Path, *arguments: str, **more: Any) -> bytes:
        calls.append(arguments)
        return git_bytes(where, *arguments, **more)

    record = records.find(scripted.clone, names[0])
    idle = [record.model_copy(update={"name": f"idle-{n:03}", "started": "2026-03-01T00:00:00Z"}) for n in range(100)]
    for each in idle:
        records.save(scripted.clone, each)
    try:
        monkeypatch.setattr(artifacts, "git_bytes", counted)
        found = comparisons.history(scripted.clone, "tiny").comparisons
    finally:
        for each in idle:
            records.path(scripted.clone, each.name).unlink()
    assert [(comparison.name, comparison.alike) for comparison in found[:1]] == [("idle-000", 101)]
    assert len(calls) < 20, "one question for all, and the files of three runs"


def test_the_page_of_a_run_has_the_course_of_the_runs_before_it(
    clone: tuple[ladder_clone.Scripted, list[str]], tmp_path: Path
) -> None:
    scripted, names = clone
    record = records.find(scripted.clone, names[2])
    reports.write(sample_drift.full(), tmp_path / "data/drift/report.json")
    found = comparisons.with_own(scripted.clone, record, tmp_path, "tiny")
    assert [comparison.name for comparison in found] == [names[0], names[2]]
    assert found[-1].report == sample_drift.full()
    reports.write(sample_drift.quiet(), tmp_path / "data/drift/report.json")
    same = comparisons.with_own(scripted.clone, record, tmp_path, "tiny")
    assert [(comparison.name, comparison.alike) for comparison in same] == [(names[0], 2)]
    assert comparisons.with_own(scripted.clone, record, tmp_path / "nothing", "tiny") == []


def test_history_is_a_table_json_and_a_page(clone: tuple[ladder_clone.Scripted, list[str]]) -> None:
    scripted, names = clone
    done = scripted.rft("traffic", "drift", "--history", "--html", "out/drift.html")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["run", "window", "verdict", "farthest", "of", "the", "input"]
    assert [line.split()[0] for line in lines[1:4]] == [names[3], names[2], names[0]]
    assert "vocabulary 2.40 (drifted); drifted: input 1 of 6, agent 0 of 4, performance 0 of 2" in lines[2]
    assert f"{names[0]} and 1 later" in lines[3]
    assert "Drift of tiny, run by run" in (scripted.root / "out/drift.html").read_text()
    found = json.loads(scripted.rft("traffic", "drift", "--history", "-n", "1", "--json").stdout)
    assert [(comparison["run"], comparison["report"]) for comparison in found] == [(names[3], None)]
