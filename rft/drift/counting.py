"""Make partial profiles: what a part of a snapshot adds to the counts of the whole.

    partial(batches, plan)      one part, from its Arrow batches
    add(partial, batches, ..)   a further part
    partial.merge(other)        the sum of two partial profiles
    features(partial, ...)      the features of the sum

Each sum is exact (rft/drift/{bins,labels,sample}.py), so it does not matter how the rows were
split into batches and parts, nor which process counted which. Counts are kept per group of users
and per day, because noise is measured between these (rft/drift/owners.py).

Columns are counted by Arrow and NumPy. Only a recipe's own `features(messages)`, if it has one,
runs Python for every conversation.

Suffixes of arrays: R = groups and days, B = bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rft import recipe
from rft.drift import owners
from rft.drift.bins import LIMIT, Histogram, Moments
from rft.drift.features import Plan, Spec, names, specs
from rft.drift.labels import Labels, items
from rft.drift.owners import ROWS, Integers, Owners
from rft.drift.sample import Sample
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Feature
from rft.traffic.schema import OWN
from rft.traffic.texts import input_messages, messages_of


# -- one feature -----------------------------------------------------------------------------------
@dataclass(slots=True)
class Numbers:
    """Counts of numbers in fixed bins."""

    edges: tuple[float, ...]
    counts_RB: Integers = field(init=False)

    def __post_init__(self) -> None:
        self.counts_RB = np.zeros((ROWS, len(self.edges) + 1), np.int64)

    def add(self, numbers: NDArray[np.float64], row_owners: Owners) -> None:
        self.counts_RB += row_owners.count(np.searchsorted(self.edges, numbers), len(self.edges) + 1)

    def merge(self, other: Numbers) -> None:
        self.counts_RB += other.counts_RB

    def on_edges(self) -> tuple[list[float], Integers]:
        return list(self.edges), self.counts_RB


@dataclass(slots=True)
class Tally:
    """Counts of one feature. `n`: conversations with a value."""

    counts: Numbers | Histogram | Labels
    n: int = 0
    moments: Moments = field(default_factory=Moments)

    def add(self, spec: Spec, column: pa.Array, row_owners: Owners) -> None:
        column = spec.prepare(column)
        if column.null_count:
            present = column.is_valid()
            row_owners = row_owners.take(present.to_numpy(zero_copy_only=False))
            column = column.filter(present)
        if isinstance(self.counts, Labels):
            self.n += len(column)
            if pa.types.is_list(column.type):
                column, row_owners = items(column, row_owners)
            self.counts.add(column, row_owners, spec.name_of)
            return
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        usable = np.abs(numbers) < LIMIT  # False for NaN
        if not usable.all():
            numbers, row_owners = numbers[usable], row_owners.take(usable)
        self.n += len(numbers)
        self.moments.add(numbers)
        self.counts.add(numbers, row_owners)

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
            values, counts_RB = self.counts.on_values(spec.values)
            axis: dict[str, Any] = {"values": values}
        else:
            edges, counts_RB = self.counts.on_edges()
            axis = {"edges": edges, "mean": self.moments.mean, "sd": self.moments.sd}
        return bare.model_copy(update=axis | owners.fields(counts_RB))


def _empty(spec: Spec) -> Tally:
    if spec.form == "labels":
        return Tally(Labels())
    return Tally(Numbers(spec.edges) if spec.form == "fixed" else Histogram())


# -- all of them -----------------------------------------------------------------------------------
@dataclass(slots=True)
class Partial:
    """What some conversations add to a profile. `custom_features`: the recipe's own features."""

    sample: Sample
    num_conversations: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    custom_features: dict[str, Tally] = field(default_factory=dict)

    def merge(self, other: Partial) -> None:
        """Add the counts of other conversations."""
        self.num_conversations += other.num_conversations
        self.sample.merge(other.sample)
        for mine, theirs in ((self.tallies, other.tallies), (self.custom_features, other.custom_features)):
            for name, tally in theirs.items():
                if name in mine:
                    mine[name].merge(tally)
                else:
                    mine[name] = tally


def empty(plan: Plan) -> Partial:
    """Return the partial profile of no conversations."""
    return Partial(Sample(plan.text_sample), tallies={spec.name: _empty(spec) for spec in specs(plan)})


def partial(batches: Iterable[pa.RecordBatch], plan: Plan, part: int = 0) -> Partial:
    """Count one part. `part`: its number, which the sample uses to name its rows."""
    total = empty(plan)
    add(total, batches, plan, part)
    return total


def add(total: Partial, batches: Iterable[pa.RecordBatch], plan: Plan, part: int) -> None:
    """Count a further part. The result is the same as merging its partial profile, but faster: bins
    that fit the first part mostly fit the next."""
    counted_by = specs(plan)
    first_row = 0
    loaded = recipe.load(plan.recipe, plan.keys) if plan.recipe else None
    for batch in batches:
        row_owners = Owners.from_batch(batch)
        draw, pick = (batch.column(name).to_numpy() for name in ("draw", "pick"))
        total.sample.add(draw, pick, part, first_row)
        for spec in counted_by:
            total.tallies[spec.name].add(spec, batch.column(spec.column), row_owners)
        if loaded:
            _count_custom(total, batch.column("messages"), row_owners, loaded, plan)
        first_row += batch.num_rows
        total.num_conversations += batch.num_rows


def _count_custom(total: Partial, messages: pa.Array, row_owners: Owners, loaded: Recipe, plan: Plan) -> None:
    rows = [loaded.features(input_messages(messages_of(text))) for text in messages.to_pylist()]
    for name in sorted({name for row in rows for name in row}):
        if name in names(plan) or name.startswith(OWN):
            what = f"{loaded.folder}/examples.py: features() names a feature '{name}', which is one of rft's own"
            raise UserError(f"{what}. Use another name.")
        column = pa.array([_as_list(row.get(name)) for row in rows], pa.list_(pa.string()))
        tally = total.custom_features.setdefault(name, Tally(Labels()))
        tally.add(custom_spec(name), column, row_owners)


def custom_spec(name: str) -> Spec:
    """Return how a feature of the recipe is counted."""
    return Spec(name, "messages", "input", "total_variation", "labels")


def _as_list(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [value] if isinstance(value, str) else [str(item) for item in value]


def features(total: Partial, plan: Plan, sampled: dict[str, Feature]) -> dict[str, Feature]:
    """Return all features of a profile. `sampled`: those of the sample."""
    whole = {spec.name: total.tallies[spec.name].feature(spec, total.num_conversations) for spec in specs(plan)}
    custom_features = {
        name: tally.feature(custom_spec(name), total.num_conversations) for name, tally in total.custom_features.items()
    }
    first = {name: feature for name, feature in whole.items() if name == "input_words"}
    return first | sampled | dict(sorted(custom_features.items())) | whole


def merged(partials: Sequence[Partial] | Iterable[Partial], plan: Plan) -> Partial:
    """Return the sum of partial profiles."""
    total = empty(plan)
    for counted in partials:
        total.merge(counted)
    return total
