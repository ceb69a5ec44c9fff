"""A training run in numbers, and the signs that it should end.

`describe` gives the metrics of a step's rollouts, the learner its own. Names are stable: MLflow's
curves and the report are drawn from them. rft/trainer/journal.py writes them down.

A run stops by itself, with what it has learned, when going on would waste compute:

    idle        nothing was learned for `stop.idle_steps` steps: every group is all solved or all
                failed (a KL alone teaches nothing)
    entropy     the policy is sure of every token (`stop.min_entropy`) and explores no more
    patience    `stop.patience` validations without a better one

If grading fails, there is no result: the circuit breaker (rft/rollouts/recovery.py) pauses the
stage, and ends it as a failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rft import config, stats
from rft.trainer.collect import Batch, Group
from rft.trainer.journal import Numbers
from rft.types import Trajectory


def describe(batch: Batch, tools: Sequence[str]) -> Numbers:
    """Describe the step's rollouts. Rollouts that are set aside, unscored or in replaced groups are
    counted, but they are in no mean. `tools`: the names of all tools. A step without a score has no
    means."""
    played = [one for group in batch.groups for one in group.scored]
    tried = batch.rows
    reasons = Counter(row.left_out for row in tried if row.left_out)
    return {
        "step": batch.step,
        "lag": batch.step - 1 - batch.policy_version,
        **_spread("reward", [one.reward for one in played]),
        **_mean("score", [one.grade.score for one in played]),
        **_components(played),
        **_mean("solved", [one.grade.solved for one in played], "share"),
        **_calls(played, tools),
        **_mean("tokens", [one.num_tokens for one in played]),
        **_mean("turns", [len(one.turns) for one in played]),
        **_mean("stop", [one.stop_reason == "completed" for one in played], "completed"),
        **_groups(batch),
        "samples/sampled": len(tried),
        "samples/unscored": sum(row.reward is None for row in tried),
        "alarm/count": len(batch.alarms),
        **{f"left_out/{reason}": count for reason, count in sorted(reasons.items())},
    }


@dataclass(slots=True)
class Watch:
    """Counts what may end the run; part of the checkpoint."""

    idle: int = 0
    worse: int = 0
    """The number of validations in a row that were no better."""
    best: float | None = None

    def step(self, section: config.Stop, metrics: Numbers) -> str:
        """Say why to stop now; empty to go on."""
        pulled = metrics.get("samples/kl_only", 0)
        self.idle = 0 if metrics.get("samples/trained", 0) > pulled else self.idle + 1
        if self.idle >= section.idle_steps:
            moved = "nothing but the KL has changed a weight" if pulled else "no weight has changed"
            return f"{moved} for {self.idle} steps: no group had anything to learn from"
        entropy = metrics.get("entropy")
        if entropy is not None and entropy < section.min_entropy:
            limit = f"train.stop.min_entropy is {section.min_entropy:g}"
            return f"the policy's entropy has collapsed to {entropy:.2g} nats per token ({limit})"
        return ""

    def validated(self, section: config.Stop, reward: float) -> tuple[bool, str]:
        """Return whether it is the best so far, and why to stop now."""
        if self.best is None or reward > self.best:
            self.best, self.worse = reward, 0
            return True, ""
        self.worse += 1
        if self.worse < (section.patience or math.inf):
            return False, ""
        return False, f"{self.worse} validations in a row were no better than {self.best:.3f}"

    def state(self) -> dict[str, Any]:
        return asdict(self)


def _spread(name: str, values: Iterable[float | None]) -> Numbers:
    """Return mean and percentiles; nothing when nothing was scored."""
    known = [value for value in values if value is not None]
    if not known:
        return {}
    cuts = {f"{name}/p{int(100 * q)}": stats.percentile(known, q) for q in (0.1, 0.5, 0.9)}
    return {f"{name}/mean": float(np.mean(known)), **cuts}


def _mean(name: str, values: Iterable[float | None], what: str = "mean") -> Numbers:
    known = [value for value in values if value is not None]
    return {f"{name}/{what}": float(np.mean(known))} if known else {}


def _components(played: Sequence[Trajectory]) -> Numbers:
    names = sorted({name for one in played for name in one.grade.components})
    found: Numbers = {}
    for name in names:
        found |= _spread(f"component/{name}", [one.grade.components.get(name) for one in played])
    return found


def _calls(played: Sequence[Trajectory], tools: Sequence[str]) -> Numbers:
    """Count calls of all tools together, and of each tool: there a rollout that never calls it
    counts as zero. Names that the policy made up are only in the sum."""
    if not played:
        return {}
    by_rollout = [Counter(call.name for turn in one.turns for call in turn.calls) for one in played]
    calls = {"tool_calls": [counts.total() for counts in by_rollout]}
    calls |= {f"tool_calls/{tool}": [counts[tool] for counts in by_rollout] for tool in tools}
    numbers = {"tool_calls/mean": float(np.mean(calls["tool_calls"]))}
    for name, counts in calls.items():
        numbers |= {f"{name}/p50": stats.percentile(counts, 0.5), f"{name}/p95": stats.percentile(counts, 0.95)}
    return numbers


def _groups(batch: Batch) -> Numbers:
    """Count groups, replaced ones included. A group with fewer than two scores cannot differ, which
    says nothing about the policy. If there are such groups, `groups/unscored` counts them."""
    given = [*batch.groups, *batch.replaced]
    num_unknown = sum(len(group.scored) < 2 for group in given)
    return {
        "groups/sampled": len(given),
        **({"groups/unscored": num_unknown} if num_unknown else {}),
        "groups/zero_variance": sum(len(group.scored) > 1 and not group.varies("outcome") for group in given),
        "groups/all_fail": sum(_all(group, False) for group in given),
        "groups/all_solved": sum(_all(group, True) for group in given),
        "groups/refilled": len(batch.replaced),
    }


def _all(group: Group, solved: bool) -> bool:
    return bool(group.scored) and all(one.grade.solved is solved for one in group.scored)
