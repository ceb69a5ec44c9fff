"""A step's rollouts: P groups of G, and which of them can be learned from.

    curriculum -> P examples x G rollouts
               -> groups whose outcomes are all the same are replaced by groups of other examples,
                  within a budget
               -> advantages -> training samples; everything else is left out, with its reason

A group has variance when its *outcomes* differ (`train.variance: outcome`). A budget's penalty
alone makes rewards differ too: a filter that looked at rewards would take a group in which all
failed for an informative one. Everything that is sampled is counted: sampled = trained + left out.

An algorithm without groups (`is_grouped` False: REINFORCE++, PPO) learns from all that is scored.

A rollout that is left out may still be part of the formula: the step's means are divided by
`counted`, every scored rollout that the algorithm counts. That includes rollouts of dull groups (no
gradient, so no sample, unless the KL gives one) and forked rollouts (no sequence to compute it on).

Shapes: P groups of G rollouts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rft import config, progress
from rft.algorithms import Algorithm, dapo, groups
from rft.grading import alarm, budget
from rft.reports import PromptSettings
from rft.rollouts.log import LogRow
from rft.rollouts.loop import Conditions, Request
from rft.rollouts.pace import Pace
from rft.rollouts.policy import Policy
from rft.rollouts.recovery import Superseded
from rft.rollouts.runner import RolloutRunner, Waiting
from rft.rollouts.store import RolloutStore
from rft.trainer.curriculum import Curriculum
from rft.trainer.packing import Counted, TrainingSample
from rft.types import Example, Trajectory


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one example, in one step."""

    example: Example
    trajectories: tuple[Trajectory, ...]

    @property
    def scored(self) -> list[Trajectory]:
        return [one for one in self.trajectories if one.reward is not None]

    def varies(self, what: str) -> bool:
        """Tell whether scored rollouts differ. `what`: outcome or reward."""
        values = [one.reward if what == "reward" else budget.outcome(one.grade) for one in self.scored]
        return groups.varies(groups.floats(values))


@dataclass(slots=True)
class Batch:
    """The input of one optimizer step, and the record of all that was sampled for it."""

    step: int
    groups: list[Group]
    replaced: list[Group]
    """Groups without variance that others replaced."""
    superseded: list[Superseded]
    policy_version: int = 0
    """The number of steps that its sampler's weights had learned."""
    rows: list[LogRow] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[TrainingSample] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    alarms: list[alarm.Alarm] = field(default_factory=list)
    typical: list[Group] = field(default_factory=list)
    """Groups whose examples were chosen without regard to how hard they are."""
    wall_s: float = 0.0

    @property
    def name(self) -> str:
        """The batch's name in the rollout store."""
        return f"step {self.step}"

    def log(self, row: LogRow, wall_s: float, why: str) -> LogRow:
        """Complete and keep a row: trained on, or left out and why."""
        self.rows.append(replace(row, trained=not why, left_out=why))
        self.seconds.append(wall_s)
        return self.rows[-1]


class Collector:
    """Samples the rollouts of a step, with the weights that the policy has now."""

    def __init__(
        self,
        train: Sequence[Example],
        section: config.Train,
        prompt: PromptSettings,
        runner: RolloutRunner,
        policy: Policy,
        algorithm: Algorithm,
        curriculum: Curriculum,
        store: RolloutStore,
        max_context_tokens: int | None = None,
    ):
        """`max_context_tokens` bounds a rollout; DAPO's overlong shaping measures by it. Raises
        ConfigError if the shaping leaves no room."""
        dapo.check_overlong(section.overlong, max_context_tokens)
        self._train, self._section, self._prompt, self._runner, self._store = train, section, prompt, runner, store
        self._policy, self._algorithm, self._curriculum, self._max_context_tokens = (
            policy,
            algorithm,
            curriculum,
            max_context_tokens,
        )
        self.policy_version = 0
        """Set when the sampler gets new weights."""

    def collect(self, step: int) -> Batch:
        """Sample and judge the rollouts of a step, which counts from 1."""
        began = time.monotonic()
        met: Counter[str] = Counter()
        batch = Batch(step, [], [], [], self.policy_version)
        taken = self._curriculum.take(self._section.examples_per_step)
        batch.groups = self._play(taken, met, batch)
        self._refill(batch, taken, met)
        given = [*batch.groups, *batch.replaced]
        batch.typical = [group for group in given if self._curriculum.is_blind(group.example.id)]
        for group in given:
            self._curriculum.saw(group.example.id, [one.grade.solved for one in group.scored])
        held = {kept.row.rollout_id: kept.row for kept in self._store.held(batch.name)}
        self._assign(batch, held)
        self._leave_out(batch, held)
        self._listen(batch)
        batch.wall_s = time.monotonic() - began
        return batch

    def _refill(self, batch: Batch, taken: list[int], met: Counter[str]) -> None:
        """Replace groups without variance: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).
        It is bounded, because a policy that has learned everything would be sampled forever."""
        room = int(self._section.refill_groups * self._section.examples_per_step)
        while room:
            dull = [n for n, group in enumerate(batch.groups) if not group.varies(self._section.variance)][:room]
            if not dull:
                return
            fresh = self._curriculum.take(len(dull), taken)
            taken += fresh
            for n, group in zip(dull, self._play(fresh, met, batch), strict=True):
                batch.replaced.append(batch.groups[n])
                batch.groups[n] = group
            room -= len(dull)

    def _play(self, taken: Sequence[int], met: Counter[str], batch: Batch) -> list[Group]:
        """Play one group per example. Where an epoch ends, an example may come twice in a step.
        Then its rollouts are numbered on, so that no random stream is used twice."""
        section, limits = self._section, self._runner.params.rollout
        requests: list[Request] = []
        for index in taken:
            example = self._train[index]
            first = met[example.id] * section.group
            met[example.id] += 1
            requests += [Request(example, first + sample) for sample in range(section.group)]
        seed = (section.seed, 1, batch.step - 1)
        conditions = Conditions(
            self._prompt, section.temperature, seed, limits, "train", "train", batch.step, self._runner.traces
        )
        waiting = Waiting(self._store, batch.name, "challenger")
        trajectories: list[Trajectory] = []
        pace = Pace("train", len(requests))
        for start in range(0, len(requests), limits.batch):
            some = requests[start : start + limits.batch]
            played = self._runner.run(self._policy, some, conditions, "train", waiting, pace)
            trajectories += played.trajectories
            batch.superseded += played.superseded
        waves = [tuple(trajectories[n : n + section.group]) for n in range(0, len(trajectories), section.group)]
        return [Group(self._train[index], wave) for index, wave in zip(taken, waves, strict=True)]

    def _assign(self, batch: Batch, held: Mapping[str, LogRow]) -> None:
        """Compute advantages, and choose what is trained on. `held`: by rollout id, the row made
        when the rollout ended."""
        algorithm, overlong = self._algorithm, self._section.overlong
        informative = [not algorithm.is_grouped or group.varies(self._section.variance) for group in batch.groups]
        rewards_PG = [
            [
                None if self._failed(one) else dapo.shaped(one, overlong, self._max_context_tokens)
                for one in group.trajectories
            ]
            for group in batch.groups
        ]
        given = iter(algorithm.advantages([row for row, useful in zip(rewards_PG, informative, strict=True) if useful]))
        counted: list[Trajectory] = []
        for number, (group, reward_G, useful) in enumerate(zip(batch.groups, rewards_PG, informative, strict=True)):
            advantage_G = next(given).tolist() if useful else [0.0] * len(group.trajectories)
            pairs = list(zip(group.trajectories, advantage_G, strict=True))
            reasons = [self._left_out(one, advantage, group, useful) for one, advantage in pairs]
            counted += [
                one for one, advantage in pairs if one.reward is not None and algorithm.is_in_mean(advantage, useful)
            ]
            pair = number if "pairs" in algorithm.requirements else -1
            if pair >= 0 and reasons.count("") == 1:
                reasons[reasons.index("")] = "its pair's other half is left out"
            fresh: list[TrainingSample] = []
            for one, reward, advantage, why in zip(group.trajectories, reward_G, advantage_G, reasons, strict=True):
                row = batch.log(held[one.rollout_id], one.wall_s, why)
                if not why:
                    assert reward is not None, "the unscored are left out"
                    fresh.append(TrainingSample(row.ids, row.loss_mask, row.logprobs, advantage, reward, pair))
            batch.samples += sorted(fresh, key=lambda sample: -sample.advantage) if pair >= 0 else fresh
        batch.counted = Counted(len(counted), sum(one.num_tokens for one in counted))

    def _leave_out(self, batch: Batch, held: Mapping[str, LogRow]) -> None:
        """Log what was replaced. Then log the rollouts of a run that was killed in this step, if it
        had chosen other examples (only with a lag): they were sampled, so they count."""
        for group in batch.replaced:
            for one in group.trajectories:
                batch.log(held[one.rollout_id], one.wall_s, unfit(one) or self._dull(group, False))
        for one in batch.superseded:
            batch.log(held[one.trajectory.rollout_id], one.trajectory.wall_s, one.why)
        for kept in self._store.unasked(batch.name, batch.rows):
            batch.log(kept.row, kept.wall_s, kept.row.left_out)

    def _left_out(self, one: Trajectory, advantage: float, group: Group, useful: bool) -> str:
        if why := unfit(one):
            return why
        if self._failed(one):
            return "not passed"
        if self._algorithm.is_in_mean(advantage, useful) and (advantage != 0.0 or self._algorithm.has_kl_gradient):
            return ""
        return self._dull(group, useful)

    def _failed(self, one: Trajectory) -> bool:
        """Tell whether the algorithm learns only from what passed, and this rollout did not
        pass."""
        return "passed" in self._algorithm.requirements and not one.grade.solved

    def _dull(self, group: Group, useful: bool) -> str:
        if self._algorithm.is_grouped and len(group.scored) < 2:
            return "alone in its group"
        return self._algorithm.zero_reason if useful else "no variance"

    def _listen(self, batch: Batch) -> None:
        """Raise alarms: the policy can learn to cause failures that depend on what it does."""
        tried = [one for group in [*batch.groups, *batch.replaced] for one in group.trajectories]
        tried += [one.trajectory for one in batch.superseded if one.why.startswith("replaced")]
        batch.alarms = alarm.find(alarm.calls_of(tried))
        for one in batch.alarms:
            progress.print_line("train", f"ALARM at step {batch.step}: {one.text}")


def unfit(one: Trajectory) -> str:
    """Say why this rollout can never be learned from, whatever its group did; empty if it can."""
    if one.reward is None:
        return f"unscored: {one.grade.status}"
    if one.num_forks:
        return "forked"
    return "" if one.num_tokens else "no tokens"
