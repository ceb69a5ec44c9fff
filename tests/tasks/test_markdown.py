"""A run, a stage and a promotion in words: what came of it, the commands that say more, and nothing
that a stage said for itself."""

from __future__ import annotations

from typing import Any

import pytest

from rft import reports
from rft.reports import Metric
from tasks.display import markdown
from tasks.ledger.facts import Champion, SignedEntry, VerifiedStatement
from tasks.ledger.statement import Statement
from tasks.runs.records import RunRecord, State
from tests import sample_reports

SAID = "Dear Mr Smith, your ward is 7"


def record(**changes: object) -> RunRecord:
    facts: dict[str, object] = {
        "name": "20261122-2339-6c03",
        "key": "k",
        "commit": "c" * 40,
        "edits_sha256": None,
        "champion_version": 7,
        "window": "data/inbox/w.jsonl",
        "inputs": [],
        "started": "2026-11-22T23:39:00Z",
        "started_by": "Ada",
        "message": SAID,
        "stages": {"traffic": "ran", "drift": "unchanged"},
        "seconds": {"traffic": 1.5, "drift": 0.4},
    }
    return RunRecord.model_validate(facts | changes)


def read(scenario: sample_reports.Scenario) -> list[reports.Report]:
    root = sample_reports.stage_files(scenario)
    files = {
        reports.Decision: "gate/decision.json",
        reports.ChallengerReport: "challenger/report.json",
        reports.TrafficReport: "traffic/report.json",
    }
    return [reports.read(kind, root / "data" / file) for kind, file in files.items()]


def test_a_promising_run_says_decision_arms_checks_lineage_and_what_to_do() -> None:
    found = read("promote")
    one = record(state="finished", decision="promote", revision="f" * 40, edited=["a.py"], edits_sha256="e" * 64)
    text = markdown.of_run(one, found)
    decision = found[0]
    assert isinstance(decision, reports.Decision)
    assert text.startswith(f"**promote**: {decision.reason}")
    assert "|  | champion | after the prompt | after RFT |\n| --- | --- | --- | --- |\n| reward | 0." in text
    assert all(f"- ✓ {check.name}: " in text for check in decision.checks if check.passed)
    assert "- window `data/inbox/w.jsonl`, 1,200 conversations\n- began with champion 7\n" in text
    assert "commit `cccccccccc`, with 1 uncommitted file\n- stages: traffic 1.5 s, drift (unchanged)\n" in text
    assert f"- revision `{'f' * 40}`, page `.rft/reports/{one.name}.html`" in text
    assert f"- to approve: `{one.approve}`" in text
    assert f" audit {one.name}`" in text
    assert SAID not in text


def test_nobody_is_told_to_approve_what_nobody_can() -> None:
    assert "to approve" not in markdown.of_run(record(state="finished", decision="reject"), read("reject"))
    own_thresholds = record(state="finished", decision="promote", by_policy=False)
    assert "to approve" not in markdown.of_run(own_thresholds, read("promote"))


def test_many_slices_leave_room_for_the_rest() -> None:
    [decision, *others] = read("inconclusive")
    assert isinstance(decision, reports.Decision)
    many = [decision.checks[-1].model_copy(update={"name": f"slice {n}", "detail": "x" * 100}) for n in range(200)]
    long = decision.model_copy(update={"checks": many, "reason": "word " * 2000})
    text = markdown.of_run(record(state="finished", decision="inconclusive"), [long, *others])
    assert len(text) <= 8000
    assert " checks more, on the page\n" in text
    assert "- to run it again: `" in text


@pytest.mark.parametrize(
    ("state", "start"),
    [
        ("running", "**begun**. Its result is written here"),
        ("paused", "**paused** in stage examples: run.max_hours is spent."),
        ("failed", "**failed** in stage examples: why is in its clone, `.rft/logs/20261122-2339-6c03/examples.log`."),
        ("cancelled", "**cancelled** in stage examples. Its finished stages"),
        ("interrupted", "**interrupted** in stage examples. Its finished stages"),
    ],
)
def test_a_run_that_came_to_no_decision_says_where_it_is_and_quotes_no_stage(state: State, start: str) -> None:
    at = record(state=state, seconds={"traffic": 1.5, "drift": 0.4, "examples": 9.0})
    text = markdown.of_run(at, [])
    assert text.startswith(start)
    assert SAID not in text


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"state": "finished", "decision": "reject"}, "reject"),
        ({"state": "stopped", "verdict": "stop"}, "stopped after drift"),
        ({"state": "stopped", "until": "train"}, "stopped after train"),
        ({"state": "stopped"}, "training collapsed"),
        ({"state": "failed"}, "failed"),
    ],
)
def test_the_outcome_in_a_list(told: dict[str, Any], text: str) -> None:
    assert markdown.outcome(record(**told)) == text


def test_a_stop_is_a_result() -> None:
    assert markdown.of_run(record(state="stopped", verdict="stop"), []).startswith("**stopped after drift**")
    assert markdown.of_run(record(state="stopped", until="train"), []).startswith("**stopped after train**, as")


def test_a_stage_is_a_table_of_its_numbers() -> None:
    numbers = {"reward/mean": Metric(value=0.5, low=0.4, high=0.6, n=9), "share | mixed": 0.25, "none": None}
    assert markdown.of_stage("baseline", "restored", numbers) == (
        "**baseline** (restored: nothing that it depends on has changed)\n\n"
        "|  | 95 % interval |\n| --- | --- |\n| reward/mean | 0.50 [0.40, 0.60] |\n| share \\| mixed | 0.25 |"
    )


def test_a_promotion_says_who_why_and_how_to_audit_it() -> None:
    signed = Statement.model_construct(reason="half the\ncalls")
    approval = SignedEntry(8, "2026-11-22T23:39:00Z", VerifiedStatement("ada", "SHA256:k", signed))
    made = Champion(9, "e" * 40, "2026-11-22T23:40:00Z", "tiny", "r-1", "f" * 40, 0, (approval,), (), False, 7, "")
    text = markdown.of_promotion(
        made,
        reports.Decision(decision="promote", reason="better.", candidate="challenger", checks=[], hashes={}),
        "weights `data/train/weights`",
    )
    assert text == (
        "**Champion 9 of tiny**, promoted 2026-11-22T23:40:00Z by ada: half the calls.\n\n"
        "- the gate said promote: better\n- it replaced the beginning\n- served: weights `data/train/weights`\n"
        f"- run `r-1`, revision `{'f' * 40}`\n- ledger: entry 9, `{'e' * 40}`\n- to audit it: `rft audit tiny@9`"
    )
    assert "- it replaced the beginning" in markdown.of_promotion(made, None, "")
