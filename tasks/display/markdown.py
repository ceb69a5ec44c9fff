"""A run, a stage and a promotion in words, as Markdown for the pages of MLflow and Prefect.

A reader of these pages has neither our terminal nor the ledger at hand. So each text says what was
asked for and how it ended, and closes with the commands that say more. Nothing is computed here.
The gate's sentences are made from numbers. What a stage itself says may quote conversations, and
stays in the clone's logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rft import commands, reports
from rft.formatting import counted
from rft.reports import Metric, plain, wording
from rft.reports.plain import ARMS, between
from tasks.ledger.facts import Champion
from tasks.runs import champion
from tasks.runs.records import RunRecord

R = TypeVar("R", bound=reports.Report)

ROWS = {
    "reward": ("sampled", "reward/mean"),
    "score": ("sampled", "score/mean"),
    "solved": ("sampled", "solved/share"),
    "greedy score": ("greedy", "score/mean"),
    "tool calls, P95": ("sampled", "tool_calls/p95"),
}
"""The rows of the table of arms: row -> how it was measured, and the metric."""
_SIGNS = {"passed": "✓", "failed": "✗", "open": "?", "not measured": "!"}
_LONGEST = 7800
"""MLflow keeps 8,000 characters of a tag. A version's description has 5,000."""


# -- a run -----------------------------------------------------------------------------------------
def of_run(record: RunRecord, found: Sequence[reports.Report]) -> str:
    """Describe a run. `found` holds the reports that it has written."""
    decision = _find(reports.Decision, found)
    blocks = [_headline(record, decision)]
    if challenger := _find(reports.ChallengerReport, found):
        blocks.append(arms(challenger))
    tail = ["\n".join(_facts(record, _find(reports.TrafficReport, found))), _commands(record, decision)]
    if decision:
        room = _LONGEST - sum(len(block) + 2 for block in [*blocks, *tail])
        blocks.append(_checks(decision, room))
    return "\n\n".join([*blocks, *tail])


def outcome(record: RunRecord) -> str:
    """Say in a few words how a run ended. MLflow's list shows a run that drift stopped as finished,
    like one that promotes."""
    if record.decision:
        return record.decision
    if record.state != "stopped":
        return record.state
    if record.verdict == "stop":
        return "stopped after drift"
    return f"stopped after {record.until}" if record.until else "training collapsed"


def _headline(record: RunRecord, decision: reports.Decision | None) -> str:
    if decision:
        return f"**{decision.decision}**: {_clipped(decision.reason)}"
    if record.verdict == "stop":
        return "**stopped after drift**, which is a result too: the page says what has drifted."
    at = next((stage for stage in record.seconds if stage not in record.stages), None)
    where = f" in stage {at}" if at else ""
    match record.state:
        case "stopped" if not record.until:
            return f"**training collapsed**: {_clipped(record.message)}."
        case "stopped":
            return f"**stopped after {record.until}**, as `--until` asked: no look at the test set was taken."
        case "paused":
            return f"**paused**{where}: run.max_hours is spent. Its work is kept, and more hours go on with it."
        case "failed":
            log = f": why is in its clone, `.rft/logs/{record.name}/{at}.log`" if at else " before its first stage"
            return f"**failed**{where}{log}."
        case "preparing" | "running":
            return "**begun**. Its result is written here when it ends or stops."
        case state:
            return f"**{state}**{where}. Its finished stages and unfinished work are kept."


def arms(report: reports.ChallengerReport) -> str:
    """Make a table with one column per arm."""
    first = report.arms[0].sampled
    about = f"{counted(len(first.rows), 'test example')}, {counted(first.k, 'rollout')} each at temperature "
    rows = [
        (label, *(cell(getattr(arm, how).metrics.get(key)) for arm in report.arms))
        for label, (how, key) in ROWS.items()
    ]
    head = ("", *(ARMS[arm.name] for arm in report.arms))
    return f"{about}{first.temperature:g}, 95 % intervals{between(first)}\n\n{_table(head, rows)}"


def cell(metric: Metric | None) -> str:
    """Write a number with its interval."""
    if metric is None:
        return "–"
    form = "z.2f" if abs(metric.value) < 2 else "z.3g"  # z: no -0.00
    interval = "" if metric.low is None or metric.high is None else f" [{metric.low:{form}}, {metric.high:{form}}]"
    return f"{metric.value:{form}}{interval}"


def _checks(decision: reports.Decision, room: int) -> str:
    """List as many checks as there is room for, those that stopped the promotion first."""
    lines, left = ["The gate's checks:", ""], room - 120
    checks = [check for group in plain.groups(decision) for check in group.checks]
    for place, check in enumerate(checks):
        line = f"- {_SIGNS[wording.verdict(check)]} {wording.describe(check)}"
        left -= len(line) + 1
        if left < 0:
            lines.append(f"- and {counted(len(checks) - place, 'check')} more, on the page")
            break
        lines.append(line)
    return "\n".join(lines)


def _facts(record: RunRecord, traffic: reports.TrafficReport | None) -> Iterator[str]:
    edits = f", with {counted(len(record.edited), 'uncommitted file')}" if record.dirty else ""
    num = f", {counted(traffic.num_conversations, 'conversation')}" if traffic else ""
    yield f"- run `{record.name}`, started {record.started} by {record.started_by}"
    if record.extends:
        yield f"- it looks again at the candidates of run `{record.extends}`"
    yield f"- window `{record.window}`{num}"
    yield f"- began with {champion.describe(record.champion_version)}"
    yield f"- code: commit `{record.commit[:10]}`{edits}"
    if record.stages:
        yield f"- stages: {', '.join(_stages(record))}"
    if record.revision:
        yield f"- revision `{record.revision}`, page `.rft/reports/{record.name}.html`"


def _stages(record: RunRecord) -> Iterator[str]:
    for stage, how in record.stages.items():
        yield f"{stage} {record.seconds.get(stage, 0.0):g} s" if how == "ran" else f"{stage} ({how})"


def _commands(record: RunRecord, decision: reports.Decision | None) -> str:
    found: dict[str, str] = {}
    if decision and decision.decision == "promote" and record.by_policy is not False:
        found["to approve"] = record.approve
        found["to reject"] = commands.command("reject", record.name, *commands.WHY)
    if record.revision:
        found["to audit"] = commands.command("audit", record.name)
        found["its page"] = commands.command("runs report", record.name)
    found["to go on" if record.state in ("paused", "running") else "to run it again"] = record.again
    return "\n".join(f"- {text}: `{line}`" for text, line in found.items())


# -- a stage ---------------------------------------------------------------------------------------
def of_stage(stage: str, how: str, numbers: Mapping[str, Metric | float | None]) -> str:
    """List a stage's final numbers."""
    rows = [(key, _number(number)) for key, number in numbers.items() if number is not None]
    text = "" if how == "ran" else f" ({how}: nothing that it depends on has changed)"
    return f"**{stage}**{text}" + (f"\n\n{_table(('', '95 % interval'), rows)}" if rows else "")


def _number(number: Metric | float) -> str:
    return cell(number) if isinstance(number, Metric) else f"{number:g}"


# -- a promotion -----------------------------------------------------------------------------------
def of_promotion(made: Champion, decision: reports.Decision | None, served: str) -> str:
    """Describe the registered version that stands for a promotion. `served` says in words what is
    served."""
    gate = f"- the gate said {decision.decision}: {_clipped(decision.reason)}" if decision else ""
    lines = [
        f"**Champion {made.number} of {made.model}**, promoted {made.time} by {made.who}: {_clipped(made.why)}.",
        "",
        gate,
        f"- it replaced {champion.describe(made.before)}",
        f"- served: {served}",
        f"- run `{made.run}`, revision `{made.revision}`",
        f"- ledger: entry {made.number}, `{made.id}`",
        f"- to audit it: `{audit(made.model, made.number)}`",
    ]
    return "\n".join(line for place, line in enumerate(lines) if line or place == 1)


def of_beginning(model: str) -> str:
    return (
        f"**The beginning of {model}**: the base policy with the seed prompt, before any promotion.\n\n"
        f"- to audit it: `{audit(model, 0)}`"
    )


def audit(model: str, number: int) -> str:
    """Return the command that recomputes every link of a version, in any clone."""
    return f"rft audit {model}@{number}"


# -- Markdown --------------------------------------------------------------------------------------
def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |" for line in lines)


def _clipped(text: str) -> str:
    """Shorten a text to one line that leaves room on the page."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= 1000 else f"{text[:1000]}…"


def _find(kind: type[R], found: Iterable[reports.Report]) -> R | None:
    return next((report for report in found if isinstance(report, kind)), None)
