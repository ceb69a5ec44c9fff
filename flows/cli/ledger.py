"""Show the ledger: who decided what, when, with which key.

  rft ledger                                     every entry, oldest first
  rft ledger --json                              the same for programs, one entry per line
  rft ledger --verify                            verify every signature again, and every anchor
  rft ledger rules approvers=2 four_eyes=true --reason TEXT
  rft ledger import                              take in the unsigned record of earlier versions
  rft ledger restart --reason TEXT               begin again, when every owner's key is lost

docs/ledger.md says what each signature proves. docs/verify-ledger.sh verifies without this program.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.text import Text

from flows.cli.options import add_person, signer
from flows.screen import say, warn
from rft.errors import UserError
from tasks.runs import clone
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from tasks.ledger.chain import Stored


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per entry")
    parser.add_argument("--verify", action="store_true", help="verify every signature again")
    verbs = parser.add_subparsers(metavar="rules|import|restart", dest="what")
    rules = verbs.add_parser("rules", help="change what a promotion needs")
    rules.add_argument(
        "settings", metavar="KEY=VALUE", nargs="+", help="approvers, four_eyes, request_days, approval_days"
    )
    rules.add_argument("--model", metavar="NAME", help="of this model alone")
    add_person(rules)
    verbs.add_parser("import", help="take in .rft/ledger.jsonl as unsigned history, before anything else")
    restart = verbs.add_parser("restart", help="begin again with a new genesis that names the old one")
    restart.add_argument("--accept", action="store_true", help="take over a restart that another clone made")
    restart.add_argument("--reason", metavar="TEXT", help="why; the ledger keeps it")


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    if options.what is None:
        return _show(here, options)
    return {"rules": _rules, "import": _import, "restart": _restart}[options.what](here, options)


def _show(here: Clone, options: argparse.Namespace) -> int:
    from tasks.ledger import book

    ledger = book.latest(here, _quiet if options.json else say, anew=options.verify)
    stored, state = ledger.stored, ledger.state
    doubtful = state.doubtful()
    for each in stored:
        if options.json:
            print(json.dumps(_row(each, doubtful)), flush=True)
        else:
            _show_line(each, doubtful)
    if options.json:
        return 0
    if not stored:
        say("There is no ledger yet. It begins with the first request for a promotion.")
    elif options.verify:
        say(f"Verified: {len(stored)} entries, every signature, role and hash, from genesis {state.genesis[:16]} on.")
    return 0


def _quiet(_: str) -> None:
    """--json prints entries alone."""


def _row(each: Stored, doubtful: dict[int, str]) -> dict[str, object]:
    said = each.files.get("statement.json")
    return {
        **json.loads(each.entry.content),
        "commit": each.commit.id,
        "sha256": each.entry.id,
        "statement": json.loads(said) if said else None,
        "doubtful": doubtful.get(each.entry.number),
    }


def _show_line(each: Stored, doubtful: dict[int, str]) -> None:
    """Red on a terminal: a restart, and what rests on a compromised key."""
    from tasks.ledger import describe
    from tasks.ledger.entry import Genesis

    is_restart = isinstance(each.entry.act, Genesis) and each.entry.act.restarts is not None
    mark = "  DOUBTFUL: a compromised key" if each.entry.number in doubtful else ""
    line = f"{each.entry.number:>4}  {each.entry.time}  {describe.in_words(each)}{mark}"
    Console(highlight=False).print(Text(line, style="bold red" if is_restart or mark else ""), soft_wrap=True)


def _rules(here: Clone, options: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from tasks.ledger import book
    from tasks.ledger.policy import Policy, Rules, SetRules
    from tasks.promotion import acts

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
    entry = acts.change(here, changed, signer(here, options), options.reason, say)
    policy = book.read(here, said=say).state.policy
    rules = policy.rules_of(options.model) if options.model else policy.rules
    have = len(policy.holders("owner", "approver"))
    say(f"From entry {entry.number + 1} on: {', '.join(f'{key}={value}' for key, value in rules)}")
    if have < rules.approvers + rules.four_eyes:
        warn(f"{have} people can approve, and these rules may need {rules.approvers + rules.four_eyes}. Enrol more.")
    return 0


def _import(here: Clone, options: argparse.Namespace) -> int:
    from tasks.ledger import history

    number = history.take_in(here, say)
    say(f"Taken in as unsigned history: {number} acts of {here.ledger}.")
    return 0


def _restart(here: Clone, options: argparse.Namespace) -> int:
    from tasks.ledger import restart

    if options.accept:
        restart.accept(here, say)
    elif not options.reason:
        raise UserError("--reason TEXT is missing: the ledger keeps it for whoever asks a year later.")
    else:
        restart.restart(here, options.reason, say)
    return 0
