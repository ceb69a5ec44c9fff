"""Reject what a run's gate would promote.

  rft reject RUN --reason "made-up codes"
  rft reject RUN --lift --reason "the codes are new"     take a rejection back

A rejection is of a prompt and weights, so it also holds for other runs that bring the same ones.
Somebody with the role of an approver can lift it.
"""

from __future__ import annotations

import argparse

from flows.cli.options import add_person, signer
from flows.screen import print_line
from tasks.promotion import acts
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--lift", action="store_true", help="take back the rejection of what this run would promote")
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    acts.assert_known(here, options.run, print_line)
    if options.lift:
        no = acts.lift(here, options.run, signer(here, options), options.reason, print_line)
        print_line(f"The rejection of {no.time} by {no.person} is lifted: {no.reason}")
        return 0
    no = acts.reject(here, options.run, signer(here, options), options.reason, print_line)
    print_line(
        f"Rejected: this prompt with these weights, whatever run brings them. In the ledger: entry {no.number}, "
        f"{no.time}, {no.person}: {no.reason}"
    )
    return 0
