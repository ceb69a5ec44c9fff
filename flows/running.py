"""The verbs that run something or look at what ran: the whole ladder, one stage, the page of a run."""

from __future__ import annotations

import importlib
import tempfile
import webbrowser
from pathlib import Path

from flows import settings
from flows.screen import say, watched
from flows.server import prefect_server
from rft import margins
from rft.__main__ import STAGES
from rft.errors import Stopped, UserError
from tasks import artifacts, byhand, clone, records, runs
from tasks.clone import Clone
from tasks.records import RunRecord


def here() -> Clone:
    return clone.enter()


def climb(window: str | None = None, params: str | None = None, overrides: tuple[str, ...] = (), clean_only: bool = False) -> RunRecord:
    """One run, with its bars. Settings are read first: a wrong key must not wait for a server."""
    place = here()
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


def one_stage(name: str, params: str | None, overrides: tuple[str, ...]) -> int:
    """On what lies in data/ of this clone, unrecorded."""
    place = here()
    if name not in STAGES:
        raise UserError(f"no stage {name!r}. The stages: {', '.join(STAGES)}.")
    wanted = settings.resolve(place, params, overrides)
    with watched():
        byhand.run_stage(place, wanted, name)
    say(f"Its shelf: data/{name}, made with the settings of {params or 'params.yaml'}{' and of --set' if overrides else ''}")
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
        raise UserError(f"no browser could be started here. Open the file yourself: {page}")
    return 0
