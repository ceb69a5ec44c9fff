"""Stage 8: three arms on the same frozen test examples, which no other stage opens."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import ChallengerReport
from tasks.runs.run import Run
from tasks.stage_runner import Numbers, drive_stage


@task(name="challenger", task_run_name="challenger {run.name}", cache_policy=NO_CACHE)
def evaluate_challenger(run: Run) -> ChallengerReport:
    return drive_stage(run, "challenger", ChallengerReport, _numbers)


def _numbers(report: ChallengerReport) -> Numbers:
    sampled = {f"{arm.name}/{name}": metric for arm in report.arms for name, metric in arm.sampled.metrics.items()}
    return sampled | {
        f"{arm.name}/greedy/{name}": metric for arm in report.arms for name, metric in arm.greedy.metrics.items()
    }
