"""Stage 2: is the data still like production? The flow obeys the verdict."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import DriftReport
from tasks.ladder import Numbers, climb
from tasks.runs.run import Run


@task(name="drift", task_run_name="drift {run.name}", cache_policy=NO_CACHE)
def check_drift(run: Run) -> DriftReport:
    report = climb(run, "drift", DriftReport, _numbers)
    run.update(verdict=report.verdict)
    run.tracker.tag(drift=report.verdict)
    return report


def _numbers(report: DriftReport) -> Numbers:
    effects = {f"effect/{feature.feature}": feature.effect for feature in report.features}
    return effects | {
        "features_drifted": sum(feature.drifted for feature in report.features),
        "contracts_broken": sum(not contract.success for contract in report.contracts),
    }
