"""Deterministic mode: equal inputs give equal bytes.

`rollout.deterministic: null` means yes if this process samples on a CPU, and no if a GPU or a
server samples. Deterministic mode refuses:

    train.lag above 0    the clock would decide which weights sample a rollout
    a latency budget     a reward would depend on the clock (rft/grading/budget.py)
"""

from __future__ import annotations

from collections.abc import Iterator

from rft import config
from rft.errors import ConfigError
from rft.grading import budget


def holds(params: config.Params) -> bool:
    if params.rollout.deterministic is not None:
        return params.rollout.deterministic
    return params.policy.server is None and not _on_gpu(params.policy)


def contradictions(params: config.Params) -> Iterator[tuple[str, str]]:
    """Yield (what, remedy) for each setting that this run's mode cannot honor."""
    if (lag := params.train.lag) and holds(params):
        what = f"train.lag = {lag} samples ahead of the learner, and in deterministic mode no rollout may depend on"
        remedy = "Set rollout.deterministic: false and give up equal bytes, or set train.lag: 0."
        yield f"{what} the clock", remedy
    yield from budget.contradictions(params, holds(params))


def check(params: config.Params) -> None:
    """Check for the stage that trains. Raises ConfigError."""
    _refuse(contradictions(params))


def check_rollouts(params: config.Params) -> None:
    """Check for any stage with rollouts. Raises ConfigError."""
    _refuse(budget.contradictions(params, holds(params)))


def _refuse(found: Iterator[tuple[str, str]]) -> None:
    if problems := [f"params.yaml: {what}. {remedy}" for what, remedy in found]:
        raise ConfigError("\n".join(problems))


def _on_gpu(section: config.Policy) -> bool:
    if section.device != "auto":
        return section.device == "cuda"
    import torch

    return torch.cuda.is_available()
