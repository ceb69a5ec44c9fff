"""Run the ladder: drift, baseline, prompt, train, gate.

  rft run                                            the newest window of traffic
  rft run --window data/inbox/2026-W14.jsonl         this window
  rft run --set train.steps=40                       with another setting, for this run alone
  rft run --until baseline                           stop after a stage

A run of the same code, settings and window that was cut off goes on where it was. A stage is
skipped if nothing changed on which it depends. Every run is recorded, however it ends. A run that
stops early with its numbers, or whose gate says no, is a success: the exit code is 0.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows import results, settings
from flows.cli.options import add_settings
from flows.screen import print_line, warn, watched
from flows.server import prefect_server
from rft.commands import command
from rft.errors import InfrastructureError, Stopped, UserError
from rft.grading import grader, margins
from rft.traffic import sources
from tasks import stage_runner
from tasks.display import tracking
from tasks.runs import clone, records
from tasks.runs import run as runs
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

UNTIL = ("policy", "baseline", "prompt", "train")
"""Where a run can end without a look, as in flows/pipeline.py, which is heavy to load."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        metavar="FILE",
        help="the window of traffic; a pattern such as 'data/inbox/*.jsonl' takes the last by name",
    )
    parser.add_argument(
        "--until",
        metavar="STAGE",
        help="end after this stage (policy, baseline, prompt or train), without a look at the test set; the same "
        "command without it goes on from there",
    )
    parser.add_argument("--clean-only", action="store_true", help="refuse to run if there are uncommitted edits")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    record = run_ladder(options.window, options.params, options.overrides, options.clean_only, options.until)
    results.show(clone.enter(), record)
    return 0


def run_ladder(
    window: str | None = None,
    params: str | None = None,
    overrides: Iterable[str] = (),
    clean_only: bool = False,
    until: str | None = None,
) -> RunRecord:
    """Run the ladder. Settings are read before a server starts."""
    place = clone.enter()
    _refuse_unknown(until)
    overrides = tuple(overrides)
    wanted = settings.resolve(place, params, overrides)
    runs.refuse_missing_recipe(place, wanted)
    margins.check(wanted, place.home)
    grader.check(wanted, place.home)
    log = settings.newest(place, window or wanted.traffic.file, wanted.recipe.path)
    if isinstance(log, Path):  # before a server starts
        sources.find(str(log), place.home)
    return retrain(place, window=window, params=params, overrides=overrides, clean_only=clean_only, until=until)


def _refuse_unknown(until: str | None) -> None:
    if until is None or until in UNTIL:
        return
    why = "names no stage where a run can end"
    if until in ("challenger", "gate"):
        why = "comes after the look at the test set, and a look must end in a decision"
    elif until in ("traffic", "drift", "examples"):
        why = f"is soon done by itself: {command('stage run', until)}"
    raise UserError(f"--until {until}: {why}. Name one of {', '.join(UNTIL)}.")


def retrain(place: Clone, **asked: Any) -> RunRecord:
    """Run the flow `retrain`, with progress bars."""
    with prefect_server(place) as server, watched() as lines:
        flow = importlib.import_module("flows.pipeline").retrain
        tracking.load(place)  # two seconds of imports, while the server boots
        if server:
            server.ready()
        state, before = None, len(stage_runner.opened)
        while state is None:
            try:
                state = flow(**asked, return_state=True)
                if not state.is_cancelled():
                    state.result()  # raises what ended the flow
            except Exception as error:
                if not _is_prefects(error):
                    raise
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                if _ended_well(place, stage_runner.opened[before:]):
                    # a run that ended well does not fail because Prefect could not be told
                    warn(f"Prefect does not show how this run ended ({why})")
                    break
                if server is None or not server.has_history:
                    remedy = f"Its log: {place.state / 'logs' / 'prefect.log'}. The same command goes on"
                    raise InfrastructureError(f"Prefect failed while it drove the run ({why}). {remedy}") from error
                state = None
                server.begin_anew(why)
    if lines.skipped:
        print_line(f"Skipped, because nothing that they depend on has changed: {', '.join(lines.skipped)}.")
    record = records.find(place, stage_runner.opened[-1])
    if record.state in ("paused", "cancelled"):
        further = f"\nTo go on: {record.again}" if record.state == "paused" else ""
        raise Stopped(record.message + further)
    return record


def _is_prefects(error: Exception) -> bool:
    """Whether Prefect itself raised it, and not a stage or the run."""
    return type(error).__module__.partition(".")[0] in ("prefect", "httpx", "httpcore", "websockets") or (
        isinstance(error, RuntimeError) and "Failed to reach API" in str(error)
    )


def _ended_well(place: Clone, opened: list[str]) -> bool:
    return bool(opened) and records.find(place, opened[-1]).state in ("finished", "stopped", "paused", "cancelled")
