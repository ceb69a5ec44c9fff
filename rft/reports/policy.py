"""The policy report: the base model, built or warm-started here, or a pointer to a given one."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added


class PolicyReport(Report):
    kind: Literal["embedded", "warm_started", "given", "served"]
    """embedded: the run built and warm-started it. warm_started: the run warm-started a given
    model. given: a model as it is. served: a chat endpoint's own model, which we cannot verify."""
    model: str  # folder, relative to the repository, or hub id; of a served one the name at its endpoint
    sha256: str  # of a served one: over its address and name
    num_parameters: int
    demonstrations: int = 0
    left_out: int = 0  # demonstrations longer than warm_start.longest
    steps: int = 0
    final_loss: float | None = None
    losses: list[tuple[int, float]] = []
    revision: str | None = added(None)
    """The commit of a given model from the hub."""
    base: str = added("")  # of a warm-started one: the given model that it was made of, a folder or hub id
    base_sha256: str = added("")
    weights: str = added("")  # of a warm-started one: full or lora, which was then merged
    threads: int | None = added(None)
    """How many threads computed a model that was made here. They affect the last digits."""

    @property
    def is_made_here(self) -> bool:
        """Whether the run itself made the model, so that its weights are among the run's files."""
        return self.kind in ("embedded", "warm_started")
