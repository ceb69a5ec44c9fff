"""Stage `baseline`: how good is the agent today, and would RFT help at all?

k rollouts of each validation example by what is served now. RFT learns from examples that are sometimes solved and sometimes not, so beside the
mean stand the best-of-k curve (its head-room) and the shares always failed, always solved, mixed. The readiness verdict follows the rule that
the field states in prose: above 95 % not worth it, near zero even for the best of k not yet (warm-start first), between: ready.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from rft import config, evaluate, examples, model, policies, progress, recipe, reports, rollout_log
from rft.rollout_store import RolloutStore
from rft.workbench import Plan, champion_prompt, workbench

SHELF = Path("data/baseline")
Readiness = Literal["not worth it", "not yet", "ready"]


def run(params: config.Params) -> None:
    section = params.baseline
    device = model.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    rows = examples.load("validation")[: section.examples]
    work = progress.folder(
        "baseline", [params.recipe, params.tools, params.rollout, section], [Path("data/policy"), Path("data/champion"), Path("data/examples")]
    )
    prompt = champion_prompt(ours)
    report = progress.Reporter("baseline", len(rows) * (section.k + 1))
    with workbench(params, ours, work) as bench, RolloutStore(work / "rollouts") as store:
        policy = policies.of(bench, "champion", device).policy
        sampled = bench.measure(policy, rows, Plan("baseline", "champion", prompt, section.temperature, section.k, section.seed), store, report)
        greedy = bench.measure(policy, rows, Plan("baseline", "champion", prompt, 0.0, 1, section.seed), store, report, done=len(sampled))
        bench.times.write(SHELF / "timing.json", bench.traces)
        rollout_log.write(store, SHELF / "rollouts.parquet")
    at_work = evaluate.evaluation("champion", sampled, rows, section.temperature, section.k, section.seed)
    readiness, reason = _readiness(at_work, section)
    reports.write(
        reports.BaselineReport(
            readiness=readiness, reason=reason, sampled=at_work, greedy=evaluate.evaluation("champion greedy", greedy, rows, 0.0, 1, section.seed)
        ),
        SHELF / "report.json",
    )
    progress.say("baseline", f"{readiness}: {reason}")
    shutil.rmtree(work)


def _readiness(result: reports.Evaluation, section: config.Baseline) -> tuple[Readiness, str]:
    mean, best = result.metrics["score/mean"].value, result.max_at_k[-1][1]
    if mean > section.not_worth_above:
        return "not worth it", f"the mean score is {mean:.3f} already, above {section.not_worth_above}: little is left to learn"
    if best < section.not_yet_below:
        return "not yet", f"even the best of {result.k} rollouts scores {best:.3f}, below {section.not_yet_below}: warm-start first"
    mixed = result.shares["mixed"]
    return "ready", f"mean score {mean:.3f}, best of {result.k} {best:.3f}; {mixed:.0%} of the examples are sometimes solved and sometimes not"
