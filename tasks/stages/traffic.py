"""Stage 1: turn traffic into files. The run's start put window and champion in the worktree."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import TrafficReport
from tasks.display import datasets
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="traffic", task_run_name="traffic {run.name}", cache_policy=NO_CACHE)
def load_traffic(run: Run) -> TrafficReport:
    report = drive_stage(
        run,
        "traffic",
        TrafficReport,
        lambda report: {
            "conversations": report.num_conversations,
            "with_feedback": report.num_with_feedback,
            "rejected": sum(report.rejected.values()),
        },
    )
    run.tracker.datasets(datasets.of_traffic(run.tree, report))
    return report
