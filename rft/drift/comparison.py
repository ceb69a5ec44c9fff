"""Compare two profiles, feature by feature, and decide which features drifted.

Each feature gets an *effect* (how far apart the two sides are: rft/drift/distance.py) and a
*p-value* (whether chance could have done it: rft/drift/noise.py). Drift needs both: with a million
rows every difference is significant, and with fifty every difference looks large. A feature drifted
when

    q < level            q: its p-value after Benjamini-Hochberg over all tests of a window, for all
                         references together; level: drift.alpha, or what
                         drift.false_alarms_per_year asks for
    effect > threshold   the configured threshold or, if larger, the noise: the effect that chance
                         alone exceeds in a share `level` of windows of these sizes and these users
    enough               at least drift.min_conversations with a value, and drift.min_units groups
                         of users, on both sides

The noise is not a second test: q is never below p, so an effect that passes the first line exceeds
the noise. It is there for the reader: the threshold shows how large an effect had to be.

    compare, compare_all    rows without q-values: against one reference, against several
    control                 q-values over all rows of a window, and what drifted

Draws are made in batches, and end early where chance alone often gives as large an effect: a
p-value of 0.4 needs no third digit. Arrays: D = draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import false_discovery_control

from rft.config import Drift
from rft.drift import distance, noise, shown
from rft.drift.bins import on_common_edges
from rft.drift.distance import Distance
from rft.drift.effects import Floats
from rft.drift.shown import Names
from rft.errors import ConfigError, UserError, did_you_mean
from rft.reports import Feature, FeatureDrift, Profile
from rft.reports.drift import Against
from rft.traffic.schema import GROUPS, OWN

BATCH = 1000
_AGAIN = "Run the stage that wrote it again."
FAR_ENOUGH = 100
"""Drawing stops after so many draws with as large an effect."""


def compare(
    reference: Profile, current: Profile, settings: Drift, against: Against = "train", names: Names = str
) -> list[FeatureDrift]:
    """Compare all features that either side has. `names` names the buckets of the vocabulary."""
    return compare_all({against: reference}, current, settings, names)


def compare_all(
    references: Mapping[Against, Profile], current: Profile, settings: Drift, names: Names = str
) -> list[FeatureDrift]:
    """Compare the features with each reference that has them. A feature that no reference has gets
    one row."""
    known = dict.fromkeys(name for side in (current, *references.values()) for name in side.features)
    if unknown := sorted(settings.thresholds.keys() - known.keys()):
        what = f"params.yaml: drift.thresholds names '{unknown[0]}', which is not a feature"
        raise ConfigError(f"{what}. {did_you_mean(unknown[0], list(known))}")
    rows: list[FeatureDrift] = []
    first: Against = next(iter(references))
    for name in known:
        naming: Names = names if name == "vocabulary" else str
        now = current.features.get(name)
        held: list[Against] = [against for against, profile in references.items() if name in profile.features]
        if now is not None and not held:
            detail = f"no reference yet; now {shown.summary(now, naming)}"
            rows.append(_bare(name, first, now, settings, n_current=now.n, detail=detail))
        for against in held:
            reference = references[against]
            before = reference.features[name]
            if now is None:
                detail = "the recipe names it no longer"
                bare = _bare(name, against, before, settings, n_reference=before.n, detail=detail)
                rows.append(bare.model_copy(update={"reference": reference.source}))
            else:
                rows.append(_row(name, against, reference.source, before, now, settings, naming))
    return rows


def control(rows: Sequence[FeatureDrift], settings: Drift) -> list[FeatureDrift]:
    """Add q-values over the tested rows of a window, and decide which features drifted."""
    tested = [row for row in rows if row.p_value is not None]
    needed = len(tested) / settings.level
    if settings.num_resamples + 1 <= needed:
        key = "drift.alpha" if settings.looks_per_year is None else "drift.false_alarms_per_year / looks_per_year"
        raise ConfigError(
            f"params.yaml: drift.num_resamples = {settings.num_resamples} can show no drift: the smallest p-value, "
            f"over {len(tested)} comparisons, stays above {key} = {settings.level:.3g}. "
            f"Take at least {int(needed) + 1} resamples, or a larger level."
        )
    q_values = iter(false_discovery_control([row.p_value for row in tested]) if tested else ())
    out: list[FeatureDrift] = []
    for row in rows:
        if row.p_value is not None and row.effect is not None:
            q = round(float(next(q_values)), 6)
            row = row.model_copy(update={"q_value": q, "drifted": q < settings.level and row.effect > row.threshold})
        out.append(row)
    return out


# -- one feature -----------------------------------------------------------------------------------
def _row(
    name: str, against: Against, source: str, before: Feature, now: Feature, settings: Drift, names: Names
) -> FeatureDrift:
    """Compare one feature, without its q-value: that needs all rows."""
    for side, of in ((before, source), (now, "the window")):
        if not _fits(side):
            raise UserError(f"the profile of {of} is damaged: bins and counts of '{name}' do not fit. {_AGAIN}")
    if name.startswith(OWN) and before.kind == now.kind == "numeric":
        before, now = on_common_edges(before, now)
    _comparable(name, source, before, now)
    groups = [_num_groups(side) for side in (before, now)]
    row = _bare(name, against, now, settings, before.n, now.n).model_copy(
        update={"reference": source, "groups_reference": groups[0], "groups_current": groups[1]}
    )
    if min(before.n, now.n) < settings.min_conversations:
        few = f"too few to judge: {min(before.n, now.n)}, drift.min_conversations = {settings.min_conversations}"
        return row.model_copy(update={"detail": few, "bars": distance.bars(before, now, names)})
    if before.kind not in ("text", "embedding") and not (sum(before.counts) and sum(now.counts)):
        empty = "the window holds none" if sum(before.counts) else "the reference holds none"
        return row.model_copy(update={"detail": empty, "bars": distance.bars(before, now, names)})
    counted = [number for number, side in zip(groups, (before, now), strict=True) if _has_groups(side)]
    if min(counted, default=settings.min_units) < settings.min_units:
        few = f"too few units to judge: {min(counted)}, drift.min_units = {settings.min_units}"
        return row.model_copy(update={"detail": few, "bars": distance.bars(before, now, names)})
    seed = settings.seed + zlib.crc32(name.encode())
    found = distance.compared(before, now, names, seed)
    null_D = _draws(found, settings.num_resamples)
    level = float(np.quantile(null_D, 1 - settings.level))
    return row.model_copy(
        update={
            "effect": round(found.effect, 6),
            "threshold": round(max(row.threshold, level), 6),
            "noise": round(level, 6),
            "p_value": round(noise.p_value(found.effect, null_D), 6),
            "detail": found.detail,
            "bars": list(found.bars),
        }
    )


def _bare(
    name: str,
    against: Against,
    feature: Feature,
    settings: Drift,
    n_reference: int = 0,
    n_current: int = 0,
    detail: str = "",
) -> FeatureDrift:
    configured = settings.thresholds.get(name, float(getattr(settings.effects, feature.statistic)))
    return FeatureDrift(
        feature=name, against=against, group=feature.group, statistic=feature.statistic, effect=None,
        threshold=configured, p_value=None, q_value=None, n_reference=n_reference, n_current=n_current, drifted=False,
        detail=detail,
    )  # fmt: skip


def _comparable(name: str, source: str, before: Feature, now: Feature) -> None:
    if before.statistic != now.statistic or before.kind != now.kind or before.edges != now.edges:
        what = f"the profile of {source} has other bins for '{name}' than this version of agent-rft"
        raise UserError(f"{what}. {_AGAIN}")
    if before.model != now.model:
        what = f"'{name}' of {source} was embedded by {before.model or 'an unnamed model'}"
        remedy = f"params.yaml: set drift.embedder to what made it, or profile {source} again"
        raise UserError(f"{what}, and that of the window by {now.model or 'an unnamed model'}. {remedy}.")


def _fits(side: Feature) -> bool:
    """Tell whether a feature has a count for each of its bins, and no others."""
    if side.kind in ("text", "embedding"):
        return True
    width = len(side.edges) + 1 if side.kind == "numeric" else len(side.values)
    cells = all(len(cell) % 2 == 0 and all(0 <= n < width for n in cell[::2]) for cell in side.cells)
    return len(side.counts) == width and len(side.cells) <= GROUPS and cells


def _num_groups(side: Feature) -> int:
    """Count the groups of units with a value. In a sample each row is a unit."""
    if side.kind in ("text", "embedding"):
        return len(side.sample)
    return sum(1 for cells in side.cells if cells)


def _has_groups(side: Feature) -> bool:
    return side.kind in ("text", "embedding") or bool(side.cells)


def _draws(found: Distance, num_draws: int) -> Floats:
    """Draw in batches until enough draws go as far as the observed effect (Besag and Clifford
    1991)."""
    batches: list[Floats] = []
    far, left = 0, num_draws
    while left and far < FAR_ENOUGH:
        batches.append(found.drawn(min(BATCH, left)))
        far += int(np.count_nonzero(batches[-1] >= found.effect - noise.TIE))
        left -= len(batches[-1])
    return np.concatenate(batches)
