"""List the runs, newest first: how each ended, what it gained, and what waits.

  rft runs list
  rft runs list -n 5 --all       the last five attempts, one row each

The lines below the table are commands for what waits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from flows.results import approval
from flows.screen import print_line, warn
from rft.commands import command
from rft.errors import RftError
from tasks.ledger import book, request_status
from tasks.ledger.state import State
from tasks.promotion import elsewhere
from tasks.runs import clone, outbox, records
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

_UNASKED = "waits for approval"
"""The gate would promote it, but the ledger could not be read. `rft approve` reads it first."""
UNFINISHED = ("preparing", "running", "interrupted", "killed", "failed")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="one row per attempt, also for those that a later attempt continued"
    )
    parser.add_argument("-n", type=int, default=20, metavar="N", help="how many (default: 20)")


def run(options: argparse.Namespace) -> int:
    here = clone.find()
    own = records.of_agent(here)
    try:
        ledger = book.read(here, report_line=print_line)
        state, time = ledger.state, book.now(ledger)
    except RftError as error:
        warn(f"{error} So this list does not show which runs were approved.")
        state, time = State(), ""
    foreign = {record.name: record for record in elsewhere.asking(here, state)}
    every = sorted([*own, *foreign.values()], key=lambda record: (record.started, record.name))[::-1]
    if not every:
        print_line(
            f"No run yet. Start one: {command('run')}\nTo run the ladder on the example recipe: {command('demo')}"
        )
        return 0
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    several = here.agent_folder is None
    for column in (*(["agent"] if several else []), "run", "ended as", "gain in reward", "code", "then"):
        table.add_column(column, no_wrap=column != "then")
    shown = [(record, 1) for record in every] if options.all else list(attempts(every))
    for record, count in shown[: options.n]:
        code = record.commit[:7] + (" + edits" if record.dirty else "")
        ended = _end(here, record) + (f" ({count} attempts)" if count > 1 else "")
        then = _then(here, record, state, time) + (" (another clone's)" if record.name in foreign else "")
        whose = [record.agent or ""] if several else []
        table.add_row(*whose, record.name, ended, _gain(record), code, then)
    Console(highlight=False).print(table)
    for line in _next(here, [record for record, _ in shown[: options.n]], state, time):
        print_line(line)
    return 0


def attempts(newest_first: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, int]]:
    """Yield the last attempt per key, newest first, and how many attempts there were.

    A key is one combination of commit, edits, settings, window and champion. Runs that were
    interrupted, killed or failed are attempts of the next run with the same key.
    """
    counts: dict[str, int] = {}  # name of the row's run -> attempts
    rows: dict[str, RunRecord] = {}  # key -> the row that an earlier attempt belongs to
    order: list[RunRecord] = []
    for record in newest_first:
        if record.state in UNFINISHED and record.key in rows:
            counts[rows[record.key].name] += 1
            continue
        rows[record.key] = record
        counts[record.name] = 1
        order.append(record)
    for record in order:
        yield record, counts[record.name]


def _end(here: Clone, record: RunRecord) -> str:
    if record.state in ("running", "preparing"):
        return "(running)" if records.alive(here, record.name) else "(cut off)"
    if record.state == "stopped" and record.verdict != "stop":
        return f"stopped after {record.until}" if record.until else "training collapsed"
    return record.decision or ("stopped at drift" if record.state == "stopped" else record.state)


def _gain(record: RunRecord) -> str:
    if not record.gain or record.gain.get("value") is None:
        return "–"
    value, low, high = (record.gain.get(end) for end in ("value", "low", "high"))
    interval = f" [{low:+z.2f}, {high:+z.2f}]" if low is not None and high is not None else ""  # z: no -0.00
    return f"{value:+z.2f}{interval}"


def _then(here: Clone, record: RunRecord, state: State, time: str) -> str:
    if record.name in _champions(state):
        return "champion"
    if record.state == "paused":
        return "waits: raise max_hours"
    if _goes_on(here, record):
        return "can go on"
    if (request := state.request(record.name)) is not None:
        return request_status.status(state, request, time).description
    if record.decision == "promote" and record.by_policy is False:
        return "other thresholds"
    return _UNASKED if record.decision == "promote" else ""


def _goes_on(here: Clone, record: RunRecord) -> bool:
    return record.state in ("interrupted", "killed") or (
        record.state == "running" and not records.alive(here, record.name)
    )


def _next(here: Clone, shown: Sequence[RunRecord], state: State, time: str) -> Iterator[str]:
    """Yield commands to paste, for the newest runs that wait for somebody."""
    if going_on := [record for record in shown if record.state == "paused" or _goes_on(here, record)]:
        yield f"\nGo on with {going_on[0].name}: {going_on[0].again}"
        yield "If files of the clone have changed since, that is a new run, and finished stages come from the cache."
    commands = {request.act.run: each.approve for request, each in request_status.open_requests(state, time)}
    commands |= {record.name: approval(record) for record in shown if _then(here, record, state, time) == _UNASKED}
    if waiting := [record.name for record in shown if record.name in commands]:
        yield f"\nApprove {waiting[0]}: {commands[waiting[0]]}"
    if owed := outbox.owed(here, "mlflow"):
        yield f"\nMLflow may not show all of {', '.join(owed[-3:])} yet: the next run tells it, and an approval."


def _champions(state: State) -> set[str]:
    """Return the runs that are served."""
    return {state.promotions[number].run for model in state.moves if (number := state.champion(model))}
