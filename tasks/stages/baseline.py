"""Stage 5: how good is the agent today? `train` obeys its readiness verdict."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import BaselineReport
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="baseline", task_run_name="baseline {run.name}", cache_policy=NO_CACHE)
def evaluate_baseline(run: Run) -> BaselineReport:
    report = drive_stage(
        run,
        "baseline",
        BaselineReport,
        lambda report: (
            report.sampled.metrics
            | {f"greedy/{name}": metric for name, metric in report.greedy.metrics.items()}
            | {f"share/{name}": share for name, share in report.sampled.shares.items()}
        ),
    )
    run.tracker.tag(readiness=report.readiness)
    return report
