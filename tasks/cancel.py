"""`rft runs cancel`: end a run for good.

A file asks a running run to end. Its driver reads the file before each stage, and the stage reads
it at each checkpoint (rft/stopping.py). So the run ends itself, in its own process, and is recorded
with all that it did. `force` does not wait for a checkpoint: it kills the stage's processes, and
the driver, which knows why, ends in the same way. A run whose driver is dead, or that stopped at
run.max_hours, is recorded here.

The next `rft run` of the same settings is a new run. It finds the finished stages in DVC's run
cache and the unfinished one in `.rft/progress`, until `rft runs gc` removes them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from rft import lines, stopping
from rft.errors import InfrastructureError, UserError
from tasks.display import tracking
from tasks.runs import records, repro
from tasks.runs import run as runs
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

POLL_INTERVAL_S = 0.25


def cancel(
    clone: Clone, record: RunRecord, force: bool, timeout_s: float, tell: Callable[[str], None]
) -> RunRecord | None:
    """Return the run as it is recorded; None when there was nothing to record.

    Raises UserError for a run that is over, and InfrastructureError when it still goes on after
    `timeout_s` seconds. `tell` gets the run's last log line four times per second.
    """
    _raise_if_over(record)
    file, deadline = stopping.request(clone.state, record.name), time.monotonic() + timeout_s
    while True:
        while records.alive(clone, record.name):
            if not file.exists():
                file.touch()
            if force:
                runs.kill_stage(clone, record.name)
            if time.monotonic() > deadline:
                raise InfrastructureError(_timeout_message(record.name, force, timeout_s))
            tell(_last_log_line(clone, record.name))
            time.sleep(POLL_INTERVAL_S)
        with records.held(runs.start_lock(clone), wait=True):  # from here on no other process adopts it
            if records.alive(clone, record.name):
                continue  # it was about to begin
            found = _find_record(clone, record.name)
            if found is None or not found.over:
                ended = found and runs.end(clone, found, "cancelled", runs.CANCELLED)
                if ended is not None and ended.state != "cancelled":
                    raise UserError(_ended_before_message(ended))
                _tell_mlflow(clone, ended)
                return ended
            file.unlink(missing_ok=True)
        if found.state != "cancelled":
            _raise_if_over(found, "before it came to a checkpoint ")
        return found


def _raise_if_over(record: RunRecord, when: str = "") -> None:
    if not record.over:
        return
    if record.state == "cancelled":
        raise UserError(f"run {record.name} was cancelled already, at {record.ended}.")
    ended = f"run {record.name} ended {when}at {record.ended} ({record.state})"
    raise UserError(f"{ended}. There is nothing to cancel, and nothing was changed.")


def _ended_before_message(ended: RunRecord) -> str:
    what = f"run {ended.name} was {ended.state} when its process was killed, before that was recorded"
    return f"{what}. It is recorded now, as revision {(ended.revision or '')[:10]}, and there is nothing to cancel."


def _find_record(clone: Clone, name: str) -> RunRecord | None:
    return next((record for record in records.load_all(clone) if record.name == name), None)


def _last_log_line(clone: Clone, name: str) -> str:
    """Return the last line for people in the run's newest log."""
    logs = sorted(clone.log(name, "").parent.glob("*.log"), key=lambda file: file.stat().st_mtime)
    told = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
    return next((line for line in reversed(told) if not (repro.DVC_SAYS.match(line) or lines.METRICS.match(line))), "")


def _timeout_message(name: str, force: bool, timeout_s: float) -> str:
    remedy = "`--now` ends its stage at once."
    if force:
        remedy = "Its driver does not answer: end that process (`rft run` or `rft up`), then cancel again."
    waited = f"run {name} was asked to end, and is still going on after {timeout_s:g} s"
    return f"{waited}. The request stands: it ends at its next checkpoint. {remedy}"


def _tell_mlflow(clone: Clone, record: RunRecord | None) -> None:
    """Show the end in MLflow; the run is cancelled whether MLflow answers or not."""
    if record is None or record.mlflow_run_id is None:
        return
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException, InfrastructureError):
        client = tracking.client(clone)
        client.set_tag(record.mlflow_run_id, "state", record.state)
        client.set_terminated(record.mlflow_run_id, "KILLED")
