"""The train report: what training made, and from how many rollouts."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added


class Fall(Report):
    """Training went back because the policy had collapsed (rft/trainer/collapse.py)."""

    step: int
    """The last step before it went back."""
    reason: str
    back_to: int
    """The step whose weights it restored; 0: the weights that training started from."""
    lr: float
    """The peak learning rate from then on."""


class TrainReport(Report):
    trained: bool
    reason: str
    weights: Literal["lora", "full", "none"]
    path: str | None = None
    sha256: str | None = None
    algorithm: str = ""
    steps: int = 0
    group_size: int = 0  # rollouts per example: train.group_size x train.compute_multiplier
    kept_step: int = 0  # whose weights these are
    rollouts: int = 0
    left_out: dict[str, int] = {}  # reason -> rollouts sampled but not trained on
    alarms: int = 0  # findings that failures depend on what the policy does (rft/grading/alarm.py)
    curve: list[tuple[int, float]] = []  # step, mean reward
    weight_change: float = 0.0  # L2 norm over all trained parameters
    source: str = added("")  # of supervised training: demonstrations, traffic or rollouts
    imitated: int = added(0)  # dialogues that were there to be imitated
    not_imitated: dict[str, int] = added({})  # reason -> dialogues of the source that were left out
    falls: list[Fall] = added([])
    collapsed: str = added("")  # what fell after training had gone back once: there are no weights, and no look
    lr: float | None = added(None)  # the peak learning rate that it started with
    warm_start_steps: int = added(0)  # of train.when_not_ready, before the first rollout
