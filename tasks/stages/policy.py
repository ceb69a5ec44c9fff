"""Stage 4: the base model, built or warm-started here, or a pointer to the given one.

MLflow gets the numbers of a warm start as it gets those of training.
"""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import PolicyReport
from tasks.display.tracking import whole_rows
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="policy", task_run_name="policy {run.name}", cache_policy=NO_CACHE)
def build_policy(run: Run) -> PolicyReport:
    report = drive_stage(
        run,
        "policy",
        PolicyReport,
        lambda report: {"parameters": report.num_parameters, "final_loss": report.final_loss},
    )
    if (metrics := run.stage_folder("policy") / "metrics.jsonl").exists():
        rows = whole_rows(metrics)
        run.tracker.steps(rows if run.record.stages["policy"] == "ran" else rows[-1:], "policy/")
    return report
