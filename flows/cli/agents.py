"""List the agents: champion, last run, what waits, what comes next.

  rft agents
  rft --agent refunds runs         work on one of them; or change into its folder

The other verbs work on one agent: the one whose folder you are in, or the one that --agent names.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from flows.screen import print_line
from rft import commands, secrets
from tasks.ledger import book, request_status, statement
from tasks.ledger.state import State
from tasks.runs import champion, clone, records, workspace
from tasks.runs.records import RunRecord


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    state, every = book.latest(here, print_line).state, records.load_all(here)
    schedules = (workspace.read(here.root) or workspace.Workspace()).schedules
    rows = [_row(agent, state, every, schedules.get(agent.name)) for agent in workspace.agents(here.root)]
    if options.json:
        print_line(secrets.dumps(rows, ensure_ascii=False, indent=1))
        return 0
    if not rows:
        print_line(f"No agent yet. Make one: {commands.command('new', 'agents/NAME')}")
    for row in rows:
        print_line(f"{row['name']}  {row['folder']}")
        print_line(f"  champion   {row['champion']}")
        print_line(f"  last run   {row['last run']}")
        for optional in ("waits", "next run"):
            if row[optional]:
                print_line(f"  {optional:<10} {row[optional]}")
    return 0


def _row(
    agent: workspace.Agent, state: State, every: list[RunRecord], schedule: workspace.Schedule | None
) -> dict[str, str]:
    number = state.champion(agent.name)
    moves = state.moves.get(agent.name, [])
    since = f", since {moves[-1].time}" if moves else ""
    mine = [record for record in every if record.agent == agent.name]
    last = "none yet"
    if mine:
        ended = mine[-1].decision or mine[-1].state
        last = f"{mine[-1].name}: {ended}, {mine[-1].started}"
    waits = [
        f"run {request.act.run} {found.description}: {found.approve}"
        for request, found in request_status.open_requests(state, statement.now())
        if request.act.model == agent.name
    ]
    return {
        "name": agent.name,
        "folder": agent.folder or ".",
        "champion": f"{champion.describe(number)}{since}",
        "last run": last,
        "waits": "; ".join(waits),
        "next run": _due(schedule) if schedule else "",
    }


def _due(schedule: workspace.Schedule) -> str:
    try:
        due = schedule.next(datetime.now(UTC))
    except ValueError as error:
        return f"not planned: {error} ({workspace.FILE})"
    return f"{due:%Y-%m-%d %H:%M} ({schedule.timezone}), while `{commands.command('up')}` goes on"
