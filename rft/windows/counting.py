"""Partial profiles: what a part of a snapshot adds to the counts of the whole.

    partial(batches, plan)      one part, from its Arrow batches
    add(partial, batches, ..)   a further one
    partial.merge(other)        the sum of two
    features(partial, ...)      what the sum says

Each sum is exact (rft/windows/{bins,labels,sample}.py), so it does not matter how the rows were
split into batches and parts, nor which process counted which. Counts are kept per group of units,
of which there are 256, because noise is measured between units (rft/snapshots/schema.py).

Columns are counted by Arrow and NumPy. Only a recipe's own `features(messages)` is Python for every
conversation, and runs only for a recipe that has one.

Suffixes of arrays: G = groups, B = bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rft import recipe
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Feature
from rft.snapshots.schema import GROUPS, OWN
from rft.windows.bins import LIMIT, Histogram, Moments
from rft.windows.features import Plan, Spec, names, specs
from rft.windows.labels import Labels, items
from rft.windows.sample import Sample
from rft.windows.words import input_messages, messages_of

Integers = NDArray[np.int64]


# -- one feature -----------------------------------------------------------------------------------
@dataclass(slots=True)
class Numbers:
    """Counts of numbers in fixed bins."""

    edges: tuple[float, ...]
    counts_GB: Integers = field(init=False)

    def __post_init__(self) -> None:
        self.counts_GB = np.zeros((GROUPS, len(self.edges) + 1), np.int64)

    def add(self, numbers: NDArray[np.float64], groups: Integers) -> None:
        width = len(self.edges) + 1
        place = groups * width + np.searchsorted(self.edges, numbers)
        self.counts_GB += np.bincount(place, minlength=GROUPS * width).reshape(GROUPS, width)

    def merge(self, other: Numbers) -> None:
        self.counts_GB += other.counts_GB

    def on_edges(self) -> tuple[list[float], Integers]:
        return list(self.edges), self.counts_GB


@dataclass(slots=True)
class Tally:
    """Counts of one feature. `n`: conversations with a value."""

    counts: Numbers | Histogram | Labels
    n: int = 0
    moments: Moments = field(default_factory=Moments)

    def add(self, spec: Spec, column: pa.Array, groups: Integers) -> None:
        column = spec.prepare(column)
        if column.null_count:
            present = column.is_valid()
            groups = groups[present.to_numpy(zero_copy_only=False)]
            column = column.filter(present)
        if isinstance(self.counts, Labels):
            self.n += len(column)
            if pa.types.is_list(column.type):
                column, groups = items(column, groups)
            self.counts.add(column, groups, spec.name_of)
            return
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        usable = np.abs(numbers) < LIMIT  # False for NaN
        if not usable.all():
            numbers, groups = numbers[usable], groups[usable]
        self.n += len(numbers)
        self.moments.add(numbers)
        self.counts.add(numbers, groups)

    def merge(self, other: Tally) -> None:
        self.n += other.n
        self.moments.merge(other.moments)
        assert type(self.counts) is type(other.counts)
        self.counts.merge(other.counts)  # pyright: ignore[reportArgumentType]

    def feature(self, spec: Spec, num_conversations: int) -> Feature:
        bare = Feature(
            kind="category" if isinstance(self.counts, Labels) else "numeric",
            group=spec.group,
            statistic=spec.statistic,
            n=self.n,
            nulls=num_conversations - self.n,
        )
        if isinstance(self.counts, Labels):
            values, counts_GB = self.counts.on_values(spec.values)
            axis: dict[str, Any] = {"values": values}
        else:
            edges, counts_GB = self.counts.on_edges()
            axis = {"edges": edges, "mean": self.moments.mean, "sd": self.moments.sd}
        return bare.model_copy(update=axis | counted(counts_GB))


def counted(counts_GB: Integers) -> dict[str, Any]:
    """Return the fields `counts` and `cells` of a feature."""
    group_of, bin_of = np.nonzero(counts_GB)
    pairs = np.stack([bin_of, counts_GB[group_of, bin_of]], axis=1)
    ends = np.searchsorted(group_of, np.arange(1, GROUPS))
    cells = [part.ravel().tolist() for part in np.split(pairs, ends)]
    return {"counts": counts_GB.sum(axis=0).tolist(), "cells": cells}


def _empty(spec: Spec) -> Tally:
    if spec.form == "labels":
        return Tally(Labels())
    return Tally(Numbers(spec.edges) if spec.form == "fixed" else Histogram())


# -- all of them -----------------------------------------------------------------------------------
@dataclass(slots=True)
class Partial:
    """What some conversations add to a profile. `named`: the recipe's own features."""

    sample: Sample
    num_conversations: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    named: dict[str, Tally] = field(default_factory=dict)

    def merge(self, other: Partial) -> None:
        """Add the counts of other conversations."""
        self.num_conversations += other.num_conversations
        self.sample.merge(other.sample)
        for mine, theirs in ((self.tallies, other.tallies), (self.named, other.named)):
            for name, tally in theirs.items():
                if name in mine:
                    mine[name].merge(tally)
                else:
                    mine[name] = tally


def empty(plan: Plan) -> Partial:
    """Return the partial profile of no conversations."""
    return Partial(Sample(plan.text_sample), tallies={spec.name: _empty(spec) for spec in specs(plan)})


def partial(batches: Iterable[pa.RecordBatch], plan: Plan, part: int = 0) -> Partial:
    """Count one part. `part`: its number, by which the sample names its rows."""
    found = empty(plan)
    add(found, batches, plan, part)
    return found


def add(found: Partial, batches: Iterable[pa.RecordBatch], plan: Plan, part: int) -> None:
    """Count a further part. The result is that of merging its partial, and sooner there: bins that
    fit the first part mostly fit the next."""
    counted_by = specs(plan)
    first_row = 0
    loaded = recipe.load(plan.recipe, plan.keys) if plan.recipe else None
    for batch in batches:
        groups = batch.column("group").to_numpy().astype(np.int64)
        draw, pick = (batch.column(name).to_numpy() for name in ("draw", "pick"))
        found.sample.add(draw, pick, part, first_row)
        for spec in counted_by:
            found.tallies[spec.name].add(spec, batch.column(spec.column), groups)
        if loaded:
            _count_named(found, batch.column("messages"), groups, loaded, plan)
        first_row += batch.num_rows
        found.num_conversations += batch.num_rows


def _count_named(found: Partial, messages: pa.Array, groups: Integers, loaded: Recipe, plan: Plan) -> None:
    rows = [loaded.features(input_messages(messages_of(text))) for text in messages.to_pylist()]
    for name in sorted({name for row in rows for name in row}):
        if name in names(plan) or name.startswith(OWN):
            what = f"{loaded.folder}/examples.py: features() names a feature '{name}', which is one of rft's own"
            raise UserError(f"{what}. Use another name.")
        column = pa.array([_as_list(row.get(name)) for row in rows], pa.list_(pa.string()))
        tally = found.named.setdefault(name, Tally(Labels()))
        tally.add(named_spec(name), column, groups)


def named_spec(name: str) -> Spec:
    """Return how a feature of the recipe is counted."""
    return Spec(name, "messages", "input", "total_variation", "labels")


def _as_list(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [value] if isinstance(value, str) else [str(item) for item in value]


def features(found: Partial, plan: Plan, sampled: dict[str, Feature]) -> dict[str, Feature]:
    """Return all features of a profile. `sampled`: those of the sample."""
    whole = {spec.name: found.tallies[spec.name].feature(spec, found.num_conversations) for spec in specs(plan)}
    named = {name: tally.feature(named_spec(name), found.num_conversations) for name, tally in found.named.items()}
    first = {name: feature for name, feature in whole.items() if name == "input_words"}
    return first | sampled | dict(sorted(named.items())) | whole


def merged(partials: Sequence[Partial] | Iterable[Partial], plan: Plan) -> Partial:
    """Return the sum of partial profiles."""
    total = empty(plan)
    for found in partials:
        total.merge(found)
    return total
