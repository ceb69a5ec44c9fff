"""Print where the report page of a run is."""

from __future__ import annotations

import argparse
import importlib
import tempfile
import webbrowser
from pathlib import Path

from flows.screen import say
from rft.errors import UserError
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run(options: argparse.Namespace) -> int:
    from tasks.runs import artifacts, records

    place = clone.enter()
    record = records.find(place, options.run)
    page = place.page(record.name)
    if not page.exists():
        if record.revision is None:
            raise UserError(f"run {record.name} is {record.state} and has no page yet: it is written at the end.")
        # It was past its retention and removed, so it is written again from the run's revision.
        with tempfile.TemporaryDirectory(dir=place.state) as scratch:
            artifacts.restore(artifacts.Revision(place, record.revision), Path(scratch))
            importlib.import_module("tasks.ladder").write_page(place, record, Path(scratch))
    say(str(page))
    if options.open and not webbrowser.open(page.as_uri()):
        raise UserError(f"--open: no browser could be started here. Open the file yourself: {page}")
    return 0
