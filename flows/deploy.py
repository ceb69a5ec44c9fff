"""Run the ladders of a workspace's agents on their schedules, on this machine (`rft up`).

rft.yaml says what runs when; in a clone without one, infra/schedule.yaml does. Prefect's server and
a deployment for each agent are served until Ctrl-C stops all. At most `slots` runs go on at once,
and the others wait. Prefect has no users of its own, so it listens on loopback only. For a team,
`infra/` describes a server with a database and a password.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from flows import settings, unattended
from flows.screen import print_line
from flows.server import prefect_server
from rft import commands, config
from rft.errors import ConfigError, UserError, did_you_mean
from rft.process import ROOT
from tasks.runs import clone, windows, workspace
from tasks.runs import run as runs
from tasks.runs.clone import Clone

SCHEDULE = "infra/schedule.yaml"
FLOW = "agent_rft.retrain"
"""The name by which Prefect's runner loads the flow. It is not in `flows`, because the user's
repository may have a package of that name, too."""


class OldSchedule(workspace.Schedule):
    """infra/schedule.yaml."""

    name: str


@dataclass(frozen=True)
class Planned:
    name: str
    agent: str | None
    """None: there is only one agent, and it has no name."""
    schedule: workspace.Schedule
    home: Clone


def planned(here: Clone, agent: str | None = None) -> list[Planned]:
    """Read the schedules, or that of the named agent. Raises ConfigError, which names file, key and
    value."""
    found = workspace.read(here.root)
    if found is None:
        old = schedule(here.root)
        return [Planned(old.name, None, old, here)]
    if not here.is_guest and (here.root / SCHEDULE).exists():
        raise ConfigError(f"{SCHEDULE} is not read where there is {workspace.FILE}. Move it there: `schedules:`")
    every = {each.name: each for each in workspace.agents(here.root)}
    wanted = {name: one for name, one in found.schedules.items() if agent in (None, name)}
    if not wanted:
        whom = f"of {agent} " if agent else ""
        remedy = 'Write one: `schedules:`, an agent\'s name, and below it `cron: "0 3 * * 1"` (docs/workspace.md)'
        raise ConfigError(f"{workspace.FILE}: no schedule {whom}yet. {remedy}")
    for name, one in wanted.items():
        if name not in every:
            raise ConfigError(f"{workspace.FILE}: schedules.{name}: no agent. {did_you_mean(name, list(every))}")
        _check(one, f"{workspace.FILE}: schedules.{name}")
    return [Planned(name, name, one, Clone(here.root, every[name].folder)) for name, one in wanted.items()]


def schedule(root: Path) -> OldSchedule:
    """Read infra/schedule.yaml. Raises ConfigError, which names file, key and value."""
    path = root / SCHEDULE
    if not path.exists():
        raise ConfigError(f"{SCHEDULE}: missing. It says when the ladder runs; restore it: git checkout {SCHEDULE}")
    raw = config.read_yaml(path, SCHEDULE) or {}
    if not isinstance(raw, dict):
        expected = "expected keys such as 'name:' and 'cron:'"
        raise ConfigError(f"{SCHEDULE}: holds {type(raw).__name__}, {expected}. Restore it: git checkout {SCHEDULE}")
    found = config.parse(raw, SCHEDULE, OldSchedule)
    _check(found, SCHEDULE)
    return found


def _check(found: workspace.Schedule, where: str) -> None:
    try:
        found.next(datetime.now(UTC))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def up(port: int) -> int:
    here = clone.enter()
    if here.root != Path.cwd():
        raise UserError(f"run this at the top of the repository, where scheduled runs start too: cd {here.root}")
    os.environ |= {"PREFECT_LOGGING_LEVEL": "INFO", clone.SERVED_BY: str(os.getpid())}
    # for Prefect's runner, which starts `python -m prefect.engine` (agent_rft.py)
    os.environ |= {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "RFT_FLOWS": str(ROOT)}
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it prints tracebacks of tasks that Ctrl-C ended
    every = planned(here, os.environ.get(commands.AGENT))
    with prefect_server(here, full=True, port=port) as server:
        _assert_scheduler_works()
        # a mistake shows now, not at night in the first run
        params = {one.agent or "": settings.resolve(one.home, one.schedule.params) for one in every}
        for one in every:
            runs.refuse_missing_recipe(one.home, params[one.agent or ""])
        windows_now = [_first_window(one.home, one.schedule, params[one.agent or ""]) for one in every]
        unattended.remember(params)
        if server:
            server.ready()
        for one in every:
            runs.clear(one.home)
        print_line(f"Prefect: {server.url if server else os.environ['PREFECT_API_URL']}")
        for one, window in zip(every, windows_now, strict=True):
            recipe = params[one.agent or ""].recipe.path
            what = f"recipe {recipe}, settings {one.schedule.params or 'params.yaml'}, window {window}"
            named = f"{one.agent}, " if one.agent else ""
            print_line(f"Schedule: {named}{one.schedule.cron} ({one.schedule.timezone}), {what}.")
        slots = (workspace.read(here.root) or workspace.Workspace()).slots
        print_line(f"{'One run' if slots == 1 else f'{slots} runs'} at a time. Ctrl-C stops schedules and runs.")
        signal.signal(signal.SIGINT, _end_runs)
        _serve(every, slots)
    print_line("Stopped. A run that comes due meanwhile starts late, when the schedule is served again.")
    return 0


def _first_window(here: Clone, wanted: workspace.Schedule, params: config.Params) -> str:
    """Name the first run's window, if there is one yet. One of another recipe is an error."""
    if wanted.window is None:
        return f"{params.traffic.file} (traffic.file)"
    if not sorted(here.home.glob(wanted.window)):
        return f"{wanted.window} (no such file yet)"
    found = settings.newest(here, wanted.window, params.recipe.path)
    return f"{wanted.window} (now {windows.named(here, str(found))})"


def _end_runs(number: int, frame: FrameType | None) -> None:
    """Interrupt the current run, because Prefect would wait for it. It is recorded like any other
    interrupted run, and nothing is lost."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "prefect.server" not in " ".join(child.cmdline()):
                child.send_signal(signal.SIGINT)
    raise KeyboardInterrupt


def _assert_scheduler_works() -> None:
    """Refuse SQLAlchemy 2.1. Prefect 3.8.8 allows it, but its scheduler then fails each time, and
    only the server's log says so (tried with 2.1.9)."""
    if tuple(map(int, metadata.version("sqlalchemy").split(".")[:2])) >= (2, 1):
        raise UserError(
            "schedules need SQLAlchemy 2.0, because Prefect's scheduler creates no runs with 2.1. "
            "Install it: pip install 'sqlalchemy<2.1'"
        )


def _serve(every: Sequence[Planned], slots: int) -> None:
    from prefect import serve
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    from flows.pipeline import retrain

    deployments: list[RunnerDeployment] = []
    for one in every:
        asked = {key: getattr(one.schedule, key) for key in ("window", "params", "clean_only")}
        made: Any = retrain.to_deployment(
            name=one.name,
            schedule=Cron(one.schedule.cron, timezone=one.schedule.timezone),
            parameters={**asked, "agent": one.agent},
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        made.entrypoint = FLOW
        deployments.append(made)
    # This process alone serves the runs, so it keeps the limit. A limit that the server keeps
    # outlives a killed run, and then no other run starts (tried).
    serve(*deployments, pause_on_shutdown=False, print_starting_message=False, limit=slots)
