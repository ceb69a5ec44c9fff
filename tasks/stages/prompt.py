"""Stage 6: does a better prompt or setting do? `No gain found` is a result."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import PromptReport
from tasks.ladder import climb
from tasks.runs.run import Run


@task(name="prompt", task_run_name="prompt {run.name}", cache_policy=NO_CACHE)
def optimize_prompt(run: Run) -> PromptReport:
    report = climb(
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
