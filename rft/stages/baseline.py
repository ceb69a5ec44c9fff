"""Stage `baseline`: measures how good the agent is today, and whether RFT would help.

The agent that is served now plays k rollouts of each validation example. RFT learns from examples
that are sometimes solved and sometimes not. So beside the mean, the report has the best-of-k curve
(the room for improvement) and the shares always failed, always solved and mixed. The readiness
verdict follows a common rule. Above 95 % it is "not worth it". It is "not yet" if even the best of
k is near zero, or only one of many examples ever scored above the lowest score. Then a warm start
comes first, and the reason names the settings for it. Between these limits it is "ready". Both
limits are shares of the grader's range. If the numbers point to a misconfiguration
(rft/rollouts/suspicion.py), the verdict is suspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from rft import config, progress, recipe, reports, stage_files
from rft.formatting import counted
from rft.models import weights
from rft.rollouts import evaluate, suspicion
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.rollouts.loop import NO_ROOM
from rft.rollouts.prompting import champion_prompt
from rft.rollouts.runner import Plan, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.rollouts.transcript import dialogue
from rft.rows import check_graded
from rft.sampling import policies
from rft.scale import of_range, share

FEW, ENOUGH = 8, 24
"""With fewer than FEW examples a verdict says little, because one lucky rollout is an eighth of it
or more. The advice is to measure ENOUGH."""
Readiness = Literal["not worth it", "not yet", "ready", "suspect"]


def run(params: config.Params) -> None:
    progress.once("baseline", params, partial(_measure, params))


def _measure(params: config.Params, work: Path, stage_folder: Path) -> None:
    section = params.baseline
    device = weights.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    rows = stage_files.load_examples("validation")[: section.examples]
    check_graded(rows, ours.grader, "the validation examples")
    prompt = champion_prompt(ours)
    told = progress.Reporter("baseline", len(rows) * (section.k + 1))
    with rollout_runner(params, ours, work) as runner, RolloutStore(work / "rollouts") as store:
        policy = policies.load_policy(runner, "champion", device).policy
        plan = Plan("baseline", "champion", prompt, section.temperature, section.k, section.seed)
        sampled = runner.measure(policy, rows, plan, store, told)
        greedy = runner.measure(policy, rows, replace(plan, temperature=0.0, k=1), store, told, done=len(sampled))
        runner.times.write(stage_folder / "timing.json", runner.traces)
        rollout_log.write(store, stage_folder / "rollouts.parquet")
    scale = ours.grader.scale
    at_work = evaluate.evaluation("champion", sampled, rows, section.temperature, section.k, section.seed, scale)
    at_best = evaluate.evaluation("champion greedy", greedy, rows, 0.0, 1, section.seed, scale)
    readiness, reason = _readiness(at_work, section)
    if readiness == "not yet":
        reason = f"{reason}. {_remedy(params.policy, ours)}"
    if suspect := suspicion.find(sampled, scale, readiness == "ready"):
        readiness, reason = "suspect", suspect
    reason += _too_few(len(rows)) + _too_long(sampled)
    report = reports.BaselineReport(readiness=readiness, reason=reason, sampled=at_work, greedy=at_best)
    reports.write(report, stage_folder / "report.json")
    progress.print_line("baseline", f"{readiness}: {reason}")


def _too_long(sampled: Sequence[LogRow]) -> str:
    """Say how often a tool's reply did not fit into the context; empty if it always did."""
    told = [dialogue(row).turns for row in sampled if row.num_tool_errors]
    count = sum(any(result["content"] == NO_ROOM for turn in turns for result in turn.results) for turns in told)
    if not count:
        return ""
    found = f"In {count} of {len(sampled)} rollouts a tool's reply was longer than what was left of the context"
    return f". {found}, and the policy was told so: raise rollout.max_tokens, or let the tool return less"


def _readiness(result: reports.Evaluation, section: config.Baseline) -> tuple[Readiness, str]:
    mean, best = result.metrics["score/mean"].value, result.max_at_k[-1][1]
    of_the_range = of_range(result.range)
    of_limit = " of the range" if of_the_range else ""
    if share(mean, result.range) > section.not_worth_above:
        found = f"the mean score is {mean:.3f}{of_the_range} already, above {section.not_worth_above}{of_limit}"
        return "not worth it", f"{found}: little is left to learn"
    if share(best, result.range) < section.not_yet_below:
        found = f"even the best of {result.k} rollouts scores {best:.3f}{of_the_range}"
        return "not yet", f"{found}, below {section.not_yet_below}{of_limit}: warm-start first"
    if _num_ever_scored(result) == 1 and len(result.rows) > FEW:
        found = f"of {len(result.rows)} examples a single one ever scored above the lowest, which may be luck"
        return "not yet", f"{found}: warm-start first"
    mixed = f"{result.shares['mixed']:.0%} of the examples are sometimes solved and sometimes not"
    return "ready", f"mean score {mean:.3f}{of_the_range}, best of {result.k} {best:.3f}; {mixed}"


def _num_ever_scored(result: reports.Evaluation) -> int:
    """Count the examples with a rollout that scored above the lowest score."""
    low = result.range[0]
    return sum(any(score is not None and score > low for score in row.scores) for row in result.rows)


def _too_few(num: int) -> str:
    note = f". {counted(num, 'example')} tell little: measure {ENOUGH} or more"
    return note if num < FEW else ""


def _remedy(section: config.Policy, ours: recipe.Recipe) -> str:
    """Name what makes this agent ready for training, given its recipe and settings."""
    confirmed = "Where people confirmed production's answers, train.algorithm: supervised imitates these "
    confirmed += "(train.source: traffic)"
    if not ours.has_demonstrations:
        write = f"Write {ours.name}/demonstrations.py, dialogues of an agent at work, and set policy.warm_start.weights"
        return f"{write}. {confirmed}"
    if section.server is not None:
        return (
            "policy.server samples from the model that it was started with: imitate demonstrations by an adapter "
            f"(train.algorithm: supervised, train.source: demonstrations). {confirmed}"
        )
    if section.is_warm_started:
        more = "Raise policy.warm_start.steps, or write demonstrations that are closer to what is asked"
    else:
        more = "Set policy.warm_start.weights: lora, with steps and lr: stage policy then imitates the demonstrations"
    return f"{more}; or let this run go on, with train.when_not_ready: warm_start. {confirmed}"
