"""A team of one process, with everything that the learner asks of a team.

A team of several processes is in rft/trainer/distributed.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch


class Processes:
    """A team of one process, whose sums are its own."""

    rank, size = 0, 1
    shards = False
    """Whether each process holds a part of the weights (rft/trainer/sharding.py)."""

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def order(self, what: str, *values: Any) -> None:
        """Make followers do the same."""

    def same(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give all processes the leader's values."""

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum over all processes, in place."""

    def gather(self, mine: Any) -> list[Any]:
        """Return the values of all processes, at the leader."""
        return [mine]

    def most(self, mine: int) -> int:
        """Return the largest value of all processes, everywhere."""
        return mine

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Divide the threads while each computes its share."""
        yield
