"""Which examples a step takes, as a function of seed, place and what was seen so far.

    epochs      all examples in a shuffled order, again and again
    pass_rate   a self-curriculum: examples lie in pools by their running pass rate, and those from
                which there is something to learn are taken more often

        pool       pass rate        weight
        unseen     -                1
        mixed      in between       1
        solved     0.95 and above   solved_share
        failed     0.05 and below   failed_share

A group that always succeeds or always fails has no variance, so nothing is learned from it; but the
policy changes, so no pool is closed. A pass rate forgets: `half_life` visits ago counts half.

The whole state is `state()`: a place, and with pass rates two numbers an example. It is part of the
checkpoint's manifest.
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
        """Example -> (sum of pass rates, number of visits), both fading."""

    def take(self, count: int, taken: Collection[int] = ()) -> list[int]:
        """Indexes of the next examples. With pass rates none is in `taken` or comes twice, as long
        as there are others."""
        if self._section.kind == "epochs":
            found = [self._at(self._place + n) for n in range(count)]
        else:
            found = self._weighted(count, set(taken))
        self._place += count
        return found

    def saw(self, example_id: str, solved_G: Sequence[bool]) -> None:
        """What a group did. An empty group says nothing."""
        if not solved_G:
            return
        keep = 0.5 ** (1 / self._section.half_life)
        total, visits = self._seen.get(example_id, (0.0, 0.0))
        self._seen[example_id] = (keep * total + sum(solved_G) / len(solved_G), keep * visits + 1)

    def pass_rate(self, example_id: str) -> float | None:
        total, visits = self._seen.get(example_id, (0.0, 0.0))
        return total / visits if visits else None

    def state(self) -> dict[str, Any]:
        return {"place": self._place, "seen": {one: list(numbers) for one, numbers in sorted(self._seen.items())}}

    def load(self, state: dict[str, Any]) -> None:
        """Raises UserError for a state of other examples."""
        if unknown := sorted(set(state["seen"]) - set(self._ids)):
            raise UserError(
                f"the curriculum knows example {unknown[0]!r}, which is not in data/examples: it belongs to other "
                "examples."
            )
        self._place = state["place"]
        self._seen = {one: (total, visits) for one, (total, visits) in state["seen"].items()}

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, len(self._ids))
        return int(np.random.default_rng([self._seed, 3, epoch]).permutation(len(self._ids))[place])

    def _weighted(self, count: int, taken: set[int]) -> list[int]:
        """Without replacement: the smallest of exponential waiting times whose rates are the
        weights (Efraimidis and Spirakis 2006)."""
        weights = {
            "unseen": 1.0,
            "mixed": 1.0,
            "solved": self._section.solved_share,
            "failed": self._section.failed_share,
        }
        rates = np.array([weights[_pool(self.pass_rate(one))] for one in self._ids])
        waits = np.random.default_rng([self._seed, 5, self._place]).exponential(size=len(rates)) / rates
        waits[list(taken)] += waits.max()
        order = np.argsort(waits, kind="stable")
        return [int(order[n % len(order)]) for n in range(count)]


def _pool(rate: float | None) -> str:
    if rate is None:
        return "unseen"
    return "solved" if rate >= SOLVED else "failed" if rate <= FAILED else "mixed"
