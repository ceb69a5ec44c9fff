"""Asynchronous sampling with a bounded lag: rollouts of the next steps are sampled while the
learner learns.

    lag 0    sample, learn, sample, learn: strictly on-policy
    lag 1    the rollouts of step n + 1 are sampled while the learner learns from those of step n:
             by weights one step old
    lag L    up to L batches wait, so none is by weights more than L steps old

Weights change only between two batches (`between`): a rollout is by one policy version. The rest,
that the weights which learn are newer than those which sampled, is what the loss corrects by
truncated importance sampling (rft/algorithms), and what `mismatch_kl` shows.

Which weights sampled a rollout depends on the clock here: asynchronous runs make no claim of equal
bytes, and deterministic mode refuses `train.lag` (rft/rollouts/determinism.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from rft.trainer.collect import Batch


class Prefetcher:
    """`collect(step)` for steps `done` + 1 to `last`, in order."""

    def __init__(self, collect: Callable[[int], Batch], lag: int, done: int, last: int):
        self._collect, self._lag, self._next, self._last = collect, lag, done + 1, last
        self._waiting: deque[Future[Batch]] = deque()
        self._pool = ThreadPoolExecutor(1, "sampling") if lag else None
        self.between = threading.RLock()
        """Held while a batch is sampled, and by whoever changes the sampler's weights or samples
        something else."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            for one in self._waiting:
                one.cancel()
            self._pool.shutdown(wait=True)

    def next(self) -> Batch:
        """The next step's batch. With a lag, those after it are under way when this returns."""
        if self._pool is None:
            self._next += 1
            return self._collect(self._next - 1)
        while len(self._waiting) <= self._lag and self._next <= self._last:
            self._waiting.append(self._pool.submit(self._one, self._next))
            self._next += 1
        return self._waiting.popleft().result()

    def _one(self, step: int) -> Batch:
        with self.between:
            return self._collect(step)
