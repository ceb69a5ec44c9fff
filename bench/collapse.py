"""The figure of collapses: does a training that destroys its policy reach the look at the test set?

It also measures whether an honest training is ever stopped. Ten seeds of the agent that `rft new`
writes, each warm-started once, are trained with 1, 3, 10 and 30 times the default learning rate: 40
trainings. Each has a twin that nobody watches, which shows the truth. A training collapsed if its
weights earn less than half of what the policy earned before it, on the test examples.

    reaches the look    a watched training left weights, and these earn less than half
    honest, stopped     a watched training ended without weights, but its twin's weights earn at
                        least as much as the policy did before
    fell for nothing    a watched training went back at least once, but its twin's weights earn as
                        much. That only costs steps, so it has no bound. At high rates a twin may
                        fall and recover

The stages are the product's own, in one process per seed. What each seed found is kept in
bench/results/ladders/, and is not measured again by the same code. `ARGS` may name the seeds to
measure now, such as `ARGS="0 1"`.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench import figure, seeds
from bench.ladder import print_line
from bench.measure import Figure, Part, failed, unmeasured

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench" / "collapse"
SEEDS, TIMES = range(10), (1, 3, 10, 30)
SEEDED = ("examples", "policy", "baseline", "prompt", "train", "challenger")


def collapse(args: list[str]) -> Figure:
    """40 trainings at 1, 3, 10 and 30 times the default learning rate: collapses that reach the
    look (0), honest ones that are stopped (at most 1)."""
    rows: list[dict[str, Any]] = []
    stamp = seeds.stamp(["flows/template", "bench/collapse.py"], "collapse")
    for seed in SEEDS:
        kept = seeds.KEPT / f"collapse-{seed}.json"
        if kept.exists() and (found := json.loads(kept.read_text()))["stamp"] == stamp:
            rows += found["rows"]
            continue
        if args and str(seed) not in args:
            return unmeasured("collapses that reach the look", f"seed {seed} is not on record, and ARGS names others")
        command = [sys.executable, "-m", "bench.collapse", str(seed)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return failed("collapses that reach the look", f"seed {seed} ended with {done.returncode}: {WORK}")
        mine = json.loads(done.stdout.splitlines()[-1])
        seeds.KEPT.mkdir(parents=True, exist_ok=True)
        facts = {"stamp": stamp, "commit": figure.commit(), "machine": figure.machine(), "rows": mine}
        kept.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        rows += mine
    return figure_of(rows)


def figure_of(rows: list[dict[str, Any]]) -> Figure:
    """Count over the rows. A row has `times`, `before`, `after` (None: it left no weights), `falls`
    and `twin`."""
    reached = [row for row in rows if row["after"] is not None and row["after"] < row["before"] / 2]
    honest = [row for row in rows if row["twin"] >= row["before"]]
    stopped = [row for row in honest if row["after"] is None]
    parts = [
        Part("collapses that reach the look", len(reached), "trainings", at_most=0, n=len(rows)),
        Part("honest trainings that were stopped", len(stopped), "trainings", at_most=1, n=len(rows)),
        Part("honest trainings that went back", sum(row["falls"] > 0 for row in honest), "trainings", n=len(honest)),
    ]
    for times in sorted({row["times"] for row in rows}):
        mine = [row for row in rows if row["times"] == times]
        label = f"at {times} times the default"
        gains = sorted((row["before"] if row["after"] is None else row["after"]) - row["before"] for row in mine)
        lost = sum(row["twin"] < row["before"] / 2 for row in mine)
        parts += [
            Part(f"{label}: unwatched, collapsed", lost, "trainings", n=len(mine)),
            Part(f"{label}: went back", sum(row["falls"] > 0 for row in mine), "trainings", n=len(mine)),
            Part(
                f"{label}: ended before the look", sum(row["after"] is None for row in mine), "trainings", n=len(mine)
            ),
            Part(f"{label}: median gain", gains[len(gains) // 2], "reward", low=gains[0], high=gains[-1], n=len(mine)),
        ]
    return Figure(tuple(parts))


# -- one seed --------------------------------------------------------------------------------------
def _measure(seed: int) -> list[dict[str, Any]]:
    from rft import progress, reports, stage_files
    from rft.models import source
    from rft.trainer import rates

    os.environ["RFT_STATE"] = str(WORK / "state")
    params = _params(seed)
    place = WORK / progress.folder("figure", [params], [ROOT / "flows/template", Path(__file__)]).name
    warm = place / "warm"
    warm.mkdir(parents=True, exist_ok=True)
    with chdir(warm):
        if not stage_files.path(reports.Model).exists():
            source.write(source.resolve(params.policy, Path(), WORK / "state"), Path())
        for stage in ("examples", "policy", "baseline", "prompt"):
            if not Path(f"{stage}.done").exists():
                importlib.import_module(f"rft.stages.{stage}").run(params)
                Path(f"{stage}.done").touch()
        before = _earned(params, None)
    usual = rates.default(params.train.weights, params.policy.architecture.hidden)
    rows: list[dict[str, Any]] = []
    for times in TIMES:
        changed = params.model_copy(update={"train": params.train.model_copy(update={"lr": times * usual})})
        print_line(f"seed {seed}, {times} times {usual:g}")
        watched, falls = _trained(warm, place / f"watched-{times}", changed, watch=True)
        twin, _ = _trained(warm, place / f"twin-{times}", changed, watch=False)
        assert twin is not None
        rows.append({"seed": seed, "times": times, "before": before, "after": watched, "falls": falls, "twin": twin})
    shutil.rmtree(place)
    return rows


def _trained(warm: Path, place: Path, params: Any, watch: bool) -> tuple[float | None, int]:
    """Return what the trained weights earn (None: there are none), and how often training went
    back."""
    from rft import reports, stage_files
    from rft.stages import train
    from rft.trainer.collapse import Guard

    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(warm, place)
    with chdir(place):
        with ExitStack() as blind:
            for method in () if watch else ("saw", "checked"):
                blind.enter_context(patch.object(Guard, method, return_value=""))
            train.run(params)
        report = stage_files.read(reports.TrainReport)
        earned = None
        if not report.collapsed:
            earned = _earned(params, (report.weights, stage_files.WEIGHTS) if report.trained else None)
    shutil.rmtree(place)
    return earned, len(report.falls)


def _earned(params: Any, learned: Any) -> float:
    """Play the test examples once each, at temperature 1, with the run's prompt."""
    from rft import recipe, reports, stage_files
    from rft.models import weights
    from rft.rollouts.runner import Plan, rollout_runner
    from rft.rollouts.store import RolloutStore
    from rft.sampling import policies

    folder = Path("measured")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    device, rows = weights.prepare_process(params.policy), stage_files.load_examples("test")
    with (
        rollout_runner(params, recipe.load(params.recipe), folder) as runner,
        RolloutStore(folder / "rollouts") as store,
    ):
        policy = policies.load_policy(runner, "champion", device, learned).policy
        plan = Plan(
            "figure", "collapse", stage_files.read(reports.PromptSettings), 1.0, 1, params.challenger.seed, "test"
        )
        log = runner.measure(policy, rows, plan, store, lambda done, message: None)
    known = [row.reward for row in log if row.reward is not None]
    return sum(known) / len(known)


def _params(seed: int) -> Any:
    import yaml

    from rft import config

    place = WORK / "recipes" / "first"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "flows/template", place, ignore=shutil.ignore_patterns("__pycache__"))
    text = (place / "params.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text.replace("RECIPE_FOLDER", str(place)).replace("RECIPE_NAME", "first"))
    for section in SEEDED:
        raw.setdefault(section, {})["seed"] = seed
    return config.parse(raw, "flows/template/params.yaml", config.Params)


FIGURES = {"collapse": collapse}

if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(_measure(int(sys.argv[1]))), file=out)
