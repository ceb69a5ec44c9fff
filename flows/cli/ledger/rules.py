"""Change what a promotion needs: how many approvers, whose, and for how long.

  rft ledger rules approvers=2 four_eyes=true --reason TEXT
  rft ledger rules request_days=7 --model refunds --reason TEXT     of this model alone

An owner signs it. It counts from the next entry on.
"""

from __future__ import annotations

import argparse

import yaml
from pydantic import ValidationError

from flows.cli.options import add_person, signer
from flows.screen import print_line, warn
from rft.errors import UserError
from tasks.ledger import book
from tasks.ledger.policy import Policy, Rules, SetRules
from tasks.promotion import acts
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings", metavar="KEY=VALUE", nargs="+", help="approvers, four_eyes, request_days, approval_days"
    )
    parser.add_argument("--model", metavar="NAME", help="of this model alone")
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    wanted: dict[str, object] = {}
    for setting in options.settings:
        key, is_one, value = setting.partition("=")
        if not is_one or key not in Rules.model_fields:
            raise UserError(f"{setting!r}: write KEY=VALUE, with one of {', '.join(Rules.model_fields)}.")
        wanted[key] = yaml.safe_load(value)

    def changed(before: Policy) -> SetRules:
        """Change the rules of that moment: another clone may have changed other ones."""
        rules = before.rules_of(options.model) if options.model else before.rules
        try:
            return SetRules(model=options.model, rules=Rules.model_validate(rules.model_dump() | wanted))
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}.") from None

    changed(Policy())
    entry = acts.change(here, changed, signer(here, options), options.reason, print_line)
    policy = book.read(here, report_line=print_line).state.policy
    rules = policy.rules_of(options.model) if options.model else policy.rules
    have = len(policy.holders("owner", "approver"))
    print_line(f"From entry {entry.number + 1} on: {', '.join(f'{key}={value}' for key, value in rules)}")
    if have < rules.approvers + rules.four_eyes:
        warn(f"{have} people can approve, and these rules may need {rules.approvers + rules.four_eyes}. Enrol more.")
    return 0
