"""Stage 6: is a better prompt or setting enough? `No gain found` is a result."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import PromptReport
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="prompt", task_run_name="prompt {run.name}", cache_policy=NO_CACHE)
def optimize_prompt(run: Run) -> PromptReport:
    report = drive_stage(
        run,
        "prompt",
        PromptReport,
        lambda report: {
            "confirmed_gain": report.confirmation,
            "candidates": len(report.candidates),
            "rollouts": report.num_rollouts,
        },
    )
    run.tracker.tag(prompt=report.winner.name)
    return report
