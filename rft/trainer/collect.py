"""A step's rollouts: P groups of G, and what of them can be learned from.

    curriculum -> P examples x G rollouts -> groups whose outcomes are all the same? -> replaced by groups of other examples, within a budget
               -> advantages -> training samples; everything else left out, with its reason

A group has variance when its *outcomes* differ (`train.variance: outcome`). A budget's penalty alone makes rewards differ too, and a filter that
looked at rewards would take an all-failed group for an informative one. What is sampled is counted: sampled = trained + left out, always.

An algorithm without groups (`grouped` False: REINFORCE++, PPO) learns from all that is scored.

What is left out is not thereby outside of the formula: `counted` is what the step's means are divided by, and holds every scored rollout of the batch
that the algorithm counts, also dull ones (no gradient, so no sample, unless a KL pulls at them) and forked ones (no sequence to compute it on).

Shapes: P groups of G rollouts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rft import alarm, budget, config, progress, rollout_log
from rft.algorithms import Algorithm
from rft.recovery import Aside
from rft.reports import PromptSettings
from rft.rollout import Conditions, Policy, Request
from rft.rollout_log import LogRow
from rft.rollout_store import RolloutStore
from rft.trainer.curriculum import Curriculum
from rft.trainer.samples import Counted, TrainingSample
from rft.types import Example, Trajectory
from rft.workbench import Waiting, Workbench

NOISE = 1e-9
"""Float noise is no variance."""


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one example, in one step."""

    requests: tuple[Request, ...]
    trajectories: tuple[Trajectory, ...]

    @property
    def example(self) -> Example:
        return self.requests[0].example

    @property
    def scored(self) -> list[Trajectory]:
        return [one for one in self.trajectories if one.reward is not None]

    def varies(self, what: str) -> bool:
        """`what`: outcome or reward."""
        values = [one.reward if what == "reward" else budget.outcome(one.grade) for one in self.scored]
        known = [value for value in values if value is not None]
        return len(known) > 1 and max(known) - min(known) >= NOISE


@dataclass(slots=True)
class Batch:
    """What one optimizer step consumes, and the record of all that was sampled for it."""

    step: int
    groups: list[Group]
    replaced: list[Group]
    """Without variance; other groups stand in for them."""
    aside: list[Aside]
    policy_version: int = 0
    """Steps that the weights which sampled it had learned."""
    rows: list[LogRow] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[TrainingSample] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    alarms: list[alarm.Alarm] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def name(self) -> str:
        """In the rollout store."""
        return f"step {self.step}"


class Collector:
    """Samples the rollouts of a step; the policy is the learner's sampler, whatever weights that has now."""

    def __init__(
        self,
        train: Sequence[Example],
        section: config.Train,
        prompt: PromptSettings,
        bench: Workbench,
        policy: Policy,
        algorithm: Algorithm,
        curriculum: Curriculum,
        store: RolloutStore,
    ):
        self._train, self._section, self._prompt, self._bench, self._store = train, section, prompt, bench, store
        self._policy, self._algorithm, self._curriculum = policy, algorithm, curriculum
        self.policy_version = 0
        """Set by whoever gives the sampler new weights."""

    def collect(self, step: int) -> Batch:
        """`step` counts from 1."""
        began = time.monotonic()
        met: Counter[str] = Counter()
        batch = Batch(step, [], [], [], self.policy_version)
        taken = self._curriculum.take(self._section.examples_per_step)
        batch.groups = self._play(taken, met, batch)
        self._refill(batch, taken, met)
        for group in [*batch.groups, *batch.replaced]:
            self._curriculum.saw(group.example.id, [one.grade.solved for one in group.scored])
        self._assign(batch)
        self._forgotten(batch)
        self._listen(batch)
        batch.wall_s = time.monotonic() - began
        return batch

    def _refill(self, batch: Batch, taken: list[int], met: Counter[str]) -> None:
        """Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), bounded: a policy that is done would be sampled for ever."""
        room = int(self._section.refill_groups * self._section.examples_per_step)
        while room and (dull := [n for n, group in enumerate(batch.groups) if not group.varies(self._section.variance)][:room]):
            fresh = self._curriculum.take(len(dull), taken)
            taken += fresh
            for n, group in zip(dull, self._play(fresh, met, batch), strict=True):
                batch.replaced.append(batch.groups[n])
                batch.groups[n] = group
            room -= len(dull)

    def _play(self, taken: Sequence[int], met: Counter[str], batch: Batch) -> list[Group]:
        """A group an example. One that comes twice in a step, at the turn of an epoch, goes on with its count: never a stream twice."""
        section, limits = self._section, self._bench.params.rollout
        requests: list[Request] = []
        for index in taken:
            example = self._train[index]
            first = met[example.id] * section.group
            met[example.id] += 1
            requests += [Request(example, first + sample) for sample in range(section.group)]
        seed = (section.seed, 1, batch.step - 1)
        conditions = Conditions(self._prompt, section.temperature, seed, limits, "train", "train", batch.step, self._bench.traces)
        waiting = Waiting(self._store, batch.name, "challenger")
        trajectories: list[Trajectory] = []
        for start in range(0, len(requests), limits.batch):
            played = self._bench.run(self._policy, requests[start : start + limits.batch], conditions, "train", waiting)
            trajectories += played.trajectories
            batch.aside += played.aside
        size = section.group
        return [Group(tuple(requests[n : n + size]), tuple(trajectories[n : n + size])) for n in range(0, len(requests), size)]

    def _assign(self, batch: Batch) -> None:
        """Advantages, and with them what is trained on."""
        informative = [not self._algorithm.grouped or group.varies(self._section.variance) for group in batch.groups]
        rewards_PG = [[self._algorithm.shaped(one) for one in group.trajectories] for group in batch.groups]
        advantages_PG = self._algorithm.advantages([row for row, useful in zip(rewards_PG, informative, strict=True) if useful])
        given = iter(advantages_PG)
        counted: list[Trajectory] = []
        for number, (group, useful) in enumerate(zip(batch.groups, informative, strict=True)):
            advantage_G = next(given).tolist() if useful else [0.0] * len(group.trajectories)
            reasons = [self._left_out(one, advantage, group, useful) for one, advantage in zip(group.trajectories, advantage_G, strict=True)]
            counted += [
                one
                for one, advantage in zip(group.trajectories, advantage_G, strict=True)
                if one.reward is not None and self._algorithm.counts(advantage, useful)
            ]
            pair = number if "pairs" in self._algorithm.needs else -1
            if pair >= 0 and reasons.count("") == 1:
                reasons[reasons.index("")] = "its pair's other half is left out"
            fresh: list[TrainingSample] = []
            for request, one, advantage, why in zip(group.requests, group.trajectories, advantage_G, reasons, strict=True):
                self._log(batch, one, request, why)
                if not why:
                    fresh.append(TrainingSample(*rollout_log.flat(one), advantage=advantage, reward=self._algorithm.shaped(one) or 0.0, pair=pair))
            batch.samples += sorted(fresh, key=lambda one: -one.advantage) if pair >= 0 else fresh
        batch.counted = Counted(len(counted), sum(one.num_tokens for one in counted))
        for group in batch.replaced:
            for request, one in zip(group.requests, group.trajectories, strict=True):
                self._log(batch, one, request, unfit(one) or self._dull(group, False))
        for one in batch.aside:
            self._log(batch, one.trajectory, one.request, one.why)

    def _left_out(self, one: Trajectory, advantage: float, group: Group, useful: bool) -> str:
        if why := unfit(one):
            return why
        if self._algorithm.counts(advantage, useful) and (advantage != 0.0 or self._algorithm.pulls):
            return ""
        return self._dull(group, useful)

    def _dull(self, group: Group, useful: bool) -> str:
        if self._algorithm.grouped and len(group.scored) < 2:
            return "alone in its group"
        return self._algorithm.zero if useful else "no variance"

    def _log(self, batch: Batch, one: Trajectory, request: Request, why: str) -> None:
        row = rollout_log.row(
            one, request.example, request.sample, self._prompt, "train", "challenger", batch.step, "train", self._section.temperature
        )
        batch.rows.append(replace(row, trained=not why, left_out=why))
        batch.seconds.append(one.wall_s)

    def _forgotten(self, batch: Batch) -> None:
        """Rollouts of a run that was killed in this step, and which chose other examples then (only with a lag): sampled, so counted."""
        for kept in self._store.unasked(batch.name, batch.rows):
            batch.rows.append(kept.row)
            batch.seconds.append(kept.wall_s)

    def _listen(self, batch: Batch) -> None:
        """Failures that depend on what the policy does are an exit that it can learn."""
        tried = [one for group in [*batch.groups, *batch.replaced] for one in group.trajectories]
        tried += [one.trajectory for one in batch.aside if one.why.startswith("replaced")]
        batch.alarms = alarm.find(alarm.calls_of(tried))
        for one in batch.alarms:
            progress.say("train", f"ALARM at step {batch.step}: {one.text}")


def unfit(one: Trajectory) -> str:
    """Why this rollout can never be learned from, whatever its group did; empty when it can."""
    if one.reward is None:
        return f"unscored: {one.grade.status}"
    if one.num_forks:
        return "forked"
    return "" if one.num_tokens else "no tokens"
