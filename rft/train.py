"""Stage `train`: reinforcement fine-tuning with the agent's real tools and real grader.

    each step:  P examples x G rollouts  ->  rewards  ->  advantages within each group  ->  one optimizer step  ->  new weights to the sampler

Strictly on-policy: every rollout is sampled by the weights that it then changes, and used once. Groups without variance and unscored rollouts are
not trained on; each is counted with its reason, and sampled = trained + left out, always. A step that changed no weight is an error.

All randomness is a function of (seed, step): the order of examples, each rollout's stream. A checkpoint is weights, optimizer and step; it
lies under `.rft/` until the stage ends, and a stage that was killed continues from it bit for bit.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rft import alarm, config, examples, exploits, model, policies, progress, recipe, reports, rollout_log, stats
from rft.advantage import advantages
from rft.errors import RftError
from rft.loss import TrainingSample, own_logprobs, policy_loss
from rft.recovery import Aside
from rft.rollout import Conditions, Request
from rft.rollout_log import LogRow
from rft.rollout_store import RolloutStore
from rft.types import Example, Trajectory
from rft.workbench import Plan, Workbench, base_model, champion, workbench

SHELF = Path("data/train")
MICROBATCH_TOKENS = 4096


def run(params: config.Params) -> None:
    baseline = reports.read(reports.BaselineReport, Path("data/baseline/report.json"))
    if baseline.readiness != "ready":
        _skip(f"the baseline says '{baseline.readiness}': {baseline.reason}")
        return
    if params.policy.server is not None and params.policy.server.kind == "chat":
        _skip("policy.server is a chat endpoint, which gives no token ids: nothing can be trained on what it says")
        return
    section = params.train
    device = model.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    exploits.check(params)
    inputs = [Path("data") / name for name in ("policy", "champion", "baseline", "prompt", "examples")]
    work = progress.folder("train", [params.recipe, params.tools, params.rollout, section], inputs)
    prompt = reports.read(reports.PromptSettings, Path("data/prompt/prompt.json"))
    with workbench(params, ours) as bench, RolloutStore(work / "rollouts") as store:
        network, chat = base_model(params, section.from_, device, bench.schemas)
        trainer = Trainer(network, chat, section, prompt, bench, device, work, store)
        trainer.fit(examples.load("train"), examples.load("validation")[-section.validation_examples :] if section.validation_examples else [])
        bench.times.write(SHELF / "timing.json", steps_s=trainer.step_seconds)
        _publish(trainer, section)
    shutil.rmtree(work)


class Trainer:
    """The learner, the sampler's copy of its weights, and the loop between them."""

    def __init__(
        self,
        network: Any,
        chat: Any,
        section: config.Train,
        prompt: reports.PromptSettings,
        bench: Workbench,
        device: torch.device,
        work: Path,
        store: RolloutStore,
    ):
        self.section, self.prompt, self.bench, self.device, self.work = section, prompt, bench, device, work
        self.learner = model.trainable(network, section)
        self.sampler = policies.following(bench, self.learner, chat, device, work)
        self.parameters = [parameter for parameter in self.learner.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=section.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.step_seconds: list[float] = []
        self.metrics: list[dict[str, Any]] = []
        self.store = store
        self.alarms: list[alarm.Alarm] = []
        self.step = 0  # finished optimizer steps

    def fit(self, train: Sequence[Example], held_out: Sequence[Example]) -> None:
        self.bench.check_rows(train)
        self._resume()
        report = progress.Reporter("train", self.section.steps)
        progress.say("train", f"metrics {self.work / 'metrics.jsonl'}")  # whoever drives the stage may follow them live
        while self.step < self.section.steps:
            began = time.monotonic()
            rows, aside, samples, seconds = self._sample(train)
            metrics = _describe(self.step + 1, rows, aside) | {"alarm/count": len(self.alarms)} | self._learn(samples)
            self.step += 1
            self.sampler.follow(self.step)
            if held_out and (self.step % self.section.validate_every == 0 or self.step == self.section.steps):
                metrics["validation/reward"] = self._validate(held_out)
            self._keep([*rows, *aside], seconds, metrics)
            self.step_seconds.append(round(time.monotonic() - began, 3))
            report(self.step, f"steps, reward {metrics['reward/mean']:.3f}, {metrics['tool_calls/mean']:.1f} calls a rollout")
            if self.step % self.section.checkpoint_every == 0 and self.step < self.section.steps:
                self._checkpoint()

    def weight_change(self) -> float:
        """L2 distance from where training started."""
        return math.sqrt(sum((now.detach() - then).square().sum().item() for now, then in zip(self.parameters, self.start, strict=True)))

    def _sample(self, train: Sequence[Example]) -> tuple[list[LogRow], list[LogRow], list[TrainingSample], list[float]]:
        """P groups of G rollouts, those that they stand in for, what can be learned from, and each rollout's seconds."""
        section = self.section
        requests = self._requests(train)
        limits = self.bench.params.rollout
        conditions = Conditions(self.prompt, section.temperature, (section.seed, 1, self.step), limits, "train", "train", self.step + 1)
        trajectories: list[Trajectory] = []
        aside: list[Aside] = []
        for start in range(0, len(requests), limits.batch):
            played = self.bench.run(self.sampler.policy, requests[start : start + limits.batch], conditions, "train")
            trajectories += played.trajectories
            aside += played.aside
        self.bench.times.rollout_s.setdefault("train", []).extend(one.wall_s for one in trajectories)
        seconds = [one.wall_s for one in (*trajectories, *(one.trajectory for one in aside))]
        self._listen([*trajectories, *(one.trajectory for one in aside if one.why.startswith("replaced"))])
        rows: list[LogRow] = []
        samples: list[TrainingSample] = []
        for start in range(0, len(requests), section.group_size):
            mine = trajectories[start : start + section.group_size]
            advantage_G = advantages([one.reward for one in mine], section.algorithm)
            for request, one, advantage in zip(requests[start : start + section.group_size], mine, advantage_G, strict=True):
                why = _left_out(one, float(advantage), mine)
                rows.append(self._row(one, request, why))
                if not why:
                    samples.append(TrainingSample(*rollout_log.flat(one), advantage=float(advantage)))
        return rows, [self._row(one.trajectory, one.request, one.why) for one in aside], samples, seconds

    def _requests(self, train: Sequence[Example]) -> list[Request]:
        """Group after group. An example that comes twice in a step, at the turn of an epoch, goes on with its count: never a stream twice."""
        section = self.section
        requests: list[Request] = []
        met: Counter[str] = Counter()
        for n in range(section.examples_per_step):
            example = _pick(train, self.step * section.examples_per_step + n, section.seed)
            first = met[example.id] * section.group_size
            met[example.id] += 1
            requests += [Request(example, first + sample) for sample in range(section.group_size)]
        return requests

    def _listen(self, trajectories: Sequence[Trajectory]) -> None:
        """Failures that depend on what the policy does are an exit that it can learn."""
        self.alarms = alarm.find(alarm.calls_of(trajectories))
        for one in self.alarms:
            progress.say("train", f"ALARM at step {self.step + 1}: {one.text}")

    def _row(self, one: Trajectory, request: Request, why: str) -> LogRow:
        row = rollout_log.row(one, request.example, request.sample, self.prompt, "train", "challenger", self.step + 1, "train")
        return replace(row, trained=not why, left_out=why)

    def _learn(self, samples: list[TrainingSample]) -> dict[str, float]:
        """One optimizer step. Nothing to learn from is a step skipped and said, not an error."""
        began = time.monotonic()
        section = self.section
        if not samples:
            return {"samples/trained": 0}
        self.learner.train()
        self.optimizer.zero_grad()
        total = section.examples_per_step * section.group_size
        loss_sum, entropy_sum, mismatch, tokens = 0.0, 0.0, 0.0, 0
        for micro in _microbatches(samples):
            scored = own_logprobs(self.learner, micro, section.temperature, self.device)
            loss = policy_loss(scored, micro, section.algorithm, total, self.bench.params.rollout.max_turn_tokens)
            loss.backward()
            sampled_N = torch.tensor([value for sample in micro for value in sample.logprobs], device=self.device)
            mismatch = max(mismatch, (scored.logprobs_N.detach() - sampled_N).abs().max().item())
            loss_sum += loss.item()
            entropy_sum += scored.entropy_N.sum().item()
            tokens += len(scored.entropy_N)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, section.clip_grad).item()
        if not math.isfinite(norm):
            raise RftError(
                f"step {self.step + 1}: the gradient is not finite. Lower train.lr, or look at its rollouts: rft rollouts --live --stage train."
            )
        before = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer.step()
        if norm > 0 and all(torch.equal(now, then) for now, then in zip(self.parameters, before, strict=True)):
            dtype = self.parameters[0].dtype
            raise RftError(f"step {self.step + 1}: the optimizer changed no weight. train.lr = {section.lr} is too small for {dtype}.")
        phases = self.bench.times.phases
        phases["training"] = phases.get("training", 0.0) + time.monotonic() - began
        return {
            "samples/trained": len(samples),
            "loss": loss_sum,
            "grad_norm": norm,
            "entropy": entropy_sum / tokens,
            "logprob_mismatch": mismatch,
            "weights/change": self.weight_change(),
        }

    def _validate(self, held_out: Sequence[Example]) -> float:
        plan = Plan("train", "validation", self.prompt, 0.0, 1, self.section.seed, step=self.step, left_out="validation")
        rows = self.bench.measure(self.sampler.policy, held_out, plan, self.store, lambda done, message: None)
        self.bench.times.rollout_s.pop(plan.name)
        return float(np.mean([row.reward for row in rows if row.reward is not None]))

    # -- kill and go on ------------------------------------------------------------------------------------------------------
    def _keep(self, rows: list[LogRow], seconds: list[float], metrics: dict[str, Any]) -> None:
        self.store.add_all(rows, seconds, f"step {self.step}")
        self.metrics.append(metrics)
        with (self.work / "metrics.jsonl").open("a") as handle:
            handle.write(json.dumps(metrics) + "\n")

    def _checkpoint(self) -> None:
        part = self.work / "checkpoint.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        torch.save(
            {"parameters": [p.detach() for p in self.parameters], "optimizer": self.optimizer.state_dict(), "step": self.step}, part / "state.pt"
        )
        progress.publish(part, self.work / "checkpoint")

    def _resume(self) -> None:
        """From the last checkpoint; rollouts and metrics of later steps are forgotten and made again, equal."""
        self.step = 0
        if (self.work / "checkpoint").exists():
            state = torch.load(self.work / "checkpoint" / "state.pt", weights_only=True)
            with torch.no_grad():
                for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                    parameter.copy_(saved)
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
            self.sampler.follow(self.step)
            progress.say("train", f"continues at step {self.step}")
        self.store.keep(lambda row: row.step <= self.step)
        self.metrics = [one for one in _lines(self.work / "metrics.jsonl") if one["step"] <= self.step]
        (self.work / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in self.metrics))


def _pick(train: Sequence[Example], position: int, seed: int) -> Example:
    """The example at a place in an endless sequence of shuffled epochs."""
    epoch, place = divmod(position, len(train))
    return train[int(np.random.default_rng([seed, 3, epoch]).permutation(len(train))[place])]


def _left_out(one: Trajectory, advantage: float, group: Sequence[Trajectory]) -> str:
    if one.reward is None:
        return f"unscored: {one.grade.status}"
    if one.num_forks:
        return "forked"
    if not one.num_tokens:
        return "no tokens"
    scored = [other.reward for other in group if other.reward is not None]
    if len(scored) < 2:
        return "alone in its group"
    if advantage == 0.0:
        return "no variance" if max(scored) - min(scored) < 1e-9 else "at the group mean"
    return ""


def _microbatches(samples: list[TrainingSample]) -> list[list[TrainingSample]]:
    """By length, so that little is padding; a microbatch holds at most MICROBATCH_TOKENS tokens with padding."""
    batches: list[list[TrainingSample]] = []
    for sample in sorted(samples, key=lambda one: len(one.ids), reverse=True):
        if batches and len(batches[-1][0].ids) * (len(batches[-1]) + 1) <= MICROBATCH_TOKENS:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def _describe(step: int, rows: list[LogRow], aside: list[LogRow]) -> dict[str, Any]:
    """The step's rollouts in numbers; names as in the vocabulary. Those set `aside` are counted, and in no mean."""
    rewards = [row.reward for row in rows if row.reward is not None]
    scores = [row.score for row in rows if row.score is not None]
    calls = [row.num_tool_calls for row in rows]
    reasons = Counter(row.left_out for row in [*rows, *aside] if row.left_out)
    return {
        "step": step,
        "reward/mean": float(np.mean(rewards)),
        "reward/p10": stats.percentile(rewards, 0.1),
        "reward/p90": stats.percentile(rewards, 0.9),
        "score/mean": float(np.mean(scores)),
        "solved/share": float(np.mean([row.solved for row in rows])),
        "tool_calls/mean": float(np.mean(calls)),
        "tool_calls/p95": stats.percentile(calls, 0.95),
        "tokens/mean": float(np.mean([row.num_tokens for row in rows])),
        "stop/completed": float(np.mean([row.stop_reason == "completed" for row in rows])),
        "samples/sampled": len(rows) + len(aside),
        "samples/unscored": sum(row.reward is None for row in [*rows, *aside]),
        **{f"left_out/{reason}": count for reason, count in sorted(reasons.items())},
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines only; a kill may have cut the last."""
    found: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found


def _publish(trainer: Trainer, section: config.Train) -> None:
    SHELF.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SHELF / "weights", ignore_errors=True)
    kind = section.weights
    if kind == "lora" and section.from_ == "champion" and champion().weights != "none":
        kind = "full"  # the adapter sits on the champion's own weights; saved merged, it stands on the base model alone
    model.save(trainer.learner if kind == section.weights else model.merged_copy(trainer.learner), SHELF / "weights")
    (SHELF / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trainer.metrics))
    rollout_log.write(trainer.store, SHELF / "rollouts.parquet")
    change = trainer.weight_change()
    report = reports.TrainReport(
        trained=change > 0,
        reason=f"{section.steps} steps of {section.algorithm} on {section.weights} weights" if change > 0 else "no group had anything to learn from",
        weights=kind if change > 0 else "none",
        path=str(SHELF / "weights") if change > 0 else None,
        sha256=progress.tree_sha256(SHELF / "weights") if change > 0 else None,
        algorithm=section.algorithm,
        steps=section.steps,
        rollouts=len(trainer.store),
        left_out=dict(sorted(Counter(row.left_out for row in trainer.store if row.left_out).items())),
        alarms=sum(one["alarm/count"] for one in trainer.metrics),
        curve=[(one["step"], one["reward/mean"]) for one in trainer.metrics],
        weight_change=change,
    )
    reports.write(report, SHELF / "report.json")


def _skip(reason: str) -> None:
    """Nothing was trained: an empty pointer with the reason, and files without content where DVC expects outs."""
    (SHELF / "weights").mkdir(parents=True, exist_ok=True)
    (SHELF / "weights" / "none.txt").write_text(f"Nothing was trained: {reason}\n")
    reports.write(reports.TrainReport(trained=False, reason=reason, weights="none"), SHELF / "report.json")
    (SHELF / "metrics.jsonl").write_text("")
    rollout_log.write([], SHELF / "rollouts.parquet")
    reports.write_json({"rollout_s": {}, "phases": {}}, SHELF / "timing.json")
    progress.say("train", reason)
