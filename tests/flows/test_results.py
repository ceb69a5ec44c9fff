"""How a run ended, on the terminal: what stood in the way first, and what was not measured in
red."""

from __future__ import annotations

import textwrap

import pytest
from rich.text import Text

from flows import results
from rft import reports
from rft.reports import Check, Decision, Registration, plain
from tests import sample_reports
from tests.sample_reports import Scenario

LOOK = Registration(registered=True, entry=12, look=2, looks=5, by_policy=True)


def told(decision: Decision, apart: Check | None = None, look: Registration | None = LOOK) -> list[tuple[str, str]]:
    """Each line, and its style."""
    return [
        (line.plain, str(line.style)) if isinstance(line, Text) else (line, "")
        for line in results.checks(decision, apart, look)
    ]


def decision(scenario: Scenario) -> Decision:
    return reports.read(Decision, sample_reports.stage_files(scenario) / "data/gate/decision.json")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["promote", "reject", "inconclusive"])
def test_what_decided_is_told_first_and_the_other_groups_have_a_line_each(scenario: Scenario) -> None:
    found = decision(scenario)
    lines = [line for line, _ in told(found)]
    titles = [line.strip().partition(":")[0] for line in lines if line[:1] != " "]
    assert (titles[0] == "What stood in the way") == (scenario != "promote")
    assert sum(line.startswith("      ") for line in lines) == 1, "a sentence for the first check"
    for group in plain.groups(found):
        not_passed = [check for check in group.checks if check.passed is not True]
        assert all(any(f" {check.name}: " in line for line in lines) for check in not_passed[:2])
        assert group.title in titles
    assert "\nLook 2 of 5 at this test set; 3 left." in lines[-1]


def test_the_end_of_a_run_fits_a_screen_of_40_lines() -> None:
    """Also where everything went wrong in many slices, on a terminal of 120 columns."""
    good = decision("promote")
    slices = [
        Check(name=f"slice s{n}", kind="veto", passed=False, value=-0.3, low=-0.4, high=-0.2, margin=-0.05, detail="x")
        for n in range(200)
    ]
    bad = good.model_copy(update={"decision": "reject", "checks": [*good.checks, *slices]})
    table, last = 11, 8  # of the arms; the decision and what to do next
    for found in (good, bad, decision("inconclusive")):
        rows = [row for text, _ in told(found) for line in text.split("\n") for row in textwrap.wrap(line, 120) or [""]]
        assert len(rows) + table + last <= 40, "\n".join(rows)


def test_what_was_not_measured_is_red_and_so_is_a_look_that_nobody_registered() -> None:
    found = decision("promote")
    blind = Check(
        name="P95 latency", kind="non_inferiority", passed=None, value=None, decides=False, detail="no seconds"
    )
    styles = dict(told(found, blind, Registration()))
    assert styles["  ! P95 latency: not measured (no seconds) (not deciding)"] == "red"
    assert styles["  ! P95 latency: no seconds. It has no vote, so this blocks nothing."] == "red"
    assert styles["\nNot registered: this was decided by hand, and nobody is asked to promote it."] == "red"
    assert dict(told(found)).popitem()[1] == ""


@pytest.mark.slow
def test_nothing_is_said_of_looks_where_there_was_no_candidate() -> None:
    lines = [line for line, _ in told(decision("skipped"), look=None)]
    assert [line.strip().partition(":")[0] for line in lines if line[:1] != " "] == ["The preconditions"]
