"""The batches of supervised training in stage `train`, in place of the collector's.

    Dialogues    demonstrations, or accepted answers of production: they exist already
    Rounds       the policy's own best rollouts: sampled at the start of each round, and imitated
                 until the next (rejection sampling; in several rounds, expert iteration)

The loop, its validation, its checkpoints and its exact resume are those of every other training
(rft/trainer/loop.py). What a step learns from is a function of seed and step, given the samples. A
round's samples are written to a file before anything is learned from them. So a run that was cut
off within a round goes on with the same samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rft import config, files, progress
from rft.formatting import counted as number_of
from rft.trainer.collect import Batch, Collector
from rft.trainer.sft_samples import Order, SftSample, samples
from rft.trainer.supervised import counted


class Dialogues:
    """Gives each step its dialogues."""

    def __init__(self, given: Sequence[SftSample], section: config.Train):
        self.policy_version = 0
        """The collector has it too. Here nothing is sampled."""
        self._section = section
        self._order = Order(given, section.examples_per_step, section.steps, section.seed)

    def collect(self, step: int) -> Batch:
        return _filled(Batch(step, [], [], [], self.policy_version), self._order, step, step, self._section)


class Rounds:
    """Samples at the start of a round, and gives each step its share of the best. `work`: the
    stage's unfinished work."""

    def __init__(self, collector: Collector, section: config.Train, work: Path):
        self._collector, self._section, self._folder = collector, section, work / "imitated"
        rounds = section.supervised.rounds
        self._starts = [n * section.steps // rounds + 1 for n in range(rounds)] + [section.steps + 1]
        self._first, self._order = 0, None

    @property
    def policy_version(self) -> int:
        return self._collector.policy_version

    @policy_version.setter
    def policy_version(self, step: int) -> None:
        self._collector.policy_version = step

    def collect(self, step: int) -> Batch:
        """Return the batch of a step, with the rollouts that were sampled for it."""
        first, after = self._round(step)
        if step == first:
            batch = self._collector.collect(step)
            kept = [SftSample(sample.ids, sample.loss_mask) for sample in batch.samples]
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps([[sft_sample.ids, sft_sample.loss_mask] for sft_sample in kept])
            files.write_text(text, self._path(first), durable=True)
            of = number_of(len(batch.groups), "example")
            steps = number_of(after - first, "step")
            progress.print_line(
                "train", f"imitates {number_of(len(kept), 'rollout')} that passed, of {of}, for {steps}"
            )
        else:
            batch = Batch(step, [], [], [], self.policy_version)
        if self._order is None or self._first != first:
            kept = [SftSample(ids, loss_mask) for ids, loss_mask in json.loads(self._path(first).read_text())]
            batch_size, seed = self._section.examples_per_step, self._section.seed + first
            self._first, self._order = first, Order(kept, batch_size, after - first, seed) if kept else None
        return _filled(batch, self._order, step, step - first + 1, self._section)

    def _round(self, step: int) -> tuple[int, int]:
        """Return the first step of this step's round, and of the next."""
        place = max(n for n, start in enumerate(self._starts[:-1]) if start <= step)
        return self._starts[place], self._starts[place + 1]

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:06d}.json"


def _filled(batch: Batch, order: Order | None, step: int, place: int, section: config.Train) -> Batch:
    """Give a batch its samples. `place`: the step's place in the order."""
    batch.samples = samples(order.at(place), step, section.supervised.other_weight) if order is not None else []
    batch.counted = counted(batch.samples)
    return batch


__all__ = ["Dialogues", "Rounds"]
