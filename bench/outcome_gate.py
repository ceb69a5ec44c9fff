"""Does a budget for tool calls collapse a policy? An added one does, a multiplied one does not.

Ours is multiplied with the outcome. The task (bench/drawers): a number lies in one of 12 drawers,
each call opens one, and only the right number scores. The policy is warm-started on searchers of
little patience. So it succeeds about one time in six, all rollouts of a group often fail, and it
must call more often to succeed more often. Then GRPO, which divides by the group's deviation,
trains it three times: without a budget, with the budget multiplied, and with it added. In a group
where all rollouts failed, only the added budget differs. Divided by its own deviation, it becomes
full-size advantages for those that searched least. Stages, tools and grader are real. There are
five seeds, each for warm start and training.

The effect depends on how common such groups are. Here a third of all groups fail throughout even
without a budget. In a trial with 8 drawers and more patient demonstrations an eighth did, and the
added form collapsed one seed of five and left the others unharmed.

Only the form of the budget may differ between the runs, so `train.variance` is `reward` in all of
them. Its default, `outcome`, leaves all-fail groups out, and would hide what the added form does.

For comparison, the figure shows what the two forms did on the ICD-10 recipe, as `icd10_budget`
recorded it. Most groups there earn something, and few calls are enough, so neither collapses.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench" / "outcome_gate"
ICD10 = ROOT / "bench" / "results" / "icd10_budget.json"
SEEDS = range(5)
BUDGET = {"tool_calls": 2, "weight": 0.3}
ARMS: dict[str, dict[str, Any]] = {
    "no budget": {"tool_calls": None},
    "multiplied": {**BUDGET, "form": "multiplied"},
    "added": {**BUDGET, "form": "added"},
}
SETTINGS: dict[str, Any] = {
    "recipe": {"path": str(ROOT / "bench" / "drawers")},
    "rollout": {"max_turns": 14, "max_turn_tokens": 8, "max_tokens": 256, "max_unreadable_calls": 0},
    "examples": {"train": 1000, "validation": 64, "test": 256, "disjoint_targets": False},
    "policy": {
        "threads": 1,  # one seed per core
        "architecture": {
            "layers": 2,
            "hidden": 96,
            "heads": 2,
            "kv_heads": 2,
            "head_dim": 48,
            "feed_forward": 64,
            "max_positions": 256,
            "merges": 60,
        },
        "warm_start": {"demonstrations": 2000, "steps": 250},
    },
    "baseline": {"examples": 64, "k": 2},
    "train": {
        "from": "policy",
        "algorithm": "grpo",
        "variance": "reward",
        "weights": "full",
        "lr": 4e-4,
        "steps": 24,
        "validation_examples": 0,
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on the test rows: success by row and calls per rollout. The shares describe the
    groups of its training."""

    success: dict[str, list[float | None]]
    calls: list[int]
    all_fail: float | None = None
    """Share of the groups in which all rollouts failed."""
    phantoms: float | None = None
    """The share of these groups that was trained on all the same."""


def outcome_gate(args: list[str]) -> Figure:
    """Success after GRPO with a call budget multiplied or added, 5 seeds: ours never below its
    start, the added form at most half of ours."""
    shutil.rmtree(WORK, ignore_errors=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = list(pool.map(_seed, SEEDS))
    shutil.rmtree(WORK)
    return Figure((*_parts(runs), *_icd10()))


FIGURES = {"outcome_gate": outcome_gate}


def _parts(runs: Sequence[dict[str, Run]]) -> Iterator[Part]:
    rates = {arm: [_mean(run[arm].success) for run in runs] for arm in ("start", *ARMS)}
    n = len(runs)
    yield _success("multiplied", runs)
    pairs = list(zip(rates["multiplied"], rates["start"], rates["added"], rates["no budget"], strict=True))
    yield Part(
        "multiplied above its start, the least of 5 seeds",
        min(ours - start for ours, start, _, _ in pairs),
        "share",
        at_least=0.0,
        n=n,
    )
    yield Part(
        "added over multiplied, the most of 5 seeds",
        max(added / max(ours, 1e-6) for ours, _, added, _ in pairs),
        "",
        at_most=0.5,
        n=n,
    )
    yield Part(
        "multiplied below no budget, mean",
        sum(plain - ours for ours, _, _, plain in pairs) / n,
        "share",
        at_most=0.15,
        n=n,
    )
    for arm in ("start", "no budget", "added"):
        yield _success(arm, runs)
    for arm in ("start", *ARMS):
        yield Part(f"calls a rollout, {arm}", _average([call for run in runs for call in run[arm].calls]), "calls", n=n)
    for arm in ARMS:
        yield Part(f"groups that all fail, {arm}", _average([run[arm].all_fail for run in runs]), "share", n=n)
        yield Part(
            f"trained on, of groups that all fail, {arm}", _average([run[arm].phantoms for run in runs]), "share", n=n
        )
    for seed, run in zip(SEEDS, runs, strict=True):
        for arm, found in run.items():
            yield Part(f"seed {seed}: success, {arm}", _mean(found.success), "share", n=len(found.success))


def _success(arm: str, runs: Sequence[dict[str, Run]]) -> Part:
    """Return the success, by a two-level bootstrap over seeds and rows."""
    from rft import stats

    nothing: dict[str, list[float | None]] = {row: [0.0] for row in runs[0][arm].success}
    rate = stats.gain_over_seeds([(run[arm].success, nothing) for run in runs])
    return Part(f"success, {arm}", rate.value, "share", low=rate.low, high=rate.high, n=rate.n)


def _icd10() -> Iterator[Part]:
    if not ICD10.exists():
        yield Part("ICD-10", None, n=0, reason="not recorded yet: make figure NAME=icd10_budget")
        return
    for one in json.loads(ICD10.read_text(encoding="utf-8"))["parts"]:
        yield Part(f"ICD-10: {one['name']}", one["value"], one["unit"], low=one["low"], high=one["high"], n=one["n"])


# -- one seed, in a process of its own -------------------------------------------------------------
def _seed(seed: int) -> dict[str, Run]:
    from rft import recipe, reports
    from rft.stages import baseline, examples, policy

    folder = WORK / str(seed)
    folder.mkdir(parents=True)
    os.environ["RFT_STATE"] = str(folder / "state")
    with chdir(folder), redirect_stdout(sys.stderr):
        params = _params(seed)
        for stage in (examples, policy, baseline):
            stage.run(params)
        reports.write(recipe.load(params.recipe).prompts.seed, Path("data/prompt/prompt.json"))
        return {
            "start": _measure(params, None),
            **{arm: _trained(_params(seed, budget)) for arm, budget in ARMS.items()},
        }


def _params(seed: int, budget: dict[str, Any] = ARMS["no budget"]) -> Any:
    from rft import config

    sections = {name: dict(section) for name, section in SETTINGS.items()}
    sections["rollout"]["budget"] = budget
    sections["policy"]["seed"] = sections["train"]["seed"] = seed
    return config.parse({**sections, "gate": config.load(ROOT / "params.yaml").gate.model_dump()})


def _trained(params: Any) -> Run:
    import pyarrow.parquet as pq

    from rft.stages import train

    train.run(params)
    groups: dict[tuple[int, str], list[tuple[bool, bool]]] = defaultdict(list)
    columns = ("step", "example_id", "solved", "trained")
    for row in pq.read_table("data/train/rollouts.parquet", columns=list(columns)).to_pylist():
        if row["solved"] is not None:
            groups[row["step"], row["example_id"]].append((row["solved"], row["trained"]))
    failed = [group for group in groups.values() if not any(solved for solved, _ in group)]
    phantoms = _average([any(trained for _, trained in group) for group in failed]) if failed else None
    measured = _measure(params, Path("data/train/weights"))
    return Run(measured.success, measured.calls, len(failed) / len(groups), phantoms)


def _measure(params: Any, weights: Path | None) -> Run:
    """Measure on all test rows, once each at temperature 1."""
    from rft import recipe, stage_files
    from rft.models import weights as model
    from rft.rollouts.runner import Plan, rollout_runner
    from rft.rollouts.store import RolloutStore
    from rft.sampling.engine import Engine
    from rft.sampling.policies import base_model

    device = model.prepare_process(params.policy)
    network, chat = base_model(params, "policy", device)
    engine = Engine(model.with_weights(network, "full", weights, device), chat, device)
    ours = recipe.load(params.recipe)
    plan = Plan("figure", "test", ours.prompts.seed, 1.0, 1, 0)
    shutil.rmtree("measured", ignore_errors=True)
    with rollout_runner(params, ours) as runner, RolloutStore(Path("measured")) as store:
        rows = runner.measure(engine, stage_files.load_examples("test"), plan, store, lambda done, message: None)
    return Run(
        {row.example_id: [row.score] for row in rows}, [row.num_tool_calls for row in rows if row.score is not None]
    )


def _mean(rows: dict[str, list[float | None]]) -> float:
    return _average([score for row in rows.values() for score in row if score is not None])


def _average(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)
