"""A training run in numbers, and the signs that it should end.

`describe` is a step's rollouts, `learned` and `timed` what the optimizer and the clock add. Names
are stable: MLflow's curves and the report are drawn from them. Wall times have a file of their own
(`times.jsonl`), so that equal runs leave equal metrics.

A run stops by itself, with what it has learned, when going on would burn compute for nothing:

    idle        nothing was learned for `stop.idle_steps` steps: every group is all solved or all
                failed (a KL may have pulled, and teaches nothing)
    entropy     the policy has become sure of every token (`stop.min_entropy`): nothing is explored
                any more
    patience    `stop.patience` validations without a better one

Grading that fails is no reason to stop with a result: the circuit breaker
(rft/rollouts/recovery.py) pauses the stage, and ends it as a failure.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rft import config, files, stats
from rft.trainer.collect import Batch, Group
from rft.types import Trajectory

Numbers = dict[str, Any]


def describe(batch: Batch, tools: Sequence[str]) -> Numbers:
    """The step's rollouts. Those set aside, the unscored, and groups that others stand in for, are
    counted, and in no mean. `tools`: all that there are. A step in which nothing was scored has no
    means.
    """
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


def timed(step: int, total_s: float, phases: Mapping[str, float], tokens: int) -> Numbers:
    """Seconds of a step by phase. What no phase claims is `other`, so that they add up to the
    whole; below zero where sampling ran beside (lag)."""
    rest = total_s - sum(phases.values())
    seconds = {
        f"time/{name}_s": round(value, 4)
        for name, value in [*sorted(phases.items()), ("other", rest), ("step", total_s)]
    }
    return {
        "step": step,
        **seconds,
        "throughput/tokens_per_s": round(tokens / total_s, 1),
        "throughput/steps_per_hour": round(3600 / total_s, 1),
    }


@dataclass(slots=True)
class Watch:
    """Counts what may end the run; part of the checkpoint."""

    idle: int = 0
    worse: int = 0
    """Validations one after another that were no better."""
    best: float | None = None

    def step(self, section: config.Stop, metrics: Numbers) -> str:
        """Why to stop now; empty to go on."""
        pulled = metrics.get("samples/kl_only", 0)
        self.idle = 0 if metrics.get("samples/trained", 0) > pulled else self.idle + 1
        if self.idle >= section.idle_steps:
            moved = "nothing but the KL has changed a weight" if pulled else "no weight has changed"
            return f"{moved} for {self.idle} steps: no group had anything to learn from"
        entropy = metrics.get("entropy")
        if entropy is not None and entropy < section.min_entropy:
            return (
                f"the policy's entropy has collapsed to {entropy:.2g} nats a token (train.stop.min_entropy is "
                f"{section.min_entropy:g})"
            )
        return ""

    def validated(self, section: config.Stop, reward: float) -> tuple[bool, str]:
        """Is it the best so far, and why to stop now."""
        better = self.best is None or reward > self.best
        self.best, self.worse = (reward, 0) if better else (self.best, self.worse + 1)
        stop = (
            f"{self.worse} validations one after another were no better than {self.best:.3f}"
            if self.worse >= (section.patience or 1e9)
            else ""
        )
        return better, stop

    def state(self) -> dict[str, Any]:
        return asdict(self)


class Lines:
    """A file of JSON lines that grows by the step, and is cut back to a checkpoint."""

    def __init__(self, path: Path):
        self.path, self.rows = path, list[Numbers]()

    def add(self, row: Numbers) -> None:
        self.rows.append(row)
        with self.path.open("a") as handle:
            handle.write(json.dumps(row) + "\n")
            handle.flush()
            os.fsync(handle.fileno())  # a checkpoint says that it is there

    def back_to(self, step: int) -> None:
        """Whole lines up to the step; a kill may have cut the last. The old file stands until the
        new one is whole."""
        self.rows = [one for one in _whole(self.path) if one["step"] <= step]
        files.write_text(self.text(), self.path, durable=True)

    def text(self) -> str:
        return "".join(json.dumps(one) + "\n" for one in self.rows)


def _spread(name: str, values: Iterable[float | None]) -> Numbers:
    """None of them when nothing was scored."""
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
    """Of all tools, and tool by tool: a rollout that never calls one counts as zero there. Names
    that the policy made up are in the sum alone."""
    if not played:
        return {}
    by_rollout = [Counter(call.name for turn in one.turns for call in turn.calls) for one in played]
    numbers = {"tool_calls/mean": float(np.mean([sum(counts.values()) for counts in by_rollout]))}
    for name, values in [
        ("", [sum(one.values()) for one in by_rollout]),
        *((f"/{tool}", [one[tool] for one in by_rollout]) for tool in tools),
    ]:
        numbers |= {
            f"tool_calls{name}/p50": stats.percentile(values, 0.5),
            f"tool_calls{name}/p95": stats.percentile(values, 0.95),
        }
    return numbers


def _groups(batch: Batch) -> Numbers:
    """Before any were replaced: what the policy did with the examples it was given. A group of
    which fewer than two are scored cannot differ, and that says nothing of the policy: where there
    are any they have a number of their own.
    """
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


def _whole(path: Path) -> list[Numbers]:
    found: list[Numbers] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found
