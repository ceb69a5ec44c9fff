"""Show every entry of the ledger, oldest first; then what waits for people.

  rft ledger show
  rft ledger show --json             one entry per line, for programs

Where the ledger is shared, it is fetched first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from flows.screen import print_line
from tasks.ledger import book, describe, request_status
from tasks.ledger.book import Ledger
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Genesis, PolicyChange
from tasks.ledger.key_compromise import KeyCompromise
from tasks.ledger.policy import SetClocks
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per entry")


def run(options: argparse.Namespace) -> int:
    ledger = book.latest(clone.enter(), _quiet if options.json else print_line)
    doubtful = ledger.state.doubtful()
    for each in ledger.stored:
        if options.json:
            print(json.dumps(_row(each, doubtful) | {"became": _became(each, ledger)}), flush=True)
        else:
            show_entry(each, doubtful)
    if options.json:
        return 0
    if not ledger.stored:
        print_line("There is no ledger yet. It begins with the first request for a promotion.")
    for line in waiting(ledger):
        print_line(line)
    return 0


def _became(each: Stored, ledger: Ledger) -> dict[str, object] | None:
    """Return what became of a request. None for other entries."""
    request = ledger.state.requests.get(each.entry.number)
    if request is None:
        return None
    found = request_status.status(ledger.state, request, book.now(ledger))
    by = [approval.person for approval in found.approval_status.counting]
    return {
        "kind": found.kind,
        "words": found.description,
        "approved_by": by,
        "approvals_needed": found.approval_status.needed,
        "approve": found.approve,
    }


def waiting(ledger: Ledger) -> Iterator[str]:
    """Yield what waits for people, with the command that approves it."""
    for request, found in request_status.open_requests(ledger.state, book.now(ledger)):
        by = ", ".join(approval.person for approval in found.approval_status.counting)
        who = f" ({by})" if by else ""
        yield f"\n{request.act.model}: run {request.act.run} {found.description}{who}, until {request.act.expires}"
        yield f"  {found.approve}"


def _quiet(_: str) -> None:
    """Print nothing: --json prints only entries."""


def _row(each: Stored, doubtful: dict[int, KeyCompromise]) -> dict[str, object]:
    content, key_compromise = each.files.get("statement.json"), doubtful.get(each.entry.number)
    return {
        **json.loads(each.entry.content),
        "commit": each.commit.id,
        "sha256": each.entry.id,
        "statement": json.loads(content) if content else None,
        "doubtful": asdict(key_compromise) if key_compromise else None,
    }


def show_entry(each: Stored, doubtful: dict[int, KeyCompromise]) -> None:
    """Print an entry. A restart, clocks that are not compared, and a doubtful entry are red."""
    act = each.entry.act
    is_restart = isinstance(act, Genesis) and act.restarts is not None
    is_red = is_restart or (isinstance(act, PolicyChange) and isinstance(act.change, SetClocks))
    key_compromise = doubtful.get(each.entry.number)
    mark = f"  DOUBTFUL: {key_compromise}" if key_compromise else ""
    line = f"{each.entry.number:>4}  {each.entry.time}  {describe.with_reason(each)}{mark}"
    Console(highlight=False).print(Text(line, style="bold red" if is_red or mark else ""), soft_wrap=True)
