"""Run the ladder.

An unfinished run of the same code, settings and window is adopted and goes on. Stages are skipped
if nothing that they depend on has changed.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flows.cli.options import add_settings
from flows.screen import say, watched
from rft.errors import Stopped
from tasks.runs import clone

if TYPE_CHECKING:
    from tasks.runs.records import RunRecord


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        metavar="FILE",
        help="the window of traffic; a pattern such as 'data/inbox/*.jsonl' takes the last by name",
    )
    parser.add_argument("--clean-only", action="store_true", help="refuse to run if there are uncommitted edits")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    from flows import results

    record = climb(options.window, options.params, options.overrides, options.clean_only)
    results.show(clone.enter(), record)
    return 0


def climb(
    window: str | None = None, params: str | None = None, overrides: Iterable[str] = (), clean_only: bool = False
) -> RunRecord:
    """Run the ladder, with progress bars. Settings are read before a server starts."""
    from flows import settings
    from flows.server import prefect_server
    from rft.grading import margins
    from tasks.runs import records
    from tasks.runs import run as runs

    place = clone.enter()
    overrides = tuple(overrides)
    wanted = settings.resolve(place, params, overrides)
    runs.refuse_missing_recipe(place, wanted)
    margins.check(wanted, place.root)
    with prefect_server(place) as server, watched() as lines:
        retrain = importlib.import_module("flows.pipeline").retrain
        importlib.import_module("mlflow")  # a second of import, while the server boots
        if server:
            server.ready()
        state = retrain(window, params, overrides, clean_only, return_state=True)
        if not state.is_cancelled():
            state.result()  # raises what ended the flow
    if lines.skipped:
        say(f"Skipped, because nothing that they depend on has changed: {', '.join(lines.skipped)}.")
    flow_run_id = str(state.state_details.flow_run_id)
    record = next(record for record in records.load_all(place) if record.flow_run_id == flow_run_id)
    if state.is_cancelled():
        further = f"\nTo go on: {record.again}" if record.state == "paused" else ""
        raise Stopped(record.message + further)
    return record
