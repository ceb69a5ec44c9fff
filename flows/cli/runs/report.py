"""Print where the report page of a run is.

  rft runs report RUN --open                        in the browser
  rft runs report RUN --open-test --reason TEXT     with dialogues of the test set

The page shows dialogues of validation examples. With --open-test it shows those of the test set.
An entry in the ledger says so first, and no later run can be judged on these examples.
"""

from __future__ import annotations

import argparse
import importlib
import webbrowser
from pathlib import Path

from flows.cli.options import add_open_test, check_open_test
from flows.screen import print_line
from rft import stage_files
from rft.errors import UserError
from tasks.promotion import elsewhere, retiring
from tasks.runs import clone
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    add_open_test(parser)


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    place = clone.enter()
    record = elsewhere.find(place, options.run, print_line)
    page = place.page(record.name)
    if options.open_test:
        page = _opened(place, record, options.reason)
    elif not page.exists():  # it was past its retention and removed, or the run is another clone's
        page = _written(place, record)
    print_line(str(page))
    if options.open and not webbrowser.open(page.as_uri()):
        raise UserError(f"--open: no browser could be started here. Open the file yourself: {page}")
    return 0


def _written(place: Clone, record: RunRecord, opened: int | None = None) -> Path:
    """Write the page from the run's revision."""
    _revision(record)
    return importlib.import_module("tasks.stage_runner").page_again(place, record, opened)


def _opened(place: Clone, record: RunRecord, reason: str | None) -> Path:
    source = retiring.of_run(place, record.name, _revision(record))
    if source.read(str(stage_files.rollouts("challenger"))) is None:
        raise UserError(f"--open-test: run {record.name} ended before its test set, so there is nothing to open.")
    return _written(place, record, retiring.open_test(place, source, reason, print_line))


def _revision(record: RunRecord) -> str:
    if record.revision is None:
        raise UserError(f"run {record.name} is {record.state} and has no page yet: it is written at the end.")
    return record.revision
