"""Run the ladder on a schedule, on this machine (`rft up`).

infra/schedule.yaml says what runs when. Prefect's server and a deployment are served until Ctrl-C
stops both. One run at a time: a second one waits. Prefect has no users of its own, so it listens on
loopback only; for a team, `infra/` describes a server with a database and a password.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

from flows import settings, unattended
from flows.screen import print_line
from flows.server import prefect_server
from rft import config
from rft.errors import ConfigError, UserError
from tasks.runs import clone, windows
from tasks.runs import run as runs
from tasks.runs.clone import Clone

SCHEDULE = "infra/schedule.yaml"


class Schedule(BaseModel):
    """infra/schedule.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    cron: str
    timezone: str = "UTC"
    window: str | None = None
    params: str | None = None
    clean_only: bool = True


def schedule(root: Path) -> Schedule:
    """Read infra/schedule.yaml. Raises ConfigError, which names file, key and value."""
    path = root / SCHEDULE
    if not path.exists():
        raise ConfigError(f"{SCHEDULE}: missing. It says when the ladder runs; restore it: git checkout {SCHEDULE}")
    raw = config.read_yaml(path, SCHEDULE) or {}
    if not isinstance(raw, dict):
        expected = "expected keys such as 'name:' and 'cron:'"
        raise ConfigError(f"{SCHEDULE}: holds {type(raw).__name__}, {expected}. Restore it: git checkout {SCHEDULE}")
    found = config.parse(raw, SCHEDULE, Schedule)
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=found.cron, timezone=found.timezone)
    except ValueError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(f"{SCHEDULE}: cron {found.cron!r} in timezone {found.timezone!r}: {reason}") from None
    return found


def up(port: int) -> int:
    here = clone.enter()
    here.assert_at_the_top("rft up", "Let cron start `rft --agent NAME run --clean-only --window PATTERN` meanwhile.")
    if here.root != Path.cwd():
        raise UserError(f"run this at the top of the clone, where scheduled runs start too: cd {here.root}")
    os.environ |= {"PREFECT_LOGGING_LEVEL": "INFO", clone.SERVED_BY: str(os.getpid())}
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its tracebacks of tasks that Ctrl-C cut off
    with prefect_server(here, full=True, port=port) as server:
        wanted = schedule(here.root)
        _assert_scheduler_works()
        params = settings.resolve(here, wanted.params)  # a mistake shows now, not at night in the first run
        runs.refuse_missing_recipe(here, params)
        unattended.remember(params)
        window = _first_window(here, wanted, params)
        if server:
            server.ready()
        runs.clear(here)
        print_line(f"Prefect: {server.url if server else os.environ['PREFECT_API_URL']}")
        what = f"recipe {params.recipe.path}, settings {wanted.params or 'params.yaml'}, window {window}"
        print_line(f"Schedule: {wanted.cron} ({wanted.timezone}), {what}.")
        print_line("One run at a time. Ctrl-C stops the schedule and the run.")
        signal.signal(signal.SIGINT, _end_runs)
        _serve(wanted)
    print_line("Stopped. A run that comes due meanwhile starts late, when the schedule is served again.")
    return 0


def _first_window(here: Clone, wanted: Schedule, params: config.Params) -> str:
    """Name the first run's window. There may be none yet; one of another recipe is an error."""
    if wanted.window is None:
        return f"{params.traffic.file} (traffic.file)"
    if not sorted(here.root.glob(wanted.window)):
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
    """Refuse SQLAlchemy 2.1. Prefect 3.8.8 allows it, but its scheduler then fails each time, which
    only the server's log says (tried with 2.1.9)."""
    if tuple(map(int, metadata.version("sqlalchemy").split(".")[:2])) >= (2, 1):
        raise UserError(
            "schedules need SQLAlchemy 2.0, because Prefect's scheduler creates no runs with 2.1. "
            "Install it: pip install 'sqlalchemy<2.1'"
        )


def _serve(wanted: Schedule) -> None:
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    from flows.pipeline import retrain

    parameters: dict[str, Any] = {"window": wanted.window, "params": wanted.params, "clean_only": wanted.clean_only}
    retrain.serve(
        name=wanted.name,
        schedule=Cron(wanted.cron, timezone=wanted.timezone),
        parameters=parameters,
        # A limit of this process, the only one that serves. One kept by the server outlives a
        # killed run, and then no other starts (tried).
        limit=1,
        pause_on_shutdown=False,
        print_starting_message=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
