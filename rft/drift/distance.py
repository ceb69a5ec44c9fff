"""Measure how far apart the two sides of a feature are, and draw the same by chance.

    wasserstein_sd    numbers: how far the values moved, in standard deviations of the reference
    psi               numbers in ten quantile bins of the reference
    total_variation   categories. A value that only one side names is counted by the hash of its
                      name; values that are too rare for their noise to be measured are joined
    classifier_auc    text: rft/drift/text.py
    mmd               embeddings: rft/drift/discrepancy.py

The first three use bins that both sides have (`on_one_axis`), and chance is drawn by group of users
(rft/drift/noise.py). The last two look at a sample of one conversation per user.

Arrays: D = draws, B = bins, N = conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rft.drift import discrepancy, effects, noise, shown, text
from rft.drift.effects import Floats
from rft.drift.labels import OTHER, bucket, is_bucket
from rft.drift.noise import Side
from rft.drift.shown import Names
from rft.errors import UserError
from rft.reports import Bar, Feature

NOTED = 1.5
"""If its days make the noise so many times as wide, the detail says so. Where days do not differ,
this factor seldom reaches 1.2."""


@dataclass(frozen=True, slots=True)
class Distance:
    """An effect. `drawn(num)` draws the effects of `num` pairs of windows that differ by chance
    alone."""

    effect: float
    drawn: Callable[[int], Floats]
    detail: str = ""
    bars: tuple[Bar, ...] = ()


def compared(before: Feature, now: Feature, names: Names, seed: int) -> Distance:
    """Compare the two sides of a feature."""
    if now.kind == "text":
        return _by_text(before, now, seed)
    if now.kind == "embedding":
        return _by_embedding(before, now, seed)
    return _by_counts(before, now, names, seed)


def bars(before: Feature, now: Feature, names: Names) -> list[Bar]:
    """Show both sides of a feature, at most a dozen bars."""
    if now.kind in ("text", "embedding"):
        return []
    reference, current, values = on_one_axis(before, now)
    if now.kind == "numeric":
        return shown.number_bars(now.edges, reference.counts_B, current.counts_B)
    return shown.category_bars(values, reference.counts_B, current.counts_B, names)


# -- counts ----------------------------------------------------------------------------------------
def _by_counts(before: Feature, now: Feature, names: Names, seed: int) -> Distance:
    reference, current, values = on_one_axis(before, now)
    rng = np.random.default_rng(seed)
    if now.kind == "numeric":
        detail = f"{shown.summary(before, names)}; now {shown.summary(now, names)}"
    else:
        detail = shown.moved(values, reference.counts_B, current.counts_B, names)
    if now.statistic == "wasserstein_sd":
        found = _wasserstein(now.edges, reference, current, rng)
    elif now.statistic == "psi":
        found = _psi(reference, current, rng)
    else:
        found = _total_variation(reference, current, values.index(OTHER) if OTHER in values else None, rng)
    if values == [OTHER]:
        detail = "neither side names a value that the other one could have: nothing can be told. Profile both again"
    details = [detail, found.detail]
    without = [side for side, feature in (("reference", before), ("window", now)) if not feature.cells]
    if without:
        details.append(f"the profile of the {' and the '.join(without)} has no counts per user")
    if (factor := noise.day_factor(reference)) >= NOTED:
        details.append(f"the reference's days differ: chance reaches {factor:.1f} times as far as between its users")
    return Distance(found.effect, found.drawn, "; ".join(filter(None, details)), tuple(bars(before, now, names)))


def _wasserstein(edges: Sequence[float], reference: Side, current: Side, rng: np.random.Generator) -> Distance:
    places_B = effects.positions(edges)
    both_B = reference.counts_B + current.counts_B
    scale = effects.spread(reference.counts_B, places_B) or effects.spread(both_B, places_B) or 1.0
    width_B = np.diff(places_B) / scale

    def drawn(num: int) -> Floats:
        reference_DB, current_DB = noise.null_draws(reference, current, num, rng, cumulative=True)
        return np.abs(reference_DB - current_DB)[:, :-1] @ width_B

    effect = effects.wasserstein(reference.counts_B, current.counts_B, places_B) / scale
    return Distance(float(effect), drawn)


def _psi(reference: Side, current: Side, rng: np.random.Generator) -> Distance:
    bin_B = effects.equal_bins(reference.counts_B, effects.PSI_BINS)
    reference, current = reference.joined(bin_B), current.joined(bin_B)

    def drawn(num: int) -> Floats:
        reference_DB, current_DB = noise.null_draws(reference, current, num, rng)
        return effects.psi(reference_DB * reference.total, current_DB * current.total)

    return Distance(float(effects.psi(reference.counts_B, current.counts_B)), drawn)


def _total_variation(reference: Side, current: Side, rest: int | None, rng: np.random.Generator) -> Distance:
    bin_B = noise.dense_bins(reference, current, rest)
    reference, current = reference.joined(bin_B), current.joined(bin_B)

    def drawn(num: int) -> Floats:
        reference_DB, current_DB = noise.null_draws(reference, current, num, rng)
        return 0.5 * np.abs(reference_DB - current_DB).sum(axis=1)

    held_B = np.bincount(bin_B)
    num_joined = int(held_B[held_B > 1].sum())
    detail = f"{num_joined} rare values are counted in {np.count_nonzero(held_B > 1)}" if num_joined else ""
    return Distance(float(effects.total_variation(reference.counts_B, current.counts_B)), drawn, detail)


@dataclass(frozen=True, slots=True)
class Axis:
    """The bins on which two categories can be compared: one for each value in `alone`, and shared
    bins for the others."""

    alone: frozenset[str]
    has_buckets: bool

    def bin_name(self, value: str) -> str:
        """Name the bin of a value."""
        if value in self.alone:
            return value
        if not self.has_buckets:
            return OTHER
        return value if is_bucket(value) else bucket(value)


def axis(before: Feature, now: Feature) -> Axis:
    """Find the bins that both sides have.

    A value that one side names gets its own bin if the other side names it too, or has named every
    value that it counted. Otherwise both sides count it in its bucket, or in OTHER where a profile
    of an earlier version did so.
    """
    counts = [dict(zip(side.values, side.counts, strict=True)) for side in (before, now)]
    named = [frozenset(value for value in side if value != OTHER and not is_bucket(value)) for side in counts]
    nameless = [any(side[value] for value in side.keys() - names) for side, names in zip(counts, named, strict=True)]
    alone = named[0] & named[1]
    alone |= frozenset() if nameless[1] else named[0] - named[1]
    alone |= frozenset() if nameless[0] else named[1] - named[0]
    return Axis(alone, has_buckets=not any(side.get(OTHER) for side in counts))


def on_one_axis(before: Feature, now: Feature) -> tuple[Side, Side, list[str]]:
    """Return both sides on the same bins, and the values of these bins."""
    if before.kind == "numeric":
        return noise.side(before), noise.side(now), []
    bins = axis(before, now)
    named = {
        bins.bin_name(value) for side in (before, now) for value, n in zip(side.values, side.counts, strict=True) if n
    }
    values = sorted(named | bins.alone, key=lambda value: (value == OTHER, value)) or [OTHER]
    place = {value: n for n, value in enumerate(values)}
    sides: list[Side] = []
    for feature in (before, now):
        # a value without counts may have no bin
        bin_B = np.array([place.get(bins.bin_name(value), len(values) - 1) for value in feature.values], dtype=np.int64)
        sides.append(noise.side(feature).placed(bin_B, len(values)))
    return sides[0], sides[1], values


# -- samples ---------------------------------------------------------------------------------------
def _by_text(before: Feature, now: Feature, seed: int) -> Distance:
    sides = [text.chosen(side.sample, seed + n, text.MOST_ROWS) for n, side in enumerate((before, now))]
    told = text.tell_apart(text.matrix_NB([*sides[0], *sides[1]]), _labels(sides), seed)
    detail = (
        f"a classifier tells the windows apart with AUC {told.auc:.2f} (95 % interval {told.low:.2f} to "
        f"{told.high:.2f}), on {len(sides[0])} conversations of the reference and {len(sides[1])} of the window"
    )
    return Distance(told.auc, told.shuffled, detail)


def _by_embedding(before: Feature, now: Feature, seed: int) -> Distance:
    sides = [text.chosen(side.sample, seed + n, discrepancy.MOST_ROWS) for n, side in enumerate((before, now))]
    rows = [discrepancy.rows_of(side) for side in sides]
    if rows[0].shape[1] != rows[1].shape[1]:
        what = f"embeddings of {rows[0].shape[1]} and {rows[1].shape[1]} numbers, both by {now.model}"
        raise UserError(f"{what}. Profile the reference again.")
    effect, shuffled = discrepancy.discrepancy(np.concatenate(rows), _labels(sides), seed)
    detail = f"maximum mean discrepancy of {len(sides[0])} and {len(sides[1])} embeddings by {now.model}"
    return Distance(effect, shuffled, detail)


def _labels(sides: Sequence[Sequence[str]]) -> Any:
    return np.repeat([0.0, 1.0], [len(side) for side in sides])
