"""Notify people of a scheduled run that failed (`run.notify`): nobody looks at the terminal.

`failed` is a hook of the flow `retrain`, and Prefect calls it whatever ended the flow. After an
error it runs in the flow's own process, even if there was no run yet (uncommitted edits, a missing
window). If that process was killed, it runs in the process of `rft up`. It tells of flow runs that
a deployment started, because a run at a terminal is seen there. A run that was interrupted or
cancelled was ended by somebody, so nobody is told.

The settings are read again, because they may be what is wrong. If the file cannot be read as a
whole, only its `run.notify` is read. If that fails, too, the settings are those that `rft up`
started with.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from flows import settings
from rft import commands, config
from rft.errors import RftError
from tasks import notify
from tasks.runs import clone, records
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

_NOTIFY = "RFT_NOTIFY"
"""Each agent's `run.notify` as JSON, in the environment of the flow runs that `rft up` starts. It
names secrets and holds none."""
_IN_ORDER = ("interrupted", "cancelled", "paused", "stopped")
_BLAME = {2: "the user's to fix", 3: "a server, a disk or a process failed"}
_LONGEST = 1000


class _Told(logging.Filter):
    """Removes the tracebacks of our own errors. They say who can fix what, and two tracebacks (the
    task's and the flow's) would bury that in 90 lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RftError):
            record.exc_info = record.exc_text = None
        return True


def told_once() -> None:
    """Make Prefect log each of our errors in one line."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Told) for one in logger.filters):
            logger.addFilter(_Told())


def remember(each: Mapping[str, config.Params]) -> None:
    """Keep each agent's `run.notify`, for the case that its file is broken later."""
    kept = {name: params.run.notify.model_dump(mode="json", by_alias=True) for name, params in each.items()}
    os.environ[_NOTIFY] = json.dumps(kept)


def failed(flow: Any, flow_run: Any, state: Any) -> None:
    """Tell that this flow run failed, if a deployment started it."""
    if flow_run.deployment_id is None:
        return
    error = getattr(state.data, "result", state.data)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in ("TerminationSignal", "CancelledError"):
        return  # Ctrl-C, or the end of `rft up`
    asked = flow_run.parameters
    here = clone.find(asked.get("agent"))
    whom = _settings(here, asked)
    record = _record(here, str(flow_run.id))
    if record and record.state in _IN_ORDER:
        return
    stage = _stage(record)
    log = here.log(record.name, stage) if record and stage else None
    event = notify.RunFailed(
        key=str(flow_run.id),
        run=record.name if record else None,
        message=_describe(error, stage, state.message or ""),
        again=record.again if record else _command(here, asked),
        clone=notify.place(here),
        log=str(log) if log and log.exists() else None,
    )
    notify.tell(whom, event, here.log(record.name if record else ".", "notify"))


def _settings(here: Clone, asked: Mapping[str, Any]) -> config.Notify:
    params, overrides = asked.get("params"), asked.get("overrides") or ()
    try:
        return settings.resolve(here, params, overrides).run.notify
    except (RftError, OSError):
        pass
    try:
        raw = config.read_sections(here.home / (params or "params.yaml"), "params.yaml").get("run") or {}
        return config.parse(raw.get("notify") or {}, "params.yaml", config.Notify)
    except (RftError, OSError, AttributeError):
        kept = json.loads(os.environ.get(_NOTIFY, "{}"))
        return config.Notify.model_validate(kept.get(asked.get("agent") or "", {}))


def _record(here: Clone, flow_run_id: str) -> RunRecord | None:
    try:
        return next((record for record in records.load_all(here) if record.flow_run_id == flow_run_id), None)
    except RftError:  # the record of some run is damaged
        return None


def _stage(record: RunRecord | None) -> str | None:
    """Return the stage that began and did not end."""
    return next((stage for stage in record.seconds if stage not in record.stages), None) if record else None


def _describe(error: Any, stage: str | None, message: str) -> str:
    """Describe the error without its message, if a stage or a bug raised it: that may quote
    conversations. Our own errors before the first stage name only files and settings."""
    if stage:
        code = getattr(error, "exit_code", 1)
        return f"stage {stage} failed (exit code {code}: {_BLAME.get(code, 'a bug, or it was killed')})."
    if isinstance(error, RftError):
        return str(error)[:_LONGEST]
    if isinstance(error, BaseException):
        return f"{type(error).__name__}, which is a bug."
    return message.splitlines()[0][:_LONGEST] if message else "its process ended."


def _command(here: Clone, asked: Mapping[str, Any]) -> str:
    """Return the command that starts the same run again."""
    window = ["--window", asked["window"]] if asked.get("window") else []
    clean = ["--clean-only"] if asked.get("clean_only") else []
    again = commands.options(here.home, asked.get("params"), asked.get("overrides") or ())
    return commands.command("run", *window, *clean, settings=again)
