"""Stage 2: is the data still like production? The flow obeys the verdict.

MLflow gets the page with the pictures, and numbers per feature, which it can draw over the runs:

    drift/effect/FEATURE     The effect as the statistic measures it. With several references, it is
                             the one against the first of train, validation, test, window.
    drift/AGAINST/FEATURE    The same effect divided by its threshold: 0 is none, above 1 is drift.
"""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft import files, secrets
from rft.page import DriftComparison, drift
from rft.reports import DriftReport, drift_wording
from tasks.runs.run import Run
from tasks.stage_runner import Numbers, drive_stage


@task(name="drift", task_run_name="drift {run.name}", cache_policy=NO_CACHE)
def check_drift(run: Run) -> DriftReport:
    report = drive_stage(run, "drift", DriftReport, _numbers)
    run.update(verdict=report.verdict)
    run.tracker.tag(drift=report.verdict)
    _show(run, report)
    return report


def _show(run: Run, report: DriftReport) -> None:
    """Give MLflow the page at once: a run that stops here has no other page."""
    path = run.clone.page(f"{run.name}.drift")
    comparison = DriftComparison(run.name, run.record.window, report)
    files.write_text(secrets.redact(drift.render([comparison], {"window": run.record.window})), path)
    run.tracker.page(path)


def _numbers(report: DriftReport) -> Numbers:
    numbers: dict[str, float | None] = {}
    for feature in (each for part in drift_wording.sections(report) for row in part.compared for each in row.features):
        numbers.setdefault(f"effect/{feature.feature}", feature.effect)
        if feature.effect is not None:
            numbers[f"{feature.against}/{feature.feature}"] = drift_wording.ratio(feature)
    return numbers | {
        "features_drifted": sum(feature.drifted for feature in report.features),
        "contracts_broken": sum(not contract.success for contract in report.contracts),
    }
