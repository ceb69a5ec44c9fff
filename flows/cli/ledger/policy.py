"""Show and change the thresholds by which a model's gate decides.

  rft ledger policy show                                what the ledger holds, for each model
  rft ledger policy sign --reason TEXT                  gate and challenger of params.yaml
  rft ledger policy sign --params FILE --reason TEXT    those of another file

Thresholds are written down before the test set is opened. A model's first run brings its own. From
then on, a run with others ends with a decision, and nobody is asked to promote it. Once an owner is
enrolled, an owner has to sign a change.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from flows import settings
from flows.cli.options import add_person, add_settings, signer
from flows.screen import print_line
from rft import commands
from rft.errors import UserError
from tasks.ledger import book
from tasks.ledger.policy import SetThresholds
from tasks.promotion import acts, champions, registration
from tasks.runs import clone
from tasks.runs.clone import Clone


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="show|sign", required=True, dest="what")
    show = verbs.add_parser("show", help="show the thresholds of each model, and what a file would change")
    add_settings(show)
    sign = verbs.add_parser("sign", help="set the model's thresholds to those of a params file")
    add_settings(sign)
    add_person(sign)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    return {"show": _show, "sign": _sign}[options.what](here, options)


def _show(here: Clone, options: argparse.Namespace) -> int:
    state = book.latest(here, print_line).state
    for model, given in sorted(state.policy.thresholds.items()):
        print_line(f"{model}:")
        for key, value in _flat(given).items():
            print_line(f"  {key} = {json.dumps(value)}")
    if not state.policy.thresholds:
        print_line("No thresholds are registered yet: a model's first run brings its own.")
    if options.params or options.overrides:
        _differences(here, options, state.policy.thresholds)
    return 0


def _sign(here: Clone, options: argparse.Namespace) -> int:
    policy = book.latest(here, print_line).state.policy
    model, settings = _differences(here, options, policy.thresholds)
    if policy.thresholds.get(model) == settings:
        raise UserError(f"these are the thresholds of {model} already, so there is nothing to sign.")
    change = SetThresholds(model=model, settings=settings)
    who = signer(here, options) if policy.holders("owner") else None
    if who is None:
        print_line("Nobody who could sign it is enrolled yet. So the ledger holds the change, and not the reason.")
    entry = acts.change(here, change, who, options.reason, print_line)
    print_line(
        f"From entry {entry.number + 1} on, these are the thresholds of {model}. Runs with others cannot be promoted."
    )
    return 0


def _differences(here: Clone, options: argparse.Namespace, known: dict[str, str]) -> tuple[str, str]:
    """Say what the file would change. Returns its model and its thresholds."""
    params = settings.resolve(here, options.params, options.overrides)
    model, wanted = champions.model_name(params), registration.settings_of(params)
    old, new = _flat(known.get(model)), _flat(wanted)
    for key in [key for key in {**old, **new} if old.get(key) != new.get(key)]:
        print_line(f"{model}: {key}: {json.dumps(old.get(key))} -> {json.dumps(new.get(key))}")
    if old == new:
        print_line(f"{model}: no difference. To see all: {commands.command('ledger policy', 'show')}")
    return model, wanted


def _flat(settings: str | None) -> dict[str, Any]:
    raw = json.loads(settings or "{}")
    return {f"{section}.{key}": value for section in sorted(raw) for key, value in sorted(raw[section].items())}
