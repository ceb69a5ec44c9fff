"""A warm start: the training loop for data that exists already.

It is rft/trainer/loop.py without rollouts.

Each step:

    SFT samples, in their order          rft/trainer/sft_samples.py
    one optimizer step                   rft/trainer/learner.py, with algorithm `supervised`
    numbers; all state at intervals      rft/trainer/journal.py, rft/trainer/checkpoint.py

So it has the learner's forward passes, packing, microbatches, clipping and checks, the schedule and
the checkpoints of every other training. All is a function of seed and step, and a warm start that
was cut off ends with the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from rft import config, lines, progress, stopping
from rft.trainer import checkpoint, schedule
from rft.trainer.checkpoint import Manifest
from rft.trainer.journal import Lines, timed
from rft.trainer.learner import Learner
from rft.trainer.packing import Counted, TrainingSample
from rft.trainer.sft_samples import Order, SftSample, samples

SHOWN = 100
"""About as many points as a report's curve has."""


def settings(warm: config.WarmStart, weights: Literal["lora", "full"], seed: int) -> config.Train:
    """Turn the settings of a warm start into those that the learner reads."""
    return config.Train(
        algorithm="supervised",
        source="demonstrations",
        weights=weights,
        lora=warm.lora,
        lr=warm.lr,
        schedule=warm.schedule,
        warmup_steps=warm.num_warmup,
        steps=warm.steps,
        examples_per_step=warm.batch,
        supervised=config.Supervised(other_weight=warm.other_weight),
        microbatch_tokens=warm.microbatch_tokens,
        packing=warm.packing,
        gradient_checkpointing=warm.gradient_checkpointing,
        checkpoint_every=warm.checkpoint_every,
        validation_examples=0,
        seed=seed,
    )


class WarmStart:
    """Runs the loop. `work`: its unfinished work. `configuration` names all that it depends on.
    `short_first`: see `Order`."""

    def __init__(
        self,
        learner: Learner,
        given: Sequence[SftSample],
        stage: str,
        work: Path,
        configuration: str,
        short_first: bool = False,
    ):
        self.learner, self.section, self.stage = learner, learner.section, stage
        batch, steps, seed = self.section.examples_per_step, self.section.steps, self.section.seed
        self._order = Order(given, batch, steps, seed, short_first)
        self._checkpoints, self._configuration = work / "checkpoints", configuration
        work.mkdir(parents=True, exist_ok=True)
        self.metrics, self.times = Lines(work / "metrics.jsonl"), Lines(work / "times.jsonl")
        self.step = 0  # finished optimizer steps

    def fit(self) -> None:
        self._resume()
        section = self.section
        report = progress.Reporter(self.stage, section.steps)
        for written in (self.metrics, self.times):
            progress.print_line(self.stage, lines.metrics(written.path))
        while self.step < section.steps:
            began, before = time.monotonic(), dict(self.learner.seconds)
            batch = samples(self._order.at(self.step + 1), self.step + 1, section.supervised.other_weight)
            rate = schedule.rate(section, self.step + 1)
            learned = self.learner.update(batch, counted(batch), rate)
            self.step += 1
            self.metrics.add({"step": self.step, **learned})
            if kept := self.step % section.checkpoint_every == 0 or self.step == section.steps:
                self._checkpoint()
            spent = {name: seconds - before[name] for name, seconds in self.learner.seconds.items()}
            num_tokens = sum(len(sample.ids) for sample in batch)
            self.times.add(timed(self.step, time.monotonic() - began, spent, num_tokens))
            report(self.step, f"steps of warm start, loss {learned['nll']:.3f}")
            if self.step < section.steps:
                where = f"after step {self.step} of {section.steps} of the warm start"
                stopping.check(where, None if kept else self._checkpoint)

    def losses(self) -> list[tuple[int, float]]:
        """Return about a hundred pairs: step, mean loss on completion tokens since the last."""
        every = max(1, self.section.steps // SHOWN)
        found: list[tuple[int, float]] = []
        since: list[float] = []
        for row in self.metrics.rows:
            since.append(row["nll"])
            if row["step"] % every == 0 or row["step"] == self.section.steps:
                found.append((row["step"], round(sum(since) / len(since), 6)))
                since.clear()
        return found

    def _checkpoint(self) -> None:
        manifest = Manifest(
            step=self.step,
            configuration=self._configuration,
            curriculum={},
            watch={},
            best=None,
            rng=torch.get_rng_state().tolist(),
        )
        checkpoint.write(self._checkpoints, manifest, self.learner.state(), self.section.keep_checkpoints)

    def _resume(self) -> None:
        found = checkpoint.newest(self._checkpoints, self._configuration)
        if found is not None:
            manifest, state = found
            self.learner.load(state)
            self.step = manifest.step
            torch.set_rng_state(torch.tensor(manifest.rng, dtype=torch.uint8))
            progress.print_line(self.stage, f"continues the warm start at step {self.step}")
        self.metrics.back_to(self.step)
        self.times.back_to(self.step)


def counted(batch: Sequence[TrainingSample]) -> Counted:
    """Count what is imitated: all of it."""
    return Counted(len(batch), sum(sample.num_own for sample in batch))


__all__ = ["WarmStart", "counted", "settings"]
