"""Show who is champion, and who decided it.

  rft champion                             of every model
  rft champion icd10 --at 2026-09-01       who it was on that day

Where the ledger is shared, it is fetched first.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line, warn
from rft.errors import UserError
from tasks.ledger import book
from tasks.promotion import acts, agents, champions
from tasks.runs import champion, clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the name of a recipe's folder")
    parser.add_argument("--at", metavar="DATE", help="as of this day or moment, such as 2026-09-01T12:00Z")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    at = moment(options.at) if options.at else None
    state = book.latest(here, print_line).state
    wanted = options.model
    if wanted and state.moves:
        acts.assert_model(state, wanted)
    if options.params or options.overrides:
        if wanted:
            raise UserError("MODEL names the model, and so do --params and --set: give one of them.")
        wanted = champions.model_name(settings.resolve(here, options.params, options.overrides))
    wanted = wanted or here.model(state.moves)
    if state.restarts:
        warn(f"the ledger was restarted at entry {state.since}: its owners' keys were lost. See rft ledger.")
    if not state.moves or (wanted and wanted not in state.moves):
        of = f" of {wanted}" if wanted else ""
        print_line(
            f"Nothing{of} was promoted yet: the champion is the beginning, the base policy with the seed prompt."
        )
    for model, moves in state.moves.items():
        if wanted in (None, model):
            then = [move for move in moves if at is None or move.time <= at]
            number = then[-1].champion if then else 0
            since = f", since {then[-1].time}" if then else ""
            print_line(f"{model}: {champion.describe(number)}{since}")
            if made := state.promotions.get(number):
                print_line(f"  run {made.run}, revision {made.revision[:10]}; {agents.approval(made)}")
            doubtful = state.doubtful()
            for entry in dict.fromkeys((number, *(move.number for move in then[-1:]))):
                if entry in doubtful:
                    warn(f"entry {entry} is doubtful: {doubtful[entry]}")
    return 0


def moment(text: str) -> str:
    """Read a day (its end) or a moment, as the ledger writes times."""
    try:
        found = datetime.fromisoformat(text if "T" in text else f"{text}T23:59:59")
    except ValueError:
        raise UserError(f"--at {text!r} is not a date. Write it like 2026-09-01 or 2026-09-01T12:00Z.") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return found.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
