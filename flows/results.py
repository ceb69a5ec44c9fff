"""Show how a run ended: the table of the three arms, the gate's checks, the page, what to do next.

Everything is read from the run's revision by hash, so it is the same an hour or a year later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rft import commands, stage_files
from rft.formatting import counted
from rft.reports import (
    ChallengerReport,
    Check,
    Decision,
    ExamplesReport,
    Registration,
    TrainReport,
    plain,
    wording,
)
from rft.reports.plain import ARMS, between
from tasks.display.markdown import ROWS, cell
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

_SHOWN = 2
"""How many checks of a group are shown, so that the end of a run fits a screen of 40 lines."""
_SIGNS = {"passed": "✓", "failed": "✗", "open": "?", "not measured": "!"}


def show(clone: Clone, record: RunRecord, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    at = Revision(clone, record.revision) if record.revision else None
    decision = at and at.report(Decision)
    if at and (challenger := at.report(ChallengerReport)):
        console.print(arms(challenger))
    for line in _lines(clone, record, at, decision):
        console.print(line, markup=False, soft_wrap=True)


def _lines(clone: Clone, record: RunRecord, at: Revision | None, decision: Decision | None) -> Iterator[str | Text]:
    train = at and at.report(TrainReport)
    if train and not train.trained and not train.collapsed:
        yield f"Nothing was trained: {train.reason}."
    if decision and at:
        yield from checks(decision, _latency(at), at.told(Registration))
        yield f"\n{decision.decision}: {decision.reason}"
    elif record.verdict == "stop":
        yield f"Stopped after drift, which is a result too: {record.message}"
    elif record.state == "stopped":
        yield f"{record.message[:1].upper()}{record.message[1:]}"
    yield f"\nRun      {record.name} ({record.state}), revision {(record.revision or 'none')[:10]}"
    yield f"Report   {_short(clone.page(record.name))}"
    if decision and decision.decision == "promote" and record.by_policy is False:
        yield f"Policy   {commands.command('ledger policy', 'show')}"
    elif decision and decision.decision == "promote":
        yield f"Approve  {approval(record)}"
        yield f"   or    {commands.command('reject', record.name, *commands.WHY)}"
    elif decision and decision.more_examples and _offers_blocks(at):
        yield f"Extend   {commands.command('runs extend', record.name)}"
    elif record.until and record.state == "stopped":
        yield f"Go on    {record.again}"


def _offers_blocks(at: Revision | None) -> bool:
    report = at and at.report(ExamplesReport)
    return bool(report and report.offers_blocks)


def checks(decision: Decision, apart: Check | None, registration: Registration | None) -> Iterator[str | Text]:
    """Yield what decided, check by check, the first one in a sentence too. The other groups have a
    line each. Then come what was not measured, and how many looks are left. The page has all."""
    told = 0
    for group in plain.groups(decision, apart):
        if group.title not in (plain.STOPPED, plain.QUESTION):
            yield from _in_a_line(group)
            continue
        yield f"\n{group.title}{f': {group.about}' if group.about else ''}"
        for check in group.checks[:_SHOWN]:
            yield check_line(check)
            if check.value is not None and not told:
                yield f"      {plain.sentence(check, decision.candidate)}"
                told += 1
        yield from _more(group.checks)
    if found := plain.unseen(decision, apart):
        yield Text("\nNot measured, or too little to tell", style="red")
        yield from (Text(f"  ! {line}", style="red") for line in found[:_SHOWN])
        yield from (Text(line, style="red") for line in _more(found))
    if decision.candidate != "none":
        in_order, looks = plain.looks(registration)
        yield Text(f"\n{looks}", style="" if in_order else "red")


def _in_a_line(group: plain.Group) -> Iterator[str | Text]:
    """Count what passed in one line, and give what did not a line each."""
    rest = [check for check in group.checks if wording.verdict(check) != "passed"]
    yield f"{group.title}: {len(group.checks) - len(rest)} of {len(group.checks)} passed"
    yield from map(check_line, rest[:_SHOWN])
    yield from _more(rest)


def _more(found: Sequence[object]) -> Iterator[str]:
    if len(found) > _SHOWN:
        yield f"  ... and {len(found) - _SHOWN} more, on the page"


def check_line(check: Check) -> Text:
    """Return one line, red if nothing was measured: that must not look like nothing was found."""
    word = wording.verdict(check)
    aside = "" if check.decides else " (not deciding)"
    return Text(f"  {_SIGNS[word]} {wording.describe(check)}{aside}", style="red" if word == "not measured" else "")


def arms(report: ChallengerReport) -> Table:
    """Make a table with one column per arm, within 80 characters."""
    first = report.arms[0].sampled
    num, k = counted(len(first.rows), "test example"), counted(first.k, "rollout")
    title = f"{num}, {k} each at temperature {first.temperature:g}, 95 % intervals{between(first)}"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for arm in report.arms:
        table.add_column(ARMS[arm.name], justify="right")
    for label, (how, key) in ROWS.items():
        table.add_row(label, *(cell(getattr(arm, how).metrics.get(key)) for arm in report.arms))
    return table


def approval(record: RunRecord) -> str:
    """Return the command that approves."""
    return record.approve


def _latency(at: Revision | None) -> Check | None:
    apart = at.json(stage_files.timing("gate")) if at else None
    return Check.model_validate(apart["latency"]) if apart and not apart["latency"]["decides"] else None


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
