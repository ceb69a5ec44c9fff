"""Stage `challenger`: three arms on the same frozen test examples, which no other stage opens.

    champion              what is served now, with its prompt
    champion_new_prompt   the same weights with the prompt that the search found
    challenger            the trained weights with that prompt

The middle arm says what the prompt alone is worth, so that the gate can prefer the cheaper rung. All arms share examples, numbers of rollouts and
random streams, so that differences are paired.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from rft import config, evaluate, examples, model, progress, recipe, reports, rollout_log
from rft.rollout_log import LogRow
from rft.sampler import Engine
from rft.types import Example
from rft.workbench import Plan, Workbench, base_model, champion_prompt, workbench

SHELF = Path("data/challenger")
TRAIN = Path("data/train")


def run(params: config.Params) -> None:
    section = params.challenger
    device = model.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    rows = examples.load("test")
    inputs = [Path("data") / name for name in ("policy", "champion", "prompt", "train", "examples")]
    work = progress.folder("challenger", [params.recipe, params.tools, params.rollout, section], inputs)
    trained = reports.read(reports.TrainReport, TRAIN / "report.json")
    winner = reports.read(reports.PromptSettings, Path("data/prompt/prompt.json"))
    report = progress.Reporter("challenger", len(rows) * (section.k + 1) * 3)
    arms: list[reports.Arm] = []
    log: list[LogRow] = []
    with workbench(params, ours) as bench:
        plans: list[tuple[str, Literal["policy", "champion"], reports.PromptSettings]] = [
            ("champion", "champion", champion_prompt(ours)),
            ("champion_new_prompt", "champion", winner),
            ("challenger", params.train.from_, winner),
        ]
        for name, which, prompt in plans:
            network, chat = base_model(params, which, device)
            if name == "challenger" and trained.trained and trained.path:
                network = model.with_weights(network, trained.weights, Path(trained.path), device)
            arm, measured = _arm(bench, Engine(network, chat, device), rows, section, name, prompt, work, report, len(log))
            arms.append(arm)
            log += measured
        bench.times.write(SHELF / "timing.json")
    rollout_log.write(log, SHELF / "rollouts.parquet")
    reports.write(reports.ChallengerReport(test_sha256=examples.sha256(rows), arms=arms), SHELF / "report.json")
    shutil.rmtree(work)


def _arm(
    bench: Workbench,
    policy: Engine,
    rows: list[Example],
    section: config.Challenger,
    name: Any,
    prompt: reports.PromptSettings,
    work: Path,
    report: progress.Reporter,
    done: int,
) -> tuple[reports.Arm, list[LogRow]]:
    sampled = bench.measure(policy, rows, Plan("challenger", name, prompt, section.temperature, section.k, section.seed), work, report, done)
    greedy = bench.measure(policy, rows, Plan("challenger", name, prompt, 0.0, 1, section.seed), work, report, done + len(sampled))
    arm = reports.Arm(
        name=name,
        prompt_sha256=prompt.digest(),
        weights_sha256=model.weights_sha256(policy.model),
        sampled=evaluate.evaluation(name, sampled, rows, section.temperature, section.k, section.seed),
        greedy=evaluate.evaluation(f"{name} greedy", greedy, rows, 0.0, 1, section.seed),
    )
    return arm, [*sampled, *greedy]
