"""Show the ledger: who decided what, when, with which key.

  rft ledger                                     every entry, oldest first; then what waits
  rft ledger --json                              the same for programs, one entry per line
  rft ledger --verify                            verify every signature again, and every anchor
  rft ledger rules approvers=2 four_eyes=true --reason TEXT
  rft ledger clocks --days 30 --reason TEXT      as an owner: go on though two clocks disagree
  rft ledger erase ENTRY --reason TEXT           erase the list of examples of a registration
  rft ledger share                               upload what waits, once a remote is named
  rft ledger restart --reason TEXT               begin again, when every owner's key is lost

docs/ledger.md says what each signature proves. docs/verify-ledger.sh verifies without this program.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from flows.cli.options import add_person, signer
from flows.screen import print_line, warn
from rft.errors import UserError
from rft.formatting import counted
from tasks.ledger import book, describe, request_status, restart, statement
from tasks.ledger.book import Ledger
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Genesis, PolicyChange
from tasks.ledger.key_compromise import KeyCompromise
from tasks.ledger.policy import Policy, Rules, SetClocks, SetRules
from tasks.promotion import acts, retiring, sharing
from tasks.promotion.acts import Signer
from tasks.runs import clone
from tasks.runs.clone import Clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per entry")
    parser.add_argument("--verify", action="store_true", help="verify every signature again")
    verbs = parser.add_subparsers(metavar="rules|clocks|erase|share|restart", dest="what")
    rules = verbs.add_parser("rules", help="change what a promotion needs")
    rules.add_argument(
        "settings", metavar="KEY=VALUE", nargs="+", help="approvers, four_eyes, request_days, approval_days"
    )
    rules.add_argument("--model", metavar="NAME", help="of this model alone")
    add_person(rules)
    clocks = verbs.add_parser("clocks", help="go on though two clocks disagree: do not compare them for some days")
    clocks.add_argument(
        "--days", type=float, default=30.0, metavar="N", help="counted from the last entry (default: 30)"
    )
    add_person(clocks)
    erase = verbs.add_parser("erase", help="erase the list of test examples of a registration, and retire the set")
    erase.add_argument("entry", metavar="ENTRY", type=int, help="the number of the registration")
    add_person(erase)
    verbs.add_parser("share", help="upload the ledger, and the bytes of what waits and of what is served")
    restart = verbs.add_parser("restart", help="begin again with a new genesis that names the old one")
    restart.add_argument("--accept", action="store_true", help="take over a restart that another clone made")
    restart.add_argument("--reason", metavar="TEXT", help="why; the ledger keeps it")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    if options.what is None:
        return _show(here, options)
    verbs = {
        "rules": _rules,
        "clocks": _clocks,
        "erase": _erase,
        "share": _share,
        "restart": _restart,
    }
    return verbs[options.what](here, options)


def _show(here: Clone, options: argparse.Namespace) -> int:
    ledger = book.latest(here, _quiet if options.json else print_line, reverify=options.verify)
    stored, state = ledger.stored, ledger.state
    doubtful = state.doubtful()
    for each in stored:
        if options.json:
            print(json.dumps(_row(each, doubtful) | {"became": _became(each, ledger)}), flush=True)
        else:
            _show_line(each, doubtful)
    if options.json:
        return 0
    if not stored:
        print_line("There is no ledger yet. It begins with the first request for a promotion.")
    elif options.verify:
        if doubtful:
            print_line(f"{len(doubtful)} entries are doubtful, and the lines above say why. What to do: docs/ledger.md")
        print_line(
            f"Verified: {len(stored)} entries, every signature, role and hash, from genesis {state.genesis[:16]} on."
        )
    for line in _waiting(ledger):
        print_line(line)
    return 0


def _became(each: Stored, ledger: Ledger) -> dict[str, object] | None:
    """What became of a request. None for other entries."""
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


def _waiting(ledger: Ledger) -> Iterator[str]:
    """What waits for people, with the command that approves it."""
    for request, found in request_status.open_requests(ledger.state, book.now(ledger)):
        by = ", ".join(approval.person for approval in found.approval_status.counting)
        who = f" ({by})" if by else ""
        yield f"\n{request.act.model}: run {request.act.run} {found.description}{who}, until {request.act.expires}"
        yield f"  {found.approve}"


def _quiet(_: str) -> None:
    """--json prints entries alone."""


def _row(each: Stored, doubtful: dict[int, KeyCompromise]) -> dict[str, object]:
    content, key_compromise = each.files.get("statement.json"), doubtful.get(each.entry.number)
    return {
        **json.loads(each.entry.content),
        "commit": each.commit.id,
        "sha256": each.entry.id,
        "statement": json.loads(content) if content else None,
        "doubtful": asdict(key_compromise) if key_compromise else None,
    }


def _show_line(each: Stored, doubtful: dict[int, KeyCompromise]) -> None:
    """Red on a terminal: a restart, clocks that are not compared, and what is doubtful."""
    act = each.entry.act
    is_restart = isinstance(act, Genesis) and act.restarts is not None
    is_red = is_restart or (isinstance(act, PolicyChange) and isinstance(act.change, SetClocks))
    key_compromise = doubtful.get(each.entry.number)
    mark = f"  DOUBTFUL: {key_compromise}" if key_compromise else ""
    line = f"{each.entry.number:>4}  {each.entry.time}  {describe.with_reason(each)}{mark}"
    Console(highlight=False).print(Text(line, style="bold red" if is_red or mark else ""), soft_wrap=True)


def _rules(here: Clone, options: argparse.Namespace) -> int:
    wanted: dict[str, object] = {}
    for setting in options.settings:
        key, is_one, value = setting.partition("=")
        if not is_one or key not in Rules.model_fields:
            raise UserError(f"{setting!r}: write KEY=VALUE, with one of {', '.join(Rules.model_fields)}.")
        wanted[key] = yaml.safe_load(value)

    def changed(before: Policy) -> SetRules:
        """On the rules of that moment: another clone may have changed others."""
        rules = before.rules_of(options.model) if options.model else before.rules
        try:
            return SetRules(model=options.model, rules=Rules.model_validate(rules.model_dump() | wanted))
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None

    changed(Policy())
    entry = acts.change(here, changed, signer(here, options), options.reason, print_line)
    policy = book.read(here, report_line=print_line).state.policy
    rules = policy.rules_of(options.model) if options.model else policy.rules
    have = len(policy.holders("owner", "approver"))
    print_line(f"From entry {entry.number + 1} on: {', '.join(f'{key}={value}' for key, value in rules)}")
    if have < rules.approvers + rules.four_eyes:
        warn(f"{have} people can approve, and these rules may need {rules.approvers + rules.four_eyes}. Enrol more.")
    return 0


def _clocks(here: Clone, options: argparse.Namespace) -> int:
    if not 0 < options.days <= 3650:
        raise UserError(f"--days {options.days:g}: give more than 0, and 3650 at most.")
    until = statement.later(book.now(book.latest(here, print_line)), days=options.days)
    entry = acts.change(here, SetClocks(until=until), signer(here, options), options.reason, print_line)
    print_line(f"From entry {entry.number + 1} until {until}, no entry is refused because two clocks disagree.")
    return 0


def _erase(here: Clone, options: argparse.Namespace) -> int:
    def owner(policy: Policy) -> Signer | None:
        return signer(here, options) if policy.holders("owner") else None

    entry, elsewhere = retiring.erase(here, options.entry, options.reason, owner, print_line)
    print_line(
        f"Entry {entry}: the list of examples of entry {options.entry} is erased here, and its test set is retired."
    )
    print_line("How many looks other sets share with it cannot be counted any more.")
    for place in elsewhere:
        print_line(f"DVC's remote may hold it still. Delete it there: {place}")
    return 0


def _share(here: Clone, options: argparse.Namespace) -> int:
    runs = sharing.share(here, print_line)
    print_line(f"Shared: the ledger, and the bytes of {counted(len(runs), 'run')} that wait or were promoted.")
    return 0


def _restart(here: Clone, options: argparse.Namespace) -> int:
    if options.accept:
        restart.accept(here, print_line)
    elif not options.reason:
        raise UserError("--reason TEXT is missing: the ledger keeps it for whoever asks a year later.")
    else:
        restart.restart(here, options.reason, print_line)
    return 0
