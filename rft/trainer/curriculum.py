"""Chooses the examples of a step, as a function of seed, place and what was seen so far.

    epochs      all examples in a shuffled order, again and again
    pass_rate   a self-curriculum: examples are in pools by their running pass rate, and those that
                teach something are taken more often

        pool       pass rate        weight
        unseen     -                1
        mixed      in between       1
        solved     0.95 and above   solved_share
        failed     0.05 and below   failed_share

A group that always succeeds or always fails has no variance, so nothing is learned from it; but the
policy changes, so no pool is closed. A pass rate forgets: a visit that is `half_life` visits ago
counts half.

`state()` is part of the checkpoint's manifest: a place, and two numbers per example seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from rft import config
from rft.errors import UserError

SOLVED, FAILED = 0.95, 0.05


class Curriculum:
    def __init__(self, ids: Sequence[str], section: config.Curriculum, seed: int) -> None:
        self._ids, self._section, self._seed = list(ids), section, seed
        self._place = 0
        """Examples taken so far."""
        self._seen: dict[str, tuple[float, float]] = {}
        """By example: sum of pass rates and number of visits, both fading."""

    def take(self, count: int, taken: Collection[int] = ()) -> list[int]:
        """Return indexes of the next examples. With pass rates, no example is in `taken` or comes
        twice while there are others."""
        if self._section.kind == "epochs":
            found = [self._at(self._place + n) for n in range(count)]
        else:
            found = self._weighted(count, set(taken))
        self._place += count
        return found

    def saw(self, example_id: str, solved_G: Sequence[bool]) -> None:
        """Note what a group did. An empty group says nothing."""
        if not solved_G:
            return
        keep = 0.5 ** (1 / self._section.half_life)
        total, visits = self._seen.get(example_id, (0.0, 0.0))
        self._seen[example_id] = (keep * total + sum(solved_G) / len(solved_G), keep * visits + 1)

    def pass_rate(self, example_id: str) -> float | None:
        total, visits = self._seen.get(example_id, (0.0, 0.0))
        return total / visits if visits else None

    def is_blind(self, example_id: str) -> bool:
        """Tell whether this example was taken without regard to what is known of it."""
        return self._section.kind == "epochs" or example_id not in self._seen

    def state(self) -> dict[str, Any]:
        return {"place": self._place, "seen": {name: list(numbers) for name, numbers in sorted(self._seen.items())}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises UserError for a state of other examples."""
        if unknown := sorted(set(state["seen"]) - set(self._ids)):
            what = f"the curriculum knows example {unknown[0]!r}, which is not in data/examples"
            raise UserError(f"{what}: it belongs to other examples.")
        self._place = state["place"]
        self._seen = {name: (total, visits) for name, (total, visits) in state["seen"].items()}

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, len(self._ids))
        return int(np.random.default_rng([self._seed, 3, epoch]).permutation(len(self._ids))[place])

    def _weighted(self, count: int, taken: set[int]) -> list[int]:
        """Draw without replacement: the smallest of exponential waiting times whose rates are the
        weights (Efraimidis and Spirakis 2006)."""
        solved, failed = self._section.solved_share, self._section.failed_share
        weights = {"unseen": 1.0, "mixed": 1.0, "solved": solved, "failed": failed}
        rates = np.array([weights[_pool(self.pass_rate(name))] for name in self._ids])
        waits = np.random.default_rng([self._seed, 5, self._place]).exponential(size=len(rates)) / rates
        waits[list(taken)] += waits.max()
        order = np.argsort(waits, kind="stable")
        return [int(order[n % len(order)]) for n in range(count)]


def _pool(rate: float | None) -> str:
    if rate is None:
        return "unseen"
    if rate >= SOLVED:
        return "solved"
    return "failed" if rate <= FAILED else "mixed"
