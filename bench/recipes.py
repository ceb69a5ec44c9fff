"""The figures of the recipes: what each agent learns, which cheats pass, and what laziness earns.

    recipes_learn       the ladder, as its user runs it (bench/ladder.py): the three arms that stage
                        `challenger` played on the frozen test examples
    recipes_exploits    the preflight: exploits, targets, and a scripted honest agent
    recipes_shortcuts   scripted lazy agents beside the trained policy that recipes_learn recorded

Each has a figure per recipe, such as recipes_learn_wordle, with its own record. The whole figure
measures these in turn, and uses what was measured before for the same engine and recipe.
"""

from __future__ import annotations

import importlib
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import figure, ladder
from bench.measure import Figure, Part, failed

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("mail_search", "code_research", "filings", "wordle")
ABSTAINING = {"mail_search", "filings"}
COUNTED = {"wordle": "guesses"}
"""Recipe -> the sub-score that counts what its users count. For other recipes it is all calls."""
HALVED = {"code_research"}
"""Recipes in which the number of calls should fall."""
MINUTES = 90
HONEST = 0.8
WELL_BELOW = 0.1
"""A shortcut must stay at least so far below the trained policy."""
NUM_SCRIPTED = 128
SHORTCUTS = {"closed_book", "most_frequent", "first_hit", "longest_document", "random", "unknown"}
"""Ways that avoid the work. A recipe may have others, which are shown beside them."""


def learn(name: str) -> Figure:
    """reward on unseen entities before, after the prompt, after RFT; calls, minutes, drift."""
    from rft import reports, stats

    ladder_run = ladder.run_ladder(name)
    report = reports.read(reports.ChallengerReport, ladder_run.file("data/challenger/report.json"))
    before, prompted, after = (arm.sampled for arm in report.arms)
    parts = [_gain("RFT's own gain, beside the new prompt alone", after, prompted)]
    parts.append(Part("its interval's low end", parts[0].low, "reward", at_least=0.0001, n=parts[0].n))
    parts.append(_gain("the prompt's gain", prompted, before))
    for label, arm in (("before", before), ("after the prompt", prompted), ("after RFT", after)):
        mean = stats.mean_interval([row.rewards for row in arm.rows])
        parts.append(Part(f"reward {label}", mean.value, "reward", low=mean.low, high=mean.high, n=mean.n))
    for label, arm in zip(("before", "after the prompt", "after RFT"), report.arms, strict=True):
        mean = stats.mean_interval([row.scores for row in arm.greedy.rows])
        parts.append(Part(f"greedy score {label}", mean.value, "score", low=mean.low, high=mean.high, n=mean.n))
    parts.append(Part("test examples", len(after.rows), "examples", at_least=128))
    parts.append(Part("rollouts per example", after.k, "rollouts", at_least=2))
    parts += _calls(name, ladder_run, before, after)
    if name in ABSTAINING:
        for label, arm in (("before", before), ("after RFT", after)):
            parts += _abstention(label, arm)
    spent = {stage: seconds / 60 for stage, seconds in ladder_run.seconds.items()}
    parts.append(Part("minutes of all stages", sum(spent.values()), "min", at_most=MINUTES))
    parts += [Part(f"minutes: {stage}", minutes, "min") for stage, minutes in spent.items()]
    found = int(ladder_run.drift["verdict"] != "continue")
    parts.append(Part("drift between two windows is found", found, at_least=1))
    return Figure(tuple(parts))


def exploits(name: str) -> Figure:
    """exploits accepted, targets, and what a scripted honest agent scores (>= 0.8)."""
    from rft import recipe
    from rft.grading.preflight import preflight

    params = _params(name)
    ours = recipe.load(params.recipe)
    played = preflight(params, ours)
    accepted = [result.name for result in played.exploits if result.accepted]
    tried, kinds = len(played.exploits), {exploit.kind for exploit in ours.exploits}
    honest = _scripted(name, "honest")
    return Figure(
        (
            Part("exploits accepted", len(accepted), "exploits", at_most=0, n=tried, reason=", ".join(accepted)),
            Part("exploits of the recipe's own", len(ours.exploits), "exploits", at_least=12),
            Part("their kinds", len(kinds), "kinds", at_least=8),
            Part(
                "lowest score of a target",
                played.target_score,
                "score",
                at_least=played.pass_threshold,
                n=played.num_targets,
            ),
            replace(honest, at_least=HONEST),
        )
    )


def shortcuts(name: str) -> Figure:
    """what lazy scripted agents score, beside the trained policy's recorded reward.

    Their scores are before any budget, and the policy's is after it. So the comparison is hard on
    the policy.
    """
    trained = _trained(name)
    assert trained.low is not None
    parts = [trained]
    for way in _ways(name):
        bound = trained.low - WELL_BELOW if way in SHORTCUTS else None
        parts.append(replace(_scripted(name, way), at_most=bound))
    return Figure(tuple(parts))


def _trained(name: str) -> Part:
    """Read what `recipes_learn` recorded of the trained policy. If there is nothing, measure it."""
    kept = figure.RESULTS / f"recipes_learn_{name}.json"
    if not kept.exists():
        figure.record(learn(name).line(kept.stem), [])
    (found,) = (part for part in json.loads(kept.read_text())["parts"] if part["name"] == "reward after RFT")
    return Part("the trained policy", found["value"], found["unit"], low=found["low"], high=found["high"], n=found["n"])


# -- one recipe ------------------------------------------------------------------------------------
def _params(name: str) -> Any:
    from rft import config

    home = ROOT / "recipes" / name
    params = config.load(home / "params.yaml")
    here = params.recipe.model_copy(update={"path": str(home / params.recipe.path)})
    return params.model_copy(update={"recipe": here})


def _baseline(name: str) -> Any:
    from rft import recipe

    recipe.load(_params(name).recipe)
    return importlib.import_module(f"recipe_{name}.baseline")


def _ways(name: str) -> list[str]:
    return list(_baseline(name).WAYS)


def _scripted(name: str, way: str) -> Part:
    """Return the mean score of a scripted agent on test examples."""
    from rft import recipe, stats

    params, baseline = _params(name), _baseline(name)
    ours = recipe.load(params.recipe)
    examples = ours.examples("test", NUM_SCRIPTED, params.examples.seed)
    mean = stats.mean_interval([[baseline.score(way, ours.options, example)] for example in examples])
    return Part(f"scripted: {way}", mean.value, "score", low=mean.low, high=mean.high, n=mean.n)


def _gain(label: str, after: Any, before: Any) -> Part:
    from rft import stats

    gain = stats.paired_gain(_rewards(after), _rewards(before))
    return Part(label, gain.value, "reward", low=gain.low, high=gain.high, n=gain.n)


def _rewards(arm: Any) -> dict[str, list[float | None]]:
    return {row.example_id: row.rewards for row in arm.rows}


def _calls(name: str, ladder_run: ladder.Ladder, before: Any, after: Any) -> list[Part]:
    """Return P95 of the calls of a rollout, before and after."""
    from rft import stats

    what = COUNTED.get(name, "calls")
    if name in COUNTED:
        counts = [_sub_scores(ladder_run, what, arm) for arm in ("champion", "challenger")]
    else:
        each_arm = (before.rows, after.rows)
        counts = [[n for row in rows for n in row.counts("tool_calls") if n is not None] for rows in each_arm]
    at_first, at_last = (stats.percentile(each, 0.95) for each in counts)
    num, bound = len(counts[1]), 0.5 if name in HALVED else None
    return [
        Part(f"P95 {what} before", at_first, what, n=len(counts[0])),
        Part(f"P95 {what} after RFT", at_last, what, n=num),
        Part(f"P95 {what}, after over before", at_last / at_first, "", at_most=bound, n=num),
        Part(f"mean {what} before", statistics.fmean(counts[0]), what, n=len(counts[0])),
        Part(f"mean {what} after RFT", statistics.fmean(counts[1]), what, n=num),
    ]


def _sub_scores(ladder_run: ladder.Ladder, name: str, arm: str) -> list[float]:
    from rft.rollouts import log

    rows = log.read(ladder_run.file("data/challenger/rollouts.parquet"))
    graded = [row for row in rows if row.arm == arm and row.temperature and row.score is not None]
    return [json.loads(row.components)[name] for row in graded]


def _abstention(label: str, arm: Any) -> list[Part]:
    """Return the share of rollouts that abstained, on examples without an answer and with one."""
    from rft import stats

    without = [row for row in arm.rows if row.slice == "unanswerable"]
    rows = [row for row in arm.rows if row.slice != "unanswerable"]
    rightly = stats.mean_interval([row.solved for row in without])
    wrongly = stats.mean_interval([row.abstained for row in rows])
    return [
        Part(f"abstained {label}: no answer", rightly.value, "share", low=rightly.low, high=rightly.high, n=rightly.n),
        Part(f"abstained {label}: answer", wrongly.value, "share", low=wrongly.low, high=wrongly.high, n=wrongly.n),
    ]


# -- all recipes -----------------------------------------------------------------------------------
Measure = Callable[[str], Figure]


def _or_failed(name: str, measure: Measure) -> Figure:
    try:
        return measure(name)
    except ladder.Broken as broken:
        return failed(name, str(broken))


def _one(name: str, measure: Measure) -> Callable[[list[str]], Figure]:
    def of_one(args: list[str]) -> Figure:
        return _or_failed(name, measure)

    of_one.__doc__ = f"recipes/{name}: {measure.__doc__}"
    return of_one


def _all(kind: str, measure: Measure) -> Callable[[list[str]], Figure]:
    def of_all(args: list[str]) -> Figure:
        parts: list[Part] = []
        for name in RECIPES:
            found = _or_failed(name, measure)
            if found.parts[0].value is not None:
                figure.record(found.line(f"recipes_{kind}_{name}"), [])
            parts += [replace(part, name=f"{name}: {part.name}") for part in found.parts]
        return Figure(tuple(parts))

    of_all.__doc__ = f"All recipes: {measure.__doc__}"
    return of_all


MEASURES: dict[str, Measure] = {"learn": learn, "exploits": exploits, "shortcuts": shortcuts}
FIGURES = {f"recipes_{kind}": _all(kind, measure) for kind, measure in MEASURES.items()} | {
    f"recipes_{kind}_{name}": _one(name, measure) for kind, measure in MEASURES.items() for name in RECIPES
}
