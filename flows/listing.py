"""`rft runs`: what ran in this clone and how it ended, newest first. Reads the records and the ledger, nothing heavier."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from flows.results import command
from flows.screen import say
from tasks import clone, ledger, records
from tasks.clone import Clone
from tasks.records import RunRecord


def show(number: int) -> int:
    here = clone.find()
    every = records.load_all(here)
    if not every:
        say(f"No run yet. Start one: {command()} run, or see the whole ladder at work: {command()} demo")
        return 0
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in ("run", "ended as", "gain in reward", "code", "then"):
        table.add_column(column, no_wrap=column != "then")
    champion = _champion(here)
    for record in sorted(every, key=lambda one: one.started, reverse=True)[:number]:
        code = record.commit[:7] + (" + edits" if record.dirty else "")
        table.add_row(record.name, _end(here, record), _gain(record), code, _then(here, record, champion))
    Console(highlight=False).print(table)
    return 0


def _end(here: Clone, record: RunRecord) -> str:
    if record.state in ("running", "preparing"):
        return "(running)" if records.alive(here, record.name) else "(cut off)"
    return record.decision or ("stopped at drift" if record.state == "stopped" else record.state)


def _gain(record: RunRecord) -> str:
    if not record.gain or record.gain.get("value") is None:
        return "–"
    value, low, high = (record.gain.get(end) for end in ("value", "low", "high"))
    return f"{value:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if low is not None and high is not None else "")


def _then(here: Clone, record: RunRecord, champion: str | None) -> str:
    if record.name == champion:
        return "champion"
    if record.state == "paused":
        return "waits: raise max_hours"
    if record.state == "running" and not records.alive(here, record.name):
        return f"`{command()} run` goes on"
    last = ledger.decided(here, record.name)
    if last is not None:
        return {"promote": "was champion", "reject": f"rejected by {last.who}", "rollback": "was champion"}[last.action]
    return "waits for approval" if record.decision == "promote" else ""


def _champion(here: Clone) -> str | None:
    moved = [act for act in ledger.acts(here) if act.action in ("promote", "rollback")]
    return moved[-1].run if moved else None
