"""Approve what a run's gate would promote.

  rft approve RUN --reason "half the calls"
  rft approve RUN --print --reason TEXT          what to sign, where the key lies on another machine
  rft approve RUN --signature FILE.sig           what was signed there

An approval is a statement that you sign with your SSH key, and the ledger keeps it. Before it
counts, every hash is compared, a few examples are played, and the weights are signed. When as many
people have approved as the rules of the ledger ask for, the run's challenger becomes the champion.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from flows import results
from flows.cli.options import add_person, signer
from flows.screen import print_line, warn
from flows.server import prefect_server
from rft import commands, files
from rft.errors import InfrastructureError, RftError, UserError
from tasks.ledger import book, keys, statement
from tasks.ledger.facts import Champion
from tasks.promotion import acts, champions, elsewhere
from tasks.promotion.acts import Outcome
from tasks.runs import champion, clone, records
from tasks.runs.clone import Clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    add_person(parser, reason=False)
    parser.add_argument(
        "--override-dirty", action="store_true", help="as an owner: promote uncommitted code; the ledger says so"
    )
    elsewhere = parser.add_mutually_exclusive_group()
    elsewhere.add_argument("--print", action="store_true", help="print the statement and how to sign it; sign nothing")
    elsewhere.add_argument("--signature", metavar="FILE", help="the .sig file of a statement that --print wrote")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    if options.signature:
        if options.reason or options.key or options.override_dirty:
            raise UserError("--signature names a statement that is signed already: give it alone.")
        outcome = acts.submit(here, options.run, statement.made_elsewhere(Path(options.signature)), print_line)
    else:
        if not options.reason:
            raise UserError("--reason TEXT is missing: the ledger keeps it for those who ask a year later.")
        if options.print:
            return _print(here, options)
        acts.assert_known(here, options.run, print_line)
        _tell(here, options.run)
        outcome = acts.approve(
            here, options.run, signer(here, options), options.reason, options.override_dirty, print_line
        )
    if outcome.promoted is None and outcome.approval_status.is_enough:
        outcome = _promote(here, outcome.request.act.run)
    _show(here, outcome)
    return 0


def _tell(here: Clone, run: str) -> None:
    """Show what a run of another clone asks for, because nobody has seen it here."""
    if any(run in record.name for record in records.load_all(here)):
        return
    with contextlib.suppress(RftError):  # approving says what is wrong, and in which clone to fix it
        record = elsewhere.find(here, run, print_line)
        results.show(here, record)
        print_line(f"\nThat run is another clone's. Its page: {commands.command('runs report', record.name)}\n")


def _promote(here: Clone, run: str) -> Outcome:
    """Promote by the flow, so that Prefect shows it; start a server if none is there. What was
    signed does not wait for Prefect: if it does not answer, promote without the flow."""
    with prefect_server(here) as server:
        from flows.promotion import promote

        try:
            if server:
                server.ready()
        except InfrastructureError as error:
            why = str(error)
        else:
            try:
                return promote(run)
            except RuntimeError as error:  # Prefect's own; what the flow refuses is an RftError
                if "Failed to reach API" not in (why := str(error)):
                    raise
    warn(f"Prefect does not answer, so it will not show this promotion ({why.splitlines()[0]})")
    return acts.promote(here, run, print_line)


def _print(here: Clone, options: argparse.Namespace) -> int:
    wanted = acts.wanted(here, options.run, options.reason, options.override_dirty, print_line)
    file = here.state / "ledger" / f"{options.run}.{wanted.act}.json"
    with files.replacing(file) as part:
        part.write_bytes(wanted.content_bytes)
    print_line(wanted.model_dump_json(indent=1, exclude_none=True))
    print_line(f"\nIt is in {file}. Sign that very file where your key is, and bring FILE.sig back beside it:")
    print_line(f"  {keys.sign_command(str(Path(options.key or '~/.ssh/id_ed25519').expanduser()), file)}")
    print_line(
        f"Then, until {wanted.expires}: {commands.command('approve', options.run, '--signature', f'{file}.sig')}"
    )
    return 0


def _show(here: Clone, outcome: Outcome) -> None:
    request, made, approval_status = outcome.request, outcome.promoted, outcome.approval_status
    if made is None:
        have = ", ".join(approval.person for approval in approval_status.counting)
        print_line(
            f"Run {request.act.run} has {len(approval_status.counting)} of {approval_status.needed} approvals ({have})."
        )
        missing = approval_status.needed - len(approval_status.counting)
        print_line(f"It waits for {missing} more until {request.act.expires} ({approval_status.why}).")
        return
    if made.own_run:
        warn(f"{request.starter_name} started this run and approves it too. It is allowed, and the ledger says so.")
    if made.overrides:
        warn("overridden: uncommitted code. The ledger says so.")
    print_line(
        f"Run {made.run} is the champion of {made.model}: champion {made.number}. @previous is "
        f"{champion.describe(made.before)}."
    )
    print_line(f"In the ledger: entry {made.number}, {made.time}, {made.who}: {made.why}")
    for problem in outcome.problems:
        warn(f"{problem}. The promotion stands; this is tried again at the next start.")
    print_line(to_serve(here, made.model, made))
    print_line(f"To undo it: {acts.undo_command(made.model)}")


def to_serve(here: Clone, model: str, made: Champion | None) -> str:
    """Say where the champion's bytes are, and which command exports them."""
    state = book.read(here, report_line=print_line).state
    number = made.number if made else 0
    try:
        served = champions.at(here, state, number)
    except RftError as error:  # the entry stands, whatever this clone lacks
        return f"To serve: {error}"
    weights = (
        f"weights {served.weights.path} ({served.champion.weights})" if served.weights else "no weights of its own"
    )
    prompt = f", prompt {served.champion.prompt.name!r}" if served.champion.prompt else ""
    if not served.champion.serve.is_single:
        prompt += f", an answer is {served.champion.serve.description}"
    where = f" of revision {made.revision[:10]}, in DVC's cache" if made else ""
    named = [] if list(state.moves) == [model] else ["--model", model]
    target = os.path.relpath(here.root / "exports" / f"{model}-{number}")
    return (
        f"To serve: {weights}{prompt}{where}. Nothing changes for anyone until something serves it. "
        "To export it all, with the command that starts vLLM:\n"
        f"  {commands.command('export', str(number), target, *named)}"
    )
