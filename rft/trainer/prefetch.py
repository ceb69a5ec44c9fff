"""Sampling while the learner learns, with a bounded lag.

    lag 0    sample, learn, sample, learn: strictly on-policy
    lag 1    the rollouts of step n + 1 are sampled while the learner learns from those of step n,
             so with weights that are one step old
    lag L    up to L batches wait, so none has weights more than L steps old

Weights change only between two batches (`between`), so one policy version samples a whole rollout.
The learner's weights are newer. Truncated importance sampling corrects this in the loss
(rft/algorithms/importance.py), and `mismatch_kl` shows it.

Here timing decides which weights sample a rollout. So equal runs need not give equal bytes, and
deterministic mode refuses `train.lag` (rft/rollouts/determinism.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from rft.trainer.collect import Batch


class Prefetcher:
    """Calls `collect(step)` for steps `done` + 1 to `last`, in order."""

    def __init__(self, collect: Callable[[int], Batch], lag: int, done: int, last: int):
        self._collect, self._lag, self._next, self._last = collect, lag, done + 1, last
        self._waiting: deque[Future[Batch]] = deque()
        self._pool = ThreadPoolExecutor(1, "sampling") if lag else None
        self.between = threading.RLock()
        """Held while a batch is sampled, and during any other change or use of the sampler."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            for batch in self._waiting:
                batch.cancel()
            self._pool.shutdown(wait=True)

    def next(self) -> Batch:
        """Return the next step's batch. With a lag, the next batches are being sampled by then."""
        if self._pool is None:
            self._next += 1
            return self._collect(self._next - 1)
        while len(self._waiting) <= self._lag and self._next <= self._last:
            self._waiting.append(self._pool.submit(self._collect_alone, self._next))
            self._next += 1
        return self._waiting.popleft().result()

    def _collect_alone(self, step: int) -> Batch:
        with self.between:
            return self._collect(step)
