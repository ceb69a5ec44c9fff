"""Make the previous champion the champion again.

Without --model, --params or --set, it is the only model that was ever promoted in this clone.
"""

from __future__ import annotations

import argparse

from flows.cli.approve import move, to_serve
from flows.cli.options import add_person, add_settings, person
from flows.screen import say
from rft.errors import UserError
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a registered model: the name of its recipe's folder")
    add_person(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    from flows import settings
    from tasks.promotion import registry

    here = clone.enter()
    who, why = person(options)
    model, has_settings = options.model, bool(options.params or options.overrides)
    if model and has_settings:
        raise UserError("--model names the model, and so do --params and --set: give one of them.")
    if has_settings:
        model = registry.model_name(settings.resolve(here, options.params, options.overrides))
    act = move(here, "rollback", model or registry.only_model(here), who, why)
    served = f"run {act.run}" if act.run else "the beginning: the base policy with the seed prompt"
    say(f"The champion is version {act.after} of {act.model} again ({served}), in place of version {act.before}.")
    say(f"In the ledger: {act.when}, {act.who}: {act.why}")
    say(to_serve(here, act))
    return 0
