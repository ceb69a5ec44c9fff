"""Show the progress of a batch of rollouts: a step of a large model samples for minutes.

    [train] 12/80 steps, reward 0.41; sampling: 34 of 64 rollouts, 210 turns, 820 tokens/s

Behind the barrier (deterministic mode) all rollouts of a batch end at about the same time, so turns
are counted too. Tokens count when their turn has ended. Rollouts that are played again, because
they had no score, are counted separately.
"""

from __future__ import annotations

import time

from rft import progress
from rft.formatting import counted


class Pace:
    """Is told of each turn and of each played rollout. `of`: the number of rollouts in the
    batch."""

    def __init__(self, stage: str, of: int):
        self._stage, self._of, self._played, self._again = stage, of, 0, 0
        self._turns = self._tokens = 0
        self._began = time.monotonic()

    def __call__(self, tokens: int, played: bool) -> None:
        self._played += played
        self._tell(tokens, played)

    def again(self, tokens: int, played: bool) -> None:
        """Count turns, or the end, of a rollout that is played once more."""
        self._again += played
        self._tell(tokens, played)

    def _tell(self, tokens: int, played: bool) -> None:
        self._turns += not played
        self._tokens += tokens
        seconds = max(time.monotonic() - self._began, 1e-3)
        rate = f", {self._tokens / seconds:,.0f} tokens/s" if self._tokens else ""
        again = f" and {self._again:,} played again" if self._again else ""
        message = f"sampling: {self._played} of {counted(self._of, 'rollout')}{again}, {counted(self._turns, 'turn')}"
        progress.within(self._stage, message + rate)
