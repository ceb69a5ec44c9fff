"""Stage 9: turn reports into one decision and one request. Another flow moves the champion."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import Decision
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="gate", task_run_name="gate {run.name}", cache_policy=NO_CACHE)
def decide(run: Run) -> Decision:
    decision = drive_stage(
        run,
        "gate",
        Decision,
        lambda decision: {f"check/{check.name}": check.value for check in decision.checks},
        file="decision.json",
    )
    gain = next((check for check in decision.checks if check.kind == "superiority"), None)
    run.update(
        decision=decision.decision,
        candidate=decision.candidate,
        message=decision.reason,
        gain=None if gain is None else {"value": gain.value, "low": gain.low, "high": gain.high},
    )
    run.tracker.tag(decision=decision.decision, candidate=decision.candidate)
    return decision
