"""Show settings, data and metrics of two runs side by side.

  rft runs compare A B
  rft runs compare A B --json    for programs

A and B are names from `rft runs`, or any unique part of one.
"""

from __future__ import annotations

import argparse

from flows import comparison
from flows.screen import print_line
from rft import secrets
from tasks.runs import clone
from tasks.runs.compare import compare


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a run, as `rft runs` names it, or any part that only one has")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(options: argparse.Namespace) -> int:
    found = compare(clone.enter(), options.a, options.b)
    if options.json:
        print_line(secrets.dumps(found.json(), ensure_ascii=False, indent=1))
    else:
        comparison.show(found)
    return 0
