"""Stage `train`: trains new weights, by reinforcement fine-tuning or by imitation.

Reinforcement fine-tuning uses the agent's real tools and its real grader.

    champion (or base policy), baseline's readiness, prompt, train, validation
        ->  an adapter or weights, metrics, rollouts, report

The loop is rft/trainer/loop.py; this module prepares its inputs and publishes its results.
Unfinished work is under `.rft/`, and the next start continues it.

When the baseline says anything but `ready`, the stage leaves an empty pointer with the reason. Two
kinds of training run even after a "not yet", because they need no rollout that earns something. One
imitates existing dialogues (`train.algorithm: supervised`); the other is a warm start before the
first rollout (`train.when_not_ready`). The dialogues come from stage `examples`, which has left out
those that share something with validation or test. Here they get the run's prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rft import config, files, progress, recipe, reports, stage_files
from rft.chat.renderer import Chat
from rft.errors import ConfigError, UserError
from rft.grading import preflight
from rft.models import unmerged, weights
from rft.models.shape import num_positions
from rft.rollouts import determinism
from rft.rollouts import log as rollout_log
from rft.rollouts.prompting import num_turns
from rft.rollouts.runner import rollout_runner
from rft.rollouts.store import RolloutStore
from rft.sampling.policies import base_model
from rft.trainer import collapse, distributed, rates, supervised
from rft.trainer.learner import Learner
from rft.trainer.loop import Trainer
from rft.trainer.sft_samples import SftSample, check_template, sft_samples
from rft.types import Message


def run(params: config.Params) -> None:
    baseline, section = stage_files.read(reports.BaselineReport), params.train
    imitates = section.algorithm == "supervised" and section.source != "rollouts"
    warm_starts = baseline.readiness == "not yet" and section.when_not_ready == "warm_start"
    if baseline.readiness != "ready" and not warm_starts and not (imitates and baseline.readiness == "not yet"):
        _skip(f"the baseline says '{baseline.readiness}': {baseline.reason}")
        return
    if params.policy.server is not None and params.policy.server.kind == "chat":
        _skip("policy.server is a chat endpoint, which gives no token ids: nothing can be trained on what it writes")
        return
    device = weights.prepare_process(params.policy)
    determinism.check(params)
    if warm_starts and params.policy.server is not None:
        raise ConfigError(
            "params.yaml: train.when_not_ready = warm_start cannot be honored: policy.server samples from the model "
            "that it was started with. Sample in this process: policy.server: null."
        )
    with distributed.launch(params.train, device.type) as team:
        progress.once("train", params, partial(_lead, params, device, team, warm_starts))


def _lead(
    params: config.Params,
    device: torch.device,
    team: distributed.Processes,
    warm_starts: bool,
    work: Path,
    stage_folder: Path,
) -> None:
    """Sample, learn, keep and publish. Other processes only learn (rft/trainer/distributed.py)."""
    section = params.train
    ours = recipe.load(params.recipe)
    preflight.check(params)
    prompt = stage_files.read(reports.PromptSettings)
    num_turns(prompt, params.rollout, str(stage_files.path(reports.PromptSettings)))
    train, validation = stage_files.load_examples("train"), stage_files.load_examples("validation")
    with rollout_runner(params, ours, work) as runner, RolloutStore(work / "rollouts") as store:
        runner.check_rows(train)
        network, chat = base_model(params, section.from_, device, runner.schemas)
        imitated = _imitated(params, prompt, chat, network, warm_starts)
        if warm_starts and unmerged.holds(network):
            raise ConfigError(
                "params.yaml: train.when_not_ready = warm_start: the champion's adapter runs beside bfloat16 weights, "
                "and a warm start would merge it. Set policy.dtype: float32, or train.from: policy."
            )
        if warm_starts:
            network = _warm_started(network, imitated.sft_samples, section, device, team, work)
        section = rates.resolved(section, rates.width_of(network.config))
        # imitation is at temperature 1, even where sampling is at another
        learned = section.model_copy(update={"temperature": 1.0}) if section.algorithm == "supervised" else section
        learner = Learner(network, learned, params.rollout.max_turn_tokens, device, team)
        held_out = validation[-section.validation_examples :] if section.validation_examples else []
        start = _start(section, warm_starts)
        trainer = Trainer(
            learner, chat, section, prompt, runner, train, held_out, device, work, store, imitated.sft_samples, start
        )
        trainer.fit()
        runner.times.write(stage_folder / "timing.json", runner.traces, steps=trainer.times.rows)
        _publish(trainer, section, stage_folder, _told(section, imitated, warm_starts))


@dataclass(frozen=True)
class _Imitated:
    sft_samples: list[SftSample]
    left_out: dict[str, int]


def _imitated(
    params: config.Params, prompt: reports.PromptSettings, chat: Chat, network: Any, warm_starts: bool
) -> _Imitated:
    """Encode the dialogues that stage `examples` chose, in the form in which this run's agent would
    hold them. Raises UserError when none is left."""
    section, rollout = params.train, params.rollout
    if section.source not in ("demonstrations", "traffic") and not warm_starts:
        return _Imitated([], {})
    found, left_out = stage_files.load_imitated()
    dialogues = [_under(messages, prompt) for messages in found]
    check_template(chat, dialogues, f"policy.model = {params.policy.model}")
    limits = (num_positions(network.config), rollout.max_tokens, section.warm_start.longest if warm_starts else None)
    longest = min((limit for limit in limits if limit is not None), default=None)
    given, too_long = sft_samples(chat, dialogues, longest)
    if too_long:
        left_out = left_out | {"longer than the context": too_long}
    if not given:
        reasons = "; ".join(f"{count} left out: {why}" for why, count in left_out.items()) or "there are no dialogues"
        raise UserError(
            f"params.yaml: train.source = {section.source or 'demonstrations'}: there is nothing to imitate "
            f"({reasons}). Have more answers confirmed, raise rollout.max_tokens, or choose another source."
        )
    return _Imitated(given, left_out)


def _under(messages: list[Message], prompt: reports.PromptSettings) -> list[Message]:
    """Give a dialogue the run's prompt, with which the agent will act."""
    if not prompt.system:
        return messages
    rest = [message for message in messages if message["role"] not in ("system", "developer")]
    return [{"role": "system", "content": prompt.system}, *rest]


def _warm_started(
    network: Any, given: list[SftSample], section: config.Train, device: torch.device, team: Any, work: Path
) -> Any:
    """Imitate demonstrations before the first rollout. The result is a plain model, from which
    training starts. It is also the reference policy of a KL term."""
    settings = supervised.settings(section.warm_start, section.warm_start.weights or "full", section.seed)
    settings = settings.model_copy(update={"processes": section.processes})
    learner = Learner(network, settings, 1, device, team, keys="train.warm_start")
    training = supervised.WarmStart(learner, given, "train", work / "warm_start", work.name)
    training.fit()
    return weights.merged(learner.model).eval()


def _start(section: config.Train, warm_starts: bool) -> collapse.Start | None:
    """Return what the baseline measured of the policy from which training starts. None where it
    measured another policy."""
    baseline, champion = stage_files.read(reports.BaselineReport), stage_files.champion()
    is_same = not warm_starts and (section.from_ == "champion" or champion.weights == "none")
    return collapse.measured(baseline) if is_same and baseline.sampled.temperature == section.temperature else None


def _told(section: config.Train, imitated: _Imitated, warm_starts: bool) -> dict[str, Any]:
    """Say in the report how many dialogues were imitated, and how many were left out."""
    if not section.source and not warm_starts:
        return {}
    return {
        "source": section.source or "demonstrations",
        "imitated": len(imitated.sft_samples),
        "not_imitated": dict(sorted(imitated.left_out.items())),
        "warm_start_steps": section.warm_start.steps if warm_starts else 0,
    }


def _publish(trainer: Trainer, section: config.Train, stage_folder: Path, told: dict[str, Any]) -> None:
    learner, kind = trainer.learner, section.weights
    on_champion = section.from_ == "champion" and stage_files.champion().weights != "none"
    is_others = on_champion and not unmerged.is_stacked(learner.model)
    if kind == "lora" and (is_others or told.get("warm_start_steps")):
        kind = "full"  # the adapter belongs to other weights than the base model's: merge it
    change = learner.weight_change()
    before = f"after {told['warm_start_steps']} steps of warm start, " if told.get("warm_start_steps") else ""
    reason = _reason(trainer, section, before, change)
    has_learned = (change > 0 or bool(before)) and not trainer.collapsed
    if trainer.collapsed:
        _leave_none(stage_folder / "weights", reason)
    else:
        whole = learner.model if kind == section.weights else weights.merged_copy(learner.model)
        weights.save(whole, stage_folder / "weights")
    (stage_folder / "metrics.jsonl").write_text(trainer.metrics.text())
    rollout_log.write(trainer.store, stage_folder / "rollouts.parquet")
    falls = trainer.guard.falls
    report = reports.TrainReport(
        trained=has_learned,
        reason=reason,
        weights=kind if has_learned else "none",
        path=str(stage_files.WEIGHTS) if has_learned else None,
        sha256=files.tree_sha256(stage_folder / "weights") if has_learned else None,
        algorithm=section.algorithm,
        steps=trainer.step,
        group_size=section.group,
        kept_step=trainer.best["step"] if section.keep == "best" and trainer.best else trainer.weights_of,
        rollouts=len(trainer.store),
        left_out=dict(sorted(Counter(row.left_out for row in trainer.store if row.left_out).items())),
        alarms=sum(row.get("alarm/count", 0) for row in trainer.metrics.rows),
        curve=[(row["step"], row["reward/mean"]) for row in trainer.metrics.rows if "reward/mean" in row],
        weight_change=change,
        lr=section.lr,
        falls=falls,
        collapsed=trainer.collapsed,
        **told,
    )
    reports.write(report, stage_folder / "report.json")
    if falls or trainer.collapsed:
        progress.print_line("train", reason)


def _reason(trainer: Trainer, section: config.Train, before: str, change: float) -> str:
    """Say what was trained, or why there are no weights. `before`: the text about what came before
    the first rollout; `change`: how far the weights moved."""
    falls = trainer.guard.falls
    if trainer.collapsed:
        return collapse.describe(section, trainer.step, trainer.collapsed, falls)
    if change == 0:
        return f"{before}no group had anything to learn from"
    how = f"{section.algorithm} ({section.source})" if section.source else section.algorithm
    again = "".join(f"; at step {one.step}, {one.reason}: went back to step {one.back_to}" for one in falls)
    stopped = f"; stopped early: {trainer.stopped}" if trainer.stopped else ""
    return f"{before}{trainer.step} steps of {how} on {section.weights} weights{again}{stopped}"


def _skip(reason: str) -> None:
    """Leave an empty pointer with the reason, and empty files where DVC expects outs."""
    _leave_none(stage_files.WEIGHTS, reason)
    stage_files.write(reports.TrainReport(trained=False, reason=reason, weights="none"))
    stage_files.METRICS.write_text("")
    rollout_log.write([], stage_files.rollouts("train"))
    reports.write_json({"rollout_s": {}, "phases": {}}, stage_files.timing("train"))
    progress.print_line("train", reason)


def _leave_none(folder: Path, reason: str) -> None:
    """Write, in the place of the weights, why there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "none.txt").write_text(f"Nothing was trained: {reason}\n")
