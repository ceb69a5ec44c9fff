"""The policy report: the base model, built and warm-started here, or a pointer to a given one."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added


class PolicyReport(Report):
    kind: Literal["embedded", "given", "served"]  # served: a chat endpoint's own, which we cannot verify
    model: str  # folder, relative to the repository, or hub id; of a served one the name at its endpoint
    sha256: str  # of a served one: over its address and name
    num_parameters: int
    demonstrations: int = 0
    left_out: int = 0  # demonstrations longer than warm_start.longest
    steps: int = 0
    final_loss: float | None = None
    losses: list[tuple[int, float]] = []
    revision: str | None = added(None)
    """The commit, of a given model of the hub."""
