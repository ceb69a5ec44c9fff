"""Make the champion before this one the champion again.

  rft rollback --reason "it harms refunds"
  rft rollback --model icd10 --reason TEXT     where several models were promoted

You sign it with your SSH key, and the ledger keeps it. Nothing is trained or measured for it.
"""

from __future__ import annotations

import argparse

from flows import settings
from flows.cli.approve import to_serve
from flows.cli.options import add_person, add_settings, signer
from flows.screen import print_line, warn
from rft.errors import UserError
from tasks.ledger import book
from tasks.promotion import acts, champions
from tasks.runs import champion, clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a model: the name of its recipe's folder")
    add_person(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    model, has_settings = options.model, bool(options.params or options.overrides)
    if model and has_settings:
        raise UserError("--model names the model, and so do --params and --set: give one of them.")
    if has_settings:
        model = champions.model_name(settings.resolve(here, options.params, options.overrides))
    state = book.read(here, report_line=print_line).state
    model = model or here.model(state.moves) or acts.only_model(state)
    back = acts.rollback(here, model, signer(here, options), options.reason, print_line)
    made = back.to
    served = f"run {made.run}" if made else "the base policy with the seed prompt"
    to = champion.describe(made.number if made else 0)
    print_line(f"The champion of {model} is {to} again ({served}), in place of {champion.describe(back.before)}.")
    print_line(f"In the ledger: entry {back.number}, {back.time}, {back.who}: {back.why}")
    for problem in back.problems:
        warn(f"{problem}. The rollback stands; this is tried again at the next start.")
    print_line(to_serve(here, model, made))
    return 0
