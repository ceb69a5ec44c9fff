"""Stage `train`: reinforcement fine-tuning with the agent's real tools and real grader.

    champion (or base policy), baseline's readiness, prompt, train, validation
        ->  an adapter or weights, metrics, rollouts, report

The loop is rft/trainer/loop.py; this module prepares its inputs and publishes its results. When the
baseline says anything but `ready`, the stage leaves an empty pointer with the reason. Unfinished
work is under `.rft/`, and the next start continues it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import torch

from rft import config, files, progress, recipe, reports, shelves
from rft.grading import preflight
from rft.models import unmerged, weights
from rft.rollouts import determinism
from rft.rollouts import log as rollout_log
from rft.rollouts.prompting import num_turns
from rft.rollouts.runner import workbench
from rft.rollouts.store import RolloutStore
from rft.sampling.policies import base_model
from rft.trainer import distributed
from rft.trainer.learner import Learner
from rft.trainer.loop import Trainer


def run(params: config.Params) -> None:
    baseline = shelves.read(reports.BaselineReport)
    if baseline.readiness != "ready":
        _skip(f"the baseline says '{baseline.readiness}': {baseline.reason}")
        return
    if params.policy.server is not None and params.policy.server.kind == "chat":
        _skip("policy.server is a chat endpoint, which gives no token ids: nothing can be trained on what it writes")
        return
    device = weights.prepare_process(params.policy)
    determinism.check(params)
    with distributed.launch(params.train) as team:
        progress.once("train", params, partial(_lead, params, device, team))


def _lead(params: config.Params, device: torch.device, team: distributed.Processes, work: Path, shelf: Path) -> None:
    """Sample, learn, keep and publish. Other processes only learn (rft/trainer/distributed.py)."""
    section = params.train
    ours = recipe.load(params.recipe)
    preflight.check(params)
    prompt = shelves.read(reports.PromptSettings)
    num_turns(prompt, params.rollout, str(shelves.path(reports.PromptSettings)))
    train, validation = shelves.load_examples("train"), shelves.load_examples("validation")
    with workbench(params, ours, work) as bench, RolloutStore(work / "rollouts") as store:
        bench.check_rows(train)
        network, chat = base_model(params, section.from_, device, bench.schemas)
        learner = Learner(network, section, params.rollout.max_turn_tokens, device, team)
        held_out = validation[-section.validation_examples :] if section.validation_examples else []
        trainer = Trainer(learner, chat, section, prompt, bench, train, held_out, device, work, store)
        trainer.fit()
        bench.times.write(shelf / "timing.json", bench.traces, steps=trainer.times.rows)
        _publish(trainer, section, shelf)


def _publish(trainer: Trainer, section: config.Train, shelf: Path) -> None:
    learner, kind = trainer.learner, section.weights
    on_champion = section.from_ == "champion" and shelves.champion().weights != "none"
    if kind == "lora" and on_champion and not unmerged.is_stacked(learner.model):
        kind = "full"  # the adapter belongs to the champion's own weights: merge it, for the base model alone
    weights.save(learner.model if kind == section.weights else weights.merged_copy(learner.model), shelf / "weights")
    (shelf / "metrics.jsonl").write_text(trainer.metrics.text())
    rollout_log.write(trainer.store, shelf / "rollouts.parquet")
    change = learner.weight_change()
    reason = "no group had anything to learn from"
    if change > 0:
        stopped = f"; stopped early: {trainer.stopped}" if trainer.stopped else ""
        reason = f"{trainer.step} steps of {section.algorithm} on {section.weights} weights{stopped}"
    report = reports.TrainReport(
        trained=change > 0,
        reason=reason,
        weights=kind if change > 0 else "none",
        path=str(shelves.WEIGHTS) if change > 0 else None,
        sha256=files.tree_sha256(shelf / "weights") if change > 0 else None,
        algorithm=section.algorithm,
        steps=trainer.step,
        group_size=section.group,
        kept_step=trainer.best["step"] if section.keep == "best" and trainer.best else trainer.step,
        rollouts=len(trainer.store),
        left_out=dict(sorted(Counter(row.left_out for row in trainer.store if row.left_out).items())),
        alarms=sum(row["alarm/count"] for row in trainer.metrics.rows),
        curve=[(row["step"], row["reward/mean"]) for row in trainer.metrics.rows if "reward/mean" in row],
        weight_change=change,
    )
    reports.write(report, shelf / "report.json")


def _skip(reason: str) -> None:
    """Leave an empty pointer with the reason, and empty files where DVC expects outs."""
    shelves.WEIGHTS.mkdir(parents=True, exist_ok=True)
    (shelves.WEIGHTS / "none.txt").write_text(f"Nothing was trained: {reason}\n")
    shelves.write(reports.TrainReport(trained=False, reason=reason, weights="none"))
    shelves.METRICS.write_text("")
    rollout_log.write([], shelves.rollouts("train"))
    reports.write_json({"rollout_s": {}, "phases": {}}, shelves.timing("train"))
    progress.say("train", reason)
