"""Stage 7: RFT. Its metrics went to MLflow live; the stage's file fills the gaps."""

from __future__ import annotations

import json

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import TrainReport
from tasks.display.tracking import whole_rows
from tasks.runs.run import Run
from tasks.stage_runner import drive_stage


@task(name="train", task_run_name="train {run.name}", cache_policy=NO_CACHE)
def train_adapter(run: Run) -> TrainReport:
    report = drive_stage(
        run,
        "train",
        TrainReport,
        lambda report: {
            "steps": report.steps,
            "rollouts": report.rollouts,
            "left_out": sum(report.left_out.values()),
            "weight_change": report.weight_change,
        },
    )
    rows = whole_rows(run.stage_folder("train") / "metrics.jsonl")
    if run.record.stages["train"] == "ran":
        times = json.loads((run.stage_folder("train") / "timing.json").read_text(encoding="utf-8")).get("steps", [])
        run.tracker.steps([*rows, *times], "train/")
    else:
        run.tracker.steps(rows[-1:], "train/")
    run.tracker.tag(trained=report.weights)
    return report
