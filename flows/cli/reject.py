"""Reject what the gate would promote.

The run cannot be approved after that.
"""

from __future__ import annotations

import argparse

from flows.cli.options import add_person, person
from flows.screen import say
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    from tasks.promotion import registry
    from tasks.runs import records

    here = clone.enter()
    act = registry.reject(here, records.find(here, options.run), *person(options))
    say(f"Run {act.run} is rejected. In the ledger: {act.when}, {act.who}: {act.why}")
    return 0
