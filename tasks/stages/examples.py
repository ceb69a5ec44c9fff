"""Stage 3: make train, validation and test; after a refresh, train comes from graded traffic."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import ExamplesReport
from tasks.display import datasets
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="examples", task_run_name="examples {run.name}", cache_policy=NO_CACHE)
def build_examples(run: Run, refresh: bool) -> ExamplesReport:
    if refresh:
        run.set_param("examples", "source", "window")
    report = drive_stage(
        run,
        "examples",
        ExamplesReport,
        lambda report: {f"{split}_examples": count for split, count in report.counts.items()},
    )
    run.tracker.datasets(datasets.of_examples(run.tree, report))
    return report
