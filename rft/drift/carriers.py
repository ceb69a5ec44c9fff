"""Find conversations that carry a drift, for a person to read.

For a number, they lie beyond the cut where the two distributions are furthest apart, on the side
where the window has more. For a category, they have the value whose share grew most; for the
vocabulary, a word whose share grew. The first ones in the log are shown, cut short. The rules of
`traffic.redact` were applied to them before; the values of secrets are struck out here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from rft import secrets
from rft.drift import distance, effects
from rft.drift.bins import on_common_edges
from rft.drift.distance import Axis
from rft.drift.features import Plan, Spec, specs
from rft.recipe import Recipe
from rft.reports import Against, Carrier, Feature, FeatureDrift, Profile
from rft.traffic.texts import BUCKETS, input_messages, user_text, word_hash, words

FEATURES = 6
"""Features with the largest drift whose carriers are shown."""
EACH = 2
MAX_CONVERSATIONS = 20_000
"""The most conversations that are searched for carriers, from the first one in the log."""
LONGEST = 240

Carries = Callable[[Mapping[str, Any]], str | None]
"""Takes a row of the snapshot and says in words what carries the drift; None if nothing does."""


def find(
    parts: Sequence[Path],
    statistics: Sequence[FeatureDrift],
    compared: Mapping[Against, Profile],
    current: Profile,
    plan: Plan,
    loaded: Recipe,
    bucket_words: Mapping[str, str],
) -> list[Carrier]:
    """Find up to EACH conversations for each of the features that moved most."""
    drifted = sorted((row for row in statistics if row.drifted), key=lambda row: -(row.effect or 0) / row.threshold)
    first = {row.feature: row for row in reversed(drifted)}
    named = {spec.name: spec for spec in specs(plan)}
    found: list[Carrier] = []
    for row in list({row.feature: first[row.feature] for row in drifted}.values())[:FEATURES]:
        before, now = compared[row.against].features[row.feature], current.features[row.feature]
        carries, columns = _test(row.feature, before, now, named.get(row.feature), loaded, bucket_words)
        if carries is not None:
            found += islice(_carriers(parts, row.feature, carries, columns), EACH)
    return found


def _carriers(parts: Sequence[Path], feature: str, carries: Carries, columns: list[str]) -> Iterator[Carrier]:
    for row in islice(_rows(parts, ["conversation_id", "messages", *columns]), MAX_CONVERSATIONS):
        what = carries(row)
        if what is not None:
            text = user_text(input_messages(json.loads(row["messages"])))
            says = secrets.redact(f"{what}: {' '.join(text.split())}")
            short = says if len(says) <= LONGEST else f"{says[:LONGEST]} ..."
            yield Carrier(feature=feature, conversation_id=row["conversation_id"], says=short)


def _rows(parts: Sequence[Path], columns: list[str]) -> Iterator[dict[str, Any]]:
    for path in parts:
        for batch in pq.ParquetFile(path).iter_batches(1024, columns=list(dict.fromkeys(columns))):
            yield from batch.to_pylist()


def _test(
    name: str, before: Feature, now: Feature, spec: Spec | None, loaded: Recipe, bucket_words: Mapping[str, str]
) -> tuple[Carries | None, list[str]]:
    """Return the test for a carrier, and the columns that it needs."""
    if before.kind != now.kind or now.kind in ("text", "embedding"):
        return None, []
    if now.kind == "numeric":
        return (None, []) if spec is None else (_beyond(*on_common_edges(before, now), spec), [spec.column])
    value = _grown(before, now)
    if value is None:
        return None, []
    bins = distance.axis(before, now)
    if name == "vocabulary":
        return _has_word(int(value), bucket_words.get(value, "")), []
    if spec is None:
        return _named_by(loaded, name, value, bins), []
    return _has_value(spec, value, bins), [spec.column]


def _beyond(before: Feature, now: Feature, spec: Spec) -> Carries | None:
    gap_B = np.cumsum(effects.shares(before.counts)) - np.cumsum(effects.shares(now.counts))
    if len(gap_B) < 2:
        return None
    cut = int(np.argmax(np.abs(gap_B[:-1])))
    edge, is_above = before.edges[cut], gap_B[cut] > 0

    def carries(row: Mapping[str, Any]) -> str | None:
        number = row[spec.column]
        return None if number is None or (number > edge) != is_above else f"{spec.name} {number:.4g}"

    return carries


def _grown(before: Feature, now: Feature) -> str | None:
    """Name the value, or bucket of values, whose share grew most."""
    old, new, values = distance.on_one_axis(before, now)
    grown = dict(zip(values, effects.shares(new.counts_B) - effects.shares(old.counts_B), strict=True))
    value = max(grown, key=lambda value: (grown[value], value), default=None)
    return value if value is not None and grown[value] > 0 else None


def _has_value(spec: Spec, value: str, bins: Axis) -> Carries:
    def carries(row: Mapping[str, Any]) -> str | None:
        found = row[spec.column]
        names = [spec.name_of(each) for each in (found if isinstance(found, list) else [found]) if each is not None]
        return _first(spec.name, names, value, bins)

    return carries


def _first(feature: str, names: Sequence[str], value: str, bins: Axis) -> str | None:
    return next((f"{feature} {name}" for name in names if bins.bin_name(name) == value), None)


def _has_word(bucket: int, word: str) -> Carries:
    def carries(row: Mapping[str, Any]) -> str | None:
        found = words(user_text(input_messages(json.loads(row["messages"]))))
        return f"word {word}" if any(word_hash(each) % BUCKETS == bucket for each in found) else None

    return carries


def _named_by(loaded: Recipe, name: str, value: str, bins: Axis) -> Carries:
    def carries(row: Mapping[str, Any]) -> str | None:
        found = loaded.features(input_messages(json.loads(row["messages"]))).get(name)
        names = [str(each) for each in (found if isinstance(found, list) else [found]) if each is not None]
        return _first(name, names, value, bins)

    return carries
