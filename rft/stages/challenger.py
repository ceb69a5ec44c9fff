"""Stage `challenger`: plays three arms on the frozen test examples, which no other stage opens.

    champion              what is served now, with its prompt
    champion_new_prompt   the same weights with the prompt that the search found
    challenger            the trained weights with that prompt. After a training that collapsed
                          (rft/trainer/collapse.py) the stage refuses to open the test examples

The middle arm says what the prompt alone is worth, so that the gate can prefer the cheaper
candidate. All arms share examples, numbers of answers and random streams, so that differences are
paired.

Each arm answers as it is served: the champion as its promotion says, the candidates by
`policy.serve`. Where an answer is made from several rollouts (rft/rollouts/serving.py), all are
graded, and the log marks those that were not served. So the report has the means of single rollouts
beside those of answers. Greedy decoding is measured once, as a single rollout.

Then each arm plays `challenger.shown` validation examples once more, by single rollouts, for people
to read: the dialogues of the test set stay closed. They have their own files, which the gate does
not read, and their own random streams, so they change nothing that is measured.

A grader that declares `reports_hacks` must prove it first: the recipe's exploits are played against
it, with its tools (side effects included, as in rollouts). The report says which exploits it
flagged, because the gate trusts a hack rate only if the grader was seen to flag a hack. Under
`gate.require_hack_source` a grader that flags none of them ends the stage before its rollouts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rft import config, progress, recipe, reports, stage_files
from rft.errors import UserError
from rft.grading import margins, preflight
from rft.models import weights
from rft.rollouts import evaluate, serving
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.rollouts.prompting import champion_prompt, num_turns
from rft.rollouts.runner import Plan, RolloutRunner, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.rows import sha256
from rft.sampling import policies
from rft.sampling.policies import Sampling
from rft.types import Example


def run(params: config.Params) -> None:
    progress.once("challenger", params, partial(_compare, params))


def _compare(params: config.Params, work: Path, stage_folder: Path) -> None:
    section = params.challenger
    device = weights.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    source = _hack_source(params)
    trained = stage_files.read(reports.TrainReport)
    if trained.collapsed:
        raise UserError(f"{stage_files.path(reports.TrainReport)}: {trained.reason}.")
    rows = stage_files.load_examples("test")
    shown_examples = stage_files.load_examples("validation")[: section.shown] if section.shown else []
    winner = stage_files.read(reports.PromptSettings)
    num_turns(winner, params.rollout, str(stage_files.path(reports.PromptSettings)))
    plans: list[tuple[str, Literal["policy", "champion"], reports.PromptSettings, config.Serve]] = [
        ("champion", "champion", champion_prompt(ours), stage_files.champion().serve),
        ("champion_new_prompt", "champion", winner, params.policy.serve),
        ("challenger", params.train.from_, winner, params.policy.serve),
    ]
    total = sum(len(rows) * (section.k * serve.num_rollouts + 1) + len(shown_examples) for *_, serve in plans)
    report = progress.Reporter("challenger", total)
    arms: list[reports.Arm] = []
    shown_rows: dict[str, list[reports.Row]] = {}
    done = 0
    not_served: dict[str, str] = {}
    stores = RolloutStore(work / "rollouts"), RolloutStore(work / "shown")
    with rollout_runner(params, ours, work) as runner, stores[0] as store, stores[1] as apart:
        for name, which, prompt, serve in plans:
            learned = None
            if name == "challenger" and trained.trained and trained.path:
                learned = (trained.weights, Path(trained.path))
            sampling = policies.load_policy(runner, which, device, learned, name)
            if not arms:
                for _, _, each, _ in plans:
                    runner.check_openings(sampling.policy, [*rows, *shown_examples], each)
            arm, measured, others = _arm(runner, sampling, rows, section, name, prompt, serve, store, report, done)
            arms.append(arm)
            done += measured
            not_served |= others
            shown_rows[name] = _play_shown(runner, sampling, shown_examples, section, name, prompt, apart, report, done)
            done += len(shown_examples)
        runner.times.write(stage_folder / "timing.json", runner.traces)
        log = (replace(row, left_out=not_served.get(row.rollout_id, row.left_out)) for row in store)
        rollout_log.write(log, stage_folder / "rollouts.parquet")
        rollout_log.write(apart, stage_folder / stage_files.SHOWN_ROLLOUTS.name)
    result = reports.ChallengerReport(test_sha256=sha256(rows), arms=arms, hack_source=source)
    reports.write(result, stage_folder / "report.json")
    reports.write(
        reports.Shown(examples=len(shown_examples), arms=shown_rows),
        stage_folder / stage_files.path(reports.Shown).name,
    )


def _hack_source(params: config.Params) -> reports.HackSource:
    ours = recipe.load(params.recipe, params.examples.keys)
    if not ours.grader.reports_hacks:
        return reports.HackSource()
    source = preflight.preflight(params, ours).hack_source
    margins.check_source(params, source, ours.folder)
    progress.print_line("challenger", f"hacks: {source.description}")
    return source


def _arm(
    runner: RolloutRunner,
    sampling: Sampling,
    rows: list[Example],
    section: config.Challenger,
    name: Any,
    prompt: reports.PromptSettings,
    serve: config.Serve,
    store: RolloutStore,
    report: progress.Reporter,
    done: int,
) -> tuple[reports.Arm, int, dict[str, str]]:
    """Measure an arm; also return how many rollouts it took, and which of them were not served."""
    scale, policy, k = runner.recipe.grader.scale, sampling.policy, section.k * serve.num_rollouts
    plan = Plan("challenger", name, prompt, section.temperature, k, section.seed, "test")
    sampled, seconds = runner.played(policy, rows, plan, store, report, done)
    answers = serving.answers(sampled, seconds, serve, runner.recipe)
    runner.times.add(plan.name, answers.rows, answers.seconds)
    greedy = runner.measure(policy, rows, replace(plan, temperature=0.0, k=1), store, report, done + len(sampled))

    def evaluated(of: list[LogRow], k: int) -> reports.Evaluation:
        return evaluate.evaluation(name, of, rows, section.temperature, k, section.seed, scale)

    single_rollout_metrics = {} if serve.is_single else evaluated(sampled, k).metrics
    arm = reports.Arm(
        name=name,
        prompt_sha256=prompt.digest(),
        weights_sha256=sampling.weights_sha256,
        sampled=evaluated(answers.rows, section.k),
        greedy=evaluate.evaluation(f"{name} greedy", greedy, rows, 0.0, 1, section.seed, scale),
        serve=serve,
        unserved={
            name: single_rollout_metrics[name]
            for name in ("reward/mean", "score/mean", "solved/share")
            if name in single_rollout_metrics
        },
    )
    return arm, len(sampled) + len(greedy), answers.not_served


def _play_shown(
    runner: RolloutRunner,
    sampling: Sampling,
    rows: list[Example],
    section: config.Challenger,
    name: str,
    prompt: reports.PromptSettings,
    store: RolloutStore,
    report: progress.Reporter,
    done: int,
) -> list[reports.Row]:
    """Let an arm play the rollouts that people will read."""
    if not rows:
        return []
    plan = Plan("challenger", name, prompt, section.temperature, 1, section.seed, shown=True)
    played = runner.measure(sampling.policy, rows, plan, store, report, done)
    return evaluate.rows_of(played, rows)
