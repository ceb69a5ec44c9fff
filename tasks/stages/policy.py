"""Stage 4: the base model, built and warm-started here, or the pointer to the given one."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import PolicyReport
from tasks.ladder import climb
from tasks.runs.run import Run


@task(name="policy", task_run_name="policy {run.name}", cache_policy=NO_CACHE)
def build_policy(run: Run) -> PolicyReport:
    return climb(
        run,
        "policy",
        PolicyReport,
        lambda report: {"parameters": report.num_parameters, "final_loss": report.final_loss},
    )
