"""The verbs that run something or look at what ran: the whole ladder, one stage, the page of a run."""

from __future__ import annotations

import importlib
import shlex
import tempfile
import webbrowser
from pathlib import Path

from flows import settings
from flows.results import command
from flows.screen import say, watched
from flows.server import prefect_server
from rft import margins
from rft.__main__ import STAGES
from rft.errors import Stopped, UserError
from tasks import artifacts, clone, records, stages
from tasks.clone import Clone
from tasks.records import RunRecord


def here() -> Clone:
    return clone.enter()


def climb(window: str | None = None, params: str | None = None, overrides: tuple[str, ...] = (), clean_only: bool = False) -> RunRecord:
    """One run, with its bars. Settings are read first: a wrong key must not wait for a server."""
    place = here()
    wanted = settings.resolve(place, params, overrides)
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
        hours = 2 * max(wanted.run.max_hours or 0, record.spent_s / 3600)
        further = f"\nTo go on: {_again(window, params, overrides, clean_only, hours)}" if record.state == "paused" else ""
        raise Stopped(record.message + further)
    return record


def _again(window: str | None, params: str | None, overrides: tuple[str, ...], clean_only: bool, hours: float) -> str:
    """The same command with a higher limit."""
    words = [*(["--window", window] if window else []), *(["--params", params] if params else []), *(["--clean-only"] if clean_only else [])]
    for override in [*(one for one in overrides if not one.startswith("run.max_hours")), f"run.max_hours={hours:.3g}"]:
        words += ["--set", override]
    return shlex.join([command(), "run", *words])


def one_stage(name: str) -> int:
    """In the clone itself, by DVC, unrecorded."""
    place = here()
    if name not in STAGES:
        raise UserError(f"no stage {name!r}. The stages: {', '.join(STAGES)}.")
    with watched():
        stages.repro(place.root, name, place.state, log=place.log("by-hand", name))
    say(f"Its shelf: data/{name}")
    return 0


def report(name: str, show: bool) -> int:
    place = here()
    record = records.find(place, name)
    page = place.page(record.name)
    if not page.exists():
        if record.revision is None:
            raise UserError(f"run {record.name} is {record.state} and has no page yet. It is written when the run ends.")
        with tempfile.TemporaryDirectory(dir=place.state) as scratch:
            artifacts.restore(artifacts.Revision(place, record.revision), Path(scratch))
            importlib.import_module("tasks.climb").write_page(place, record, Path(scratch))
    say(str(page))
    if show and not webbrowser.open(page.as_uri()):
        raise UserError(f"no browser could be started here. Open the file yourself, or copy it: {command()} report {record.name}")
    return 0
