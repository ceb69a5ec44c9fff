"""Look again at what a run left inconclusive, on more test examples.

  rft runs extend RUN                  as many more as would probably settle it
  rft runs extend RUN --blocks 2       two more blocks of examples.test

A new run takes the same code, settings, window and champion, and adds the next blocks of test
examples to those that were seen. Only these are computed: prompt and weights come from DVC's cache.
It is the next look at these examples, and costs its share of gate.alpha.
"""

from __future__ import annotations

import argparse

from flows import extension, results
from flows.cli.options import count
from flows.cli.run import retrain
from flows.screen import print_line
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run that ended as inconclusive")
    parser.add_argument(
        "--blocks",
        type=count,
        metavar="N",
        help="how many more, each of examples.test (default: as many as would probably settle it)",
    )


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    more = extension.from_run(here, options.run, options.blocks, print_line)
    print_line(more.description)
    record = retrain(here, extends=more.extended.name, blocks=more.blocks)
    results.show(here, record)
    return 0
