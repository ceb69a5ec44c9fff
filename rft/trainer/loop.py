"""The training loop: sample, learn, give the new weights to the sampler, keep what was done.

Each step:

    P examples x G rollouts, rewards     rft/trainer/collect.py
    advantages within each group         rft/algorithms
    one optimizer step                   rft/trainer/learner.py
    new weights to the sampler           rft/sampling/policies.py

Training is on-policy by default: every rollout is sampled by the weights that it then changes. With
`train.lag` the next rollouts are sampled while the learner learns (rft/trainer/prefetch.py). All
randomness is a function of (seed, step). So in deterministic mode a killed run goes on from its
last checkpoint bit for bit. Later steps are learned again, from finished rollouts and from rollouts
that are sampled again.

A training that destroys the policy goes back to its best checkpoint once, and ends the second time
(rft/trainer/collapse.py). Steps are never taken back: the log and the metrics show what happened.

Supervised training goes through the same loop, with other batches (rft/trainer/imitation.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rft import config, lines, progress, stopping
from rft.chat.renderer import Chat
from rft.reports import Fall, PromptSettings
from rft.rollouts.runner import Plan, RolloutRunner
from rft.rollouts.store import RolloutStore
from rft.sampling import policies
from rft.trainer import checkpoint, collapse, schedule
from rft.trainer.checkpoint import Manifest
from rft.trainer.collect import Batch, Collector
from rft.trainer.curriculum import Curriculum
from rft.trainer.imitation import Dialogues, Rounds
from rft.trainer.journal import Lines, Numbers, timed
from rft.trainer.learner import Diverged, Learner
from rft.trainer.metrics import Watch, describe
from rft.trainer.packing import why_none
from rft.trainer.prefetch import Prefetcher
from rft.trainer.sft_samples import SftSample
from rft.types import Example


class Trainer:
    """Runs the loop. `work`: the stage's unfinished work, named by the hash of all its inputs."""

    def __init__(
        self,
        learner: Learner,
        chat: Chat,
        section: config.Train,
        prompt: PromptSettings,
        runner: RolloutRunner,
        train: Sequence[Example],
        held_out: Sequence[Example],
        device: torch.device,
        work: Path,
        store: RolloutStore,
        imitated: Sequence[SftSample] = (),
        start: collapse.Start | None = None,
    ):
        """`imitated`: what supervised training learns from, if it exists already. `start`: what the
        policy earns before training, if that was measured."""
        self.learner, self.section, self.prompt, self.runner = learner, section, prompt, runner
        self.held_out, self.work, self.store = held_out, work, store
        self.sampler = policies.following(runner, learner.model, chat, device, work)
        self.curriculum = Curriculum([example.id for example in train], section.curriculum, section.seed)
        runner.check_openings(self.sampler.policy, [*train, *held_out], prompt)
        max_context_tokens = self.sampler.policy.limit(runner.params.rollout.max_tokens)
        sampled, supervised = section, section.algorithm == "supervised"
        if supervised:
            sampled = section.model_copy(update={"examples_per_step": section.supervised.examples or len(train)})
        collector = Collector(
            train,
            sampled,
            prompt,
            runner,
            self.sampler.behavior,
            learner.algorithm,
            self.curriculum,
            store,
            max_context_tokens,
        )
        self.collector: Collector | Dialogues | Rounds = collector
        if supervised:
            from_rollouts = section.source == "rollouts"
            self.collector = Rounds(collector, section, work) if from_rollouts else Dialogues(imitated, section)
        self.metrics, self.times = Lines(work / "metrics.jsonl"), Lines(work / "times.jsonl")
        self.tools = [schema["function"]["name"] for schema in runner.schemas]
        self.watch = Watch()
        self.guard = collapse.Guard(runner.recipe.grader.scale.low, start)
        self.collapsed = ""  # why its weights are useless
        self.step = 0  # finished optimizer steps
        self.best: Numbers | None = None
        self.stopped = ""  # why the run ended before its last step
        self._told_unshared = False

    def fit(self) -> None:
        self._resume()
        report = progress.Reporter("train", self.section.steps)
        for written in (self.metrics, self.times):
            progress.print_line("train", lines.metrics(written.path))
        with Prefetcher(self.collector.collect, self.section.lag, self.step, self.section.steps) as batches:
            while self.step < self.section.steps and not self.stopped:
                began, before = time.monotonic(), self._phases()
                batch = batches.next()
                learned, fell = self._learn(batch)
                self.step += 1
                with batches.between:
                    sampled = describe(batch, self.tools) if batch.rows else {"step": batch.step}
                    fell = fell or self.guard.saw(batch.typical, batch.policy_version)
                    metrics = sampled | learned | self._go_back(fell)
                    self._sync_weights()
                    metrics |= self._validated()
                self._tell_unshared(batch, learned)
                if not fell:  # what has fallen is given up, and its numbers with it
                    self.stopped = self.stopped or self.watch.step(self.section.stop, metrics)
                self._keep(batch, metrics)
                # the last step too: after a kill it need not be learned again
                ended = self.stopped or self.step == self.section.steps
                is_kept = ended or "collapse/back_to" in metrics or self.step % self.section.checkpoint_every == 0
                if is_kept:
                    self._checkpoint()
                self._time(batch, time.monotonic() - began, before)
                report(self.step, _progress(metrics))
                if not ended:
                    stopping.check(
                        f"after step {self.step} of {self.section.steps}", None if is_kept else self._checkpoint
                    )
        self.store.settle("the training ended before its step")
        if self.stopped:
            progress.print_line("train", f"stopped at step {self.step}: {self.stopped}")
        if self.section.keep == "best" and self.best is not None and self.best["step"] != self.step:
            step, reward = self.best["step"], self.best["reward"]
            self.learner.load_weights(checkpoint.read_best(self.work / "best", step))
            progress.print_line("train", f"keeps the weights of step {step}, the best on validation: {reward:.3f}")

    @property
    def weights_of(self) -> int:
        """The step after which these weights were kept."""
        falls = self.guard.falls
        return falls[-1].back_to if falls and falls[-1].step == self.step else self.step

    def _learn(self, batch: Batch) -> tuple[Numbers, str]:
        """Do the step's updates. Return their numbers; or no numbers, and what was not finite."""
        rate = schedule.rate(self.section, self.step + 1) * self.guard.scale
        try:
            return self.learner.update(batch.samples, batch.counted, rate), ""
        except Diverged as error:
            if self.learner.team.size > 1:
                raise
            return {"samples/trained": 0}, str(error).split(". ")[0]
        finally:
            self.learner.free_gradients()

    # -- collapse ----------------------------------------------------------------------------------
    def _go_back(self, fell: str) -> Numbers:
        """If something fell, go back to the best checkpoint with a lower learning rate. The second
        time, end."""
        if not fell:
            return {}
        is_last = self.step == self.section.steps or self.stopped
        back_to = collapse.best(self.metrics.rows, checkpoint.steps(self.work / "checkpoints"))
        if self.guard.falls or (is_last and not back_to):
            self.stopped = self.collapsed = fell
            return {}
        state = self.learner.fresh()
        if back_to:
            state = checkpoint.read(self.work / "checkpoints" / f"{back_to:06d}", self.work.name)[1]
        self.learner.load(state)
        lr = self.section.peak_lr * self.guard.scale * collapse.LOWER
        self.guard.fall(Fall(step=self.step, reason=fell, back_to=back_to, lr=lr))
        where = f"the weights of step {back_to}" if back_to else "the weights that it started from"
        progress.print_line(
            "train", f"COLLAPSE at step {self.step}: {fell}. Goes back to {where}, and continues with lr {lr:g}"
        )
        return {"collapse/back_to": back_to}

    def _tell_unshared(self, batch: Batch, learned: Numbers) -> None:
        """Warn once that train.packing is set and saved nothing in a step."""
        packing_width, count = self.learner.packing_width, len(batch.samples)
        if self._told_unshared or packing_width is None or count < 2 or learned.get("packing/shared_share", 1):
            return
        self._told_unshared = True
        why = why_none(batch.samples, self.section.microbatch_tokens, packing_width)
        what = f"none of the {count} rollouts of step {batch.step} shares its prompt's computation"
        progress.print_line("train", f"WARNING: {what}: {why}.")

    def _sync_weights(self) -> None:
        """Give the learner's weights to the sampler."""
        self.sampler.sync_weights(self.step)
        self.collector.policy_version = self.step

    # -- held-out reward ---------------------------------------------------------------------------
    def _validated(self) -> Numbers:
        """Measure the held-out reward, when it is due, and keep the best weights so far."""
        is_due = self.step == self.section.steps or self.step % self.section.validate_every == 0
        if not self.held_out or not is_due or self.collapsed:
            return {}
        plan = Plan(
            "train", "validation", self.prompt, 0.0, 1, self.section.seed, step=self.step, left_out="validation"
        )
        rows = self.runner.measure(self.sampler.policy, self.held_out, plan, self.store, lambda done, message: None)
        self.runner.times.rollout_s.pop(plan.name)
        rewards = [row.reward for row in rows if row.reward is not None]
        if not rewards:
            what = f"the validation of step {self.step} says nothing"
            progress.print_line("train", f"{what}: none of its {len(rows)} rollouts has a score")
            return {}
        reward = float(np.mean(rewards))
        better, self.stopped = self.watch.validated(self.section.stop, reward)
        if better and self.section.keep == "best":
            self._keep_best(reward)
        if went_back := self._go_back(self.guard.checked(rewards)):
            self._sync_weights()
        return {"validation/reward": reward} | went_back

    def _keep_best(self, reward: float) -> None:
        checkpoint.write_best(self.work / "best", self.step, self.learner.weights_state())
        self.best = {"step": self.step, "reward": reward}

    # -- kill and go on ----------------------------------------------------------------------------
    def _keep(self, batch: Batch, metrics: Numbers) -> None:
        if batch.rows:  # dialogues that exist already have none
            self.store.add_all(batch.rows, batch.seconds, batch.name)
            self.runner.times.add("train", batch.rows, batch.seconds)
        self.metrics.add(metrics)

    def _checkpoint(self) -> None:
        manifest = Manifest(
            step=self.step,
            configuration=self.work.name,
            curriculum=self.curriculum.state(),
            watch=self.watch.state(),
            best=self.best,
            stopped=self.stopped,
            collapsed=self.collapsed,
            guard=self.guard.state(),
            rng=torch.get_rng_state().tolist(),
        )
        folder = self.work / "checkpoints"
        best = collapse.best(self.metrics.rows, checkpoint.steps(folder))
        checkpoint.write(folder, manifest, self.learner.state(), self.section.keep_checkpoints, {best})
        checkpoint.prune_bests(self.work / "best", self.work / "checkpoints")

    def _resume(self) -> None:
        found = checkpoint.newest(self.work / "checkpoints", self.work.name)
        if found is not None:
            manifest, state = found
            self.learner.load(state)
            self.step, self.best, self.watch = manifest.step, manifest.best, Watch(**manifest.watch)
            self.stopped, self.collapsed = manifest.stopped, manifest.collapsed
            self.guard.load(manifest.guard)
            self.curriculum.load(manifest.curriculum)
            torch.set_rng_state(torch.tensor(manifest.rng, dtype=torch.uint8))
            self._sync_weights()
            progress.print_line(
                "train", f"continues at step {self.step}, from the checkpoint of a run that was cut off"
            )
        self.store.reopen(lambda row: row.step > self.step)
        self.metrics.back_to(self.step)
        self.times.back_to(self.step)
        folder = self.work / "checkpoints"
        best = collapse.best(self.metrics.rows, checkpoint.steps(folder)[:-1])
        checkpoint.prune(folder, self.section.keep_checkpoints, {best})  # a kill may have come before this was done

    # -- the clock ---------------------------------------------------------------------------------
    def _phases(self) -> dict[str, float]:
        return {**self.runner.times.phases, **self.learner.seconds}

    def _time(self, batch: Batch, total_s: float, before: dict[str, float]) -> None:
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in self._phases().items()}
        tokens = sum(row.num_tokens for row in batch.rows) or sum(sample.num_own for sample in batch.samples)
        self.times.add(timed(self.step, total_s, spent, tokens))


def _progress(metrics: dict[str, Any]) -> str:
    if "nll" in metrics:
        return f"steps, loss {metrics['nll']:.3f}"
    return f"steps, reward {_shown(metrics)}, {_calls(metrics)}"


def _calls(metrics: dict[str, Any]) -> str:
    return f"{metrics['tool_calls/mean']:.1f} calls per rollout" if "tool_calls/mean" in metrics else "calls unknown"


def _shown(metrics: dict[str, Any]) -> str:
    return f"{metrics['reward/mean']:.3f}" if "reward/mean" in metrics else "unscored"
