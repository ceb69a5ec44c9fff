"""Two profiles compared: what is called drift, what is only shown, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rft import config
from rft.config import Drift
from rft.drift import comparison, discrepancy, labels, noise, owners
from rft.drift.labels import OTHER, Labels, is_bucket
from rft.drift.owners import Owners
from rft.errors import ConfigError, UserError
from rft.reports import Feature, FeatureDrift, Profile
from rft.traffic.schema import GROUPS

EDGES = [k + 0.5 for k in range(32)]
SETTINGS = Drift(thresholds={})


def profile(features: dict[str, Feature], source: str = "before") -> Profile:
    return Profile(source=source, num_conversations=300, features=features)


def counted(bins: Any, width: int, users: int = 0, seed: int = 0) -> dict[str, Any]:
    """Counts and cells of conversations, of so many users (0: each of its own)."""
    bins = np.asarray(bins)
    rng = np.random.default_rng(seed)
    owner = np.arange(len(bins)) * users // max(len(bins), 1) if users else np.arange(len(bins))
    groups = rng.permutation(GROUPS)[owner] if users else rng.integers(0, GROUPS, len(bins))
    matrix = np.bincount(groups * width + bins, minlength=GROUPS * width).reshape(GROUPS, width)
    return {"counts": matrix.sum(axis=0).tolist(), "cells": owners.cells_of(matrix), "n": len(bins)}


def number(values: Any, statistic: Any = "wasserstein_sd", edges: list[float] = EDGES, **more: Any) -> Feature:
    held = counted(np.searchsorted(edges, values), len(edges) + 1, **more)
    mean = round(float(np.mean(values)), 6) if len(values) else None
    return Feature(kind="numeric", group="input", statistic=statistic, edges=edges, mean=mean, **held)


def category(values: list[str], group: Any = "input", names: list[str] | None = None, **more: Any) -> Feature:
    known = names or sorted(set(values))
    held = counted([known.index(value) for value in values] or np.array([], dtype=int), len(known), **more)
    return Feature(kind="category", group=group, statistic="total_variation", values=known, **held)


def compared(before: Feature, now: Feature, settings: Drift = SETTINGS, name: str = "x") -> FeatureDrift:
    rows = comparison.compare(profile({name: before}), profile({name: now}, "now"), settings, "validation")
    (row,) = comparison.control(rows, settings)
    return row


def poisson(mean: float, size: int = 400, seed: int = 0) -> Any:
    return np.random.default_rng(seed).poisson(mean, size)


def met(values: Any) -> Feature:
    """A category as a profile counts it: each value its own unit."""
    held, column = Labels(), pa.array([str(value) for value in values])
    group_N = np.random.default_rng(5).integers(0, GROUPS, len(column))
    held.add(column, Owners(group_N, np.zeros_like(group_N)))
    named, counts_RB = held.on_values()
    return Feature(kind="category", group="input", statistic="total_variation", values=named, n=len(column),
                   **owners.fields(counts_RB))  # fmt: skip


def earlier(feature: Feature) -> Feature:
    """The same in a profile of an earlier version: one bin for the rest."""
    kept = [n for n, value in enumerate(feature.values) if not is_bucket(value)]
    place = np.array([kept.index(n) if n in kept else len(kept) - 1 for n in range(len(feature.values))])
    moved = noise.side(feature).placed(place, len(kept))
    cells = owners.cells_of(moved.cells_GB)
    counts = moved.counts_B.astype(int).tolist()
    return feature.model_copy(update={"values": [feature.values[n] for n in kept], "counts": counts, "cells": cells})


def ids(size: int, seed: int, share: float = 0.0) -> Any:
    """Ids of which few are frequent and most are rare; a share of them are new ones."""
    rng = np.random.default_rng(seed)
    found = np.where(rng.random(size) < 0.6, rng.integers(0, 50, size), rng.integers(100, 20_000, size))
    return np.where(rng.random(size) < share, 200_000 + rng.integers(0, 10, size), found)


# -- drift, or none --------------------------------------------------------------------------------
def test_numbers_that_moved_drifted_and_say_how() -> None:
    row = compared(number(poisson(4)), number(poisson(6, seed=1)))
    assert row.drifted
    assert row.against == "validation"
    assert (row.effect or 0) > 0.8
    assert row.detail.startswith("mean 3.9")
    assert "; now mean 5.888, P50 6, P95 10" in row.detail
    assert 8 <= len(row.bars) <= 12
    assert row.bars[0].label == "0 to 1"
    assert row.bars[-1].label.endswith("or more")
    for side in ("reference", "current"):
        assert sum(getattr(bar, side) for bar in row.bars) == pytest.approx(1, abs=1e-4)


def test_numbers_that_did_not_move_have_not() -> None:
    row = compared(number(poisson(4)), number(poisson(4, seed=1)))
    assert not row.drifted
    assert (row.p_value or 0) > 0.05
    assert row.noise is not None
    assert row.threshold == 0.3 > row.noise
    assert 150 < row.groups_reference <= GROUPS


def test_the_threshold_is_the_noise_where_that_is_larger() -> None:
    row = compared(number(poisson(4, 110), users=25), number(poisson(4, 110, 1), users=25, seed=1))
    assert row.threshold == row.noise
    assert row.threshold > 0.3


def test_psi_is_measured_on_ten_bins_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    edges = [round(0.01 * 2 ** (k / 4), 6) for k in range(73)]
    before, now, later = (rng.lognormal(mean, 0.5, 600) for mean in (0, 0, 0.6))
    assert not compared(number(before, "psi", edges), number(now, "psi", edges)).drifted
    row = compared(number(before, "psi", edges), number(later, "psi", edges))
    assert row.drifted
    assert row.effect == pytest.approx(1.44, abs=0.5)
    assert " to " in row.bars[3].label


def test_a_new_value_drifts_and_is_named() -> None:
    before, now = category(["a", "b"] * 200), category(["a", "b", "b", "new"] * 100)
    row = compared(before, now)
    assert row.drifted
    assert row.effect == pytest.approx(0.25)
    assert "new 0.0% -> 25.0%" in row.detail
    assert {bar.label: bar.current for bar in row.bars}["new"] == pytest.approx(0.25)


@pytest.mark.slow
def test_users_who_repeat_themselves_are_no_drift_and_conversations_would_have_been() -> None:
    """R17: forty users a side, each always with the same intent."""
    rng = np.random.default_rng(3)
    names = [f"intent-{n}" for n in range(10)]
    false = {True: 0, False: 0}
    for seed in range(40):
        sides = [
            category([str(name) for name in rng.choice(names, 40).repeat(10)], names=names, users=40, seed=seed)
            for _ in range(2)
        ]
        for by_user in (True, False):
            found = [side if by_user else side.model_copy(update={"cells": []}) for side in sides]
            false[by_user] += compared(found[0], found[1]).drifted
    assert false[True] <= 2
    assert false[False] > 30


@pytest.mark.slow
def test_many_values_whose_names_one_side_lost_are_no_drift() -> None:
    """A long window names the hundred most frequent values, a short one all that it met."""
    shares = 1 / np.arange(1, 401) / (1 / np.arange(1, 401)).sum()
    rng = np.random.default_rng(4)
    p_values: list[float] = []
    for seed in range(40):
        sides: list[Feature] = []
        for size in (6000, 400):
            values = rng.choice(400, size, p=shares)
            kept = {int(value) for value in np.argsort(-np.bincount(values, minlength=400), kind="stable")[:100]}
            names = [f"{value:03}" if int(value) in kept else OTHER for value in values]
            sides.append(category(names, names=[*(f"{value:03}" for value in sorted(kept)), OTHER], seed=seed))
        p_values.append(compared(sides[0], sides[1]).p_value or 0)
    assert np.mean(np.array(p_values) < 0.1) <= 0.25
    assert np.mean(p_values) > 0.35


def test_the_level_of_a_comparison_may_be_set_by_the_year() -> None:
    yearly = config.parse({"false_alarms_per_year": 26, "looks_per_year": 52, "thresholds": {}}, model=Drift)
    tiny = {"effects": {"wasserstein_sd": 1e-6}}
    a, b = number(poisson(4)), number(poisson(4, seed=9))
    strict = compared(a, b, config.parse({"alpha": 0.0006, "thresholds": {}} | tiny, model=Drift))
    loose = compared(a, b, yearly.model_copy(update={"effects": config.parse(tiny, model=Drift).effects}))
    assert strict.p_value == loose.p_value
    assert (strict.drifted, loose.drifted) == (False, True)


def test_q_values_are_over_all_references_together() -> None:
    before, now = number(poisson(4)), number(poisson(4.5, seed=1))
    references: Any = {"train": profile({"x": before}), "window": profile({"x": before}, "last week")}
    rows = comparison.control(comparison.compare_all(references, profile({"x": now}), SETTINGS), SETTINGS)
    assert [row.against for row in rows] == ["train", "window"]
    assert rows[0].p_value == rows[1].p_value == rows[0].q_value
    alone = comparison.control(comparison.compare(profile({"x": before}), profile({"x": now}), SETTINGS), SETTINGS)
    three = [*rows, alone[0].model_copy(update={"p_value": 0.9})]
    assert (comparison.control(three, SETTINGS)[0].q_value or 0) > (rows[0].q_value or 0)


def test_the_same_profiles_give_the_same_rows() -> None:
    before, now = number(poisson(4)), number(poisson(5, seed=1))
    assert compared(before, now) == compared(before, now)
    other = compared(before, now, Drift(seed=1, thresholds={}))
    assert other.noise != compared(before, now).noise


# -- shown, but not called drifted -----------------------------------------------------------------
def test_too_few_units_are_shown_and_not_judged() -> None:
    row = compared(number(poisson(4), users=12), number(poisson(9, seed=1)))
    assert row.detail == "too few units to judge: 12, drift.min_units = 20"
    assert (row.effect, row.p_value, row.drifted) == (None, None, False)
    assert row.bars


def test_too_few_conversations_are_shown_and_not_judged() -> None:
    row = compared(number(poisson(4)), number(poisson(9, 50)))
    assert row.detail == "too few to judge: 50, drift.min_conversations = 100"
    assert row.bars


@pytest.mark.parametrize("empty", [number(np.array([])), category([], names=["a"]), category([])])
def test_an_empty_side_is_no_alarm(empty: Feature) -> None:
    full = number(poisson(4)) if empty.kind == "numeric" else category(["a"] * 300)
    for sides in ((empty, full), (full, empty)):
        row = compared(*sides)
        assert row.detail == "too few to judge: 0, drift.min_conversations = 100"
        assert not row.drifted


def test_lists_that_became_empty_say_so() -> None:
    none = category([], names=["search"]).model_copy(update={"n": 300})
    full = category(["search"] * 300)
    assert compared(full, none).detail == "the window holds none"
    assert compared(none, full).detail == "the reference holds none"


def test_one_value_on_both_sides_is_no_drift() -> None:
    row = compared(category(["a"] * 200), category(["a"] * 300))
    assert (row.effect, row.p_value, row.drifted) == (0.0, 1.0, False)
    assert "same shares on both sides" in row.detail
    row = compared(number(np.full(200, 3)), number(np.full(300, 3)))
    assert (row.effect, row.p_value, row.drifted) == (0.0, 1.0, False)


def num_distinct(values: Any) -> int:
    return len(set(values.tolist()))


def test_too_many_values_to_name_on_one_side_alone_are_no_drift() -> None:
    """One side counts 5,000 values by their hash, the other names the most frequent of 3,000."""
    before, now = ids(17_000, 1), ids(9_000, 2)
    assert num_distinct(before) > 4096 > num_distinct(now) > 2500
    many, fewer = met(before), met(now)
    assert all(is_bucket(value) for value in many.values[:-1])
    assert sum(not is_bucket(value) for value in fewer.values) > 100
    for sides in ((many, fewer), (fewer, many)):
        row = compared(*sides)
        assert not row.drifted
        assert (row.effect or 0) < 0.05
        assert (row.p_value or 0) > 0.05


def test_and_what_really_changed_is_drift() -> None:
    for share, drifted in ((0.3, True), (0.0, False)):
        row = compared(met(ids(17_000, 1)), met(ids(9_000, 2, share)))
        assert row.drifted is drifted
    assert row.q_value is not None


def test_a_value_that_one_window_names_and_the_other_counts_as_rare_is_no_drift(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of about equally rare values, two windows name different ones."""
    monkeypatch.setattr(labels, "MAX_CELLS", 0)  # as in windows that are long
    rng = np.random.default_rng(3)
    sides = [met(rng.integers(0, 2000, 4000)) for _ in range(2)]
    assert len(set(sides[0].values) & set(sides[1].values)) < 90
    assert not compared(*sides).drifted
    assert (compared(*sides).effect or 0) < 0.1
    assert compared(sides[0], met(rng.integers(1000, 3000, 4000))).drifted is False  # hashed alike
    assert compared(sides[0], met(rng.integers(0, 60, 4000))).drifted


@pytest.mark.slow
def test_a_short_window_beside_a_long_one_is_no_drift() -> None:
    """It names what it met: had it named the frequent values alone, their shares would be high."""
    shares = 1 / np.arange(1, 401) / (1 / np.arange(1, 401)).sum()
    rng = np.random.default_rng(6)
    long = met(rng.choice(400, 10_000, p=shares))
    rows = [compared(long, met(rng.choice(400, 300, p=shares))) for _ in range(40)]
    assert np.mean([(row.p_value or 0) < 0.1 for row in rows]) <= 0.25
    assert not any(row.drifted for row in rows)


def test_a_profile_of_an_earlier_version_is_compared_in_its_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_CELLS", 0)
    before, now, changed = (met(ids(9_000, seed, share)) for seed, share in ((1, 0.0), (2, 0.0), (3, 0.3)))
    assert OTHER in earlier(before).values
    assert not compared(earlier(before), now).drifted
    assert compared(earlier(before), changed).drifted
    row = compared(earlier(before), met(ids(17_000, 4)))
    assert (row.drifted, row.effect) == (False, 0)
    assert "nothing can be told. Profile both again" in row.detail


def test_one_value_that_became_another_is_drift() -> None:
    assert compared(category(["a"] * 200), category(["b"] * 300)).drifted
    assert compared(number(np.full(200, 3)), number(np.full(300, 5))).drifted


def test_features_of_one_side_are_named_once() -> None:
    here, there = category(["a", "b"] * 100), category(["a"] * 200, "agent")
    references: Any = {"train": profile({"gone": here}), "window": profile({"gone": here, "late": there}, "last week")}
    rows = comparison.compare_all(references, profile({"new": here, "late": there}), SETTINGS)
    assert {(row.feature, row.against, row.detail.split(";")[0]) for row in rows} == {
        ("new", "train", "no reference yet"),
        ("late", "window", "the same shares on both sides"),
        ("gone", "train", "the recipe names it no longer"),
        ("gone", "window", "the recipe names it no longer"),
    }


def test_a_profile_without_cells_is_compared_and_says_so() -> None:
    bare = number(poisson(4)).model_copy(update={"cells": []})
    row = compared(bare, number(poisson(7, seed=1)))
    assert row.drifted
    assert row.groups_reference == 0
    assert row.detail.endswith("the profile of the reference has no counts per user")


def test_names_are_for_the_vocabulary_alone() -> None:
    before, now = category(["1", "2"] * 150), category(["1", "2", "2"] * 100)
    known: Any = {"vocabulary": before, "digits": before}
    rows = comparison.compare(
        profile(known), profile(dict.fromkeys(known, now)), SETTINGS, names=lambda bucket: f"'word {bucket}'"
    )
    found = {row.feature: row for row in rows}
    assert found["vocabulary"].detail.startswith("'word 2' 50.0% -> 66.7%")
    assert found["digits"].detail.startswith("1 50.0% -> 33.3%")


def test_the_bars_of_many_values_are_the_most_moved_and_the_rest() -> None:
    before = category([f"v{n:02}" for n in range(30) for _ in range(20)])
    now = category([*(f"v{n:02}" for n in range(30) for _ in range(15)), *["v07"] * 200])
    row = compared(before, now)
    assert len(row.bars) == 12
    assert row.bars[0].label == "v07"
    assert row.bars[-1].label == "19 others"
    assert sum(bar.current for bar in row.bars) == pytest.approx(1, abs=1e-4)


# -- text and embeddings ---------------------------------------------------------------------------
def text_feature(rng: np.random.Generator, first: int, num: int = 150) -> Feature:
    sample = [" ".join(map(str, rng.integers(first, first + 50, 5))) for _ in range(num)]
    return Feature(kind="text", group="input", statistic="classifier_auc", sample=sample, n=num)


def test_text_says_how_well_it_is_told_apart() -> None:
    rng = np.random.default_rng(5)
    row = compared(text_feature(rng, 0), text_feature(rng, 0))
    assert not row.drifted
    row = compared(text_feature(rng, 0), text_feature(rng, 15, 160))
    assert row.drifted
    assert "95 % interval 0." in row.detail
    assert row.detail.endswith("on 150 conversations of the reference and 160 of the window")
    assert (row.groups_reference, row.groups_current) == (150, 160)


def meant(rng: np.random.Generator, topic: int, model: str = "minilm", width: int = 32) -> Feature:
    rows = rng.normal(0, 0.1, (120, width))
    rows[:, topic] += 1
    sample = discrepancy.encoded(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return Feature(kind="embedding", group="input", statistic="mmd", sample=sample, model=model, n=120)


def test_embeddings_are_compared_and_their_models_must_agree() -> None:
    rng = np.random.default_rng(6)
    assert not compared(meant(rng, 0), meant(rng, 0)).drifted
    row = compared(meant(rng, 0), meant(rng, 1))
    assert row.drifted
    assert row.detail == "maximum mean discrepancy of 120 and 120 embeddings by minilm"
    with pytest.raises(UserError, match=r"'x' of before was embedded by minilm, and .* by other.*drift.embedder"):
        compared(meant(rng, 0), meant(rng, 0, "other"))
    with pytest.raises(UserError, match="embeddings of 32 and 16 numbers, both by minilm"):
        compared(meant(rng, 0), meant(rng, 0, width=16))


# -- settings and profiles that do not fit ---------------------------------------------------------
@pytest.mark.parametrize("kind", ["numeric", "category"])
@pytest.mark.parametrize("change", ["counts", "cells", "odd", "groups"])
def test_a_damaged_profile_is_named(kind: str, change: str) -> None:
    good = number(poisson(4)) if kind == "numeric" else category(["a", "b"] * 200)
    bad = {
        "counts": {"counts": good.counts[:-1]},
        "cells": {"cells": [[len(good.counts), 1]]},
        "odd": {"cells": [[0]]},
        "groups": {"cells": [[0, 1]] * (GROUPS + 1)},
    }[change]
    broken = good.model_copy(update=bad)
    with pytest.raises(UserError, match="the profile of before is damaged: bins and counts of 'x' do not fit"):
        compared(broken, good)
    with pytest.raises(UserError, match="the profile of the window is damaged"):
        compared(good, broken)


def test_other_bins_are_refused() -> None:
    with pytest.raises(UserError, match="the profile of before has other bins for 'x'"):
        compared(number(poisson(4)), number(poisson(4), edges=[1.0, 2.0]))


def test_a_threshold_for_no_feature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"drift.thresholds names 'y', which is not a feature"):
        compared(number(poisson(4)), number(poisson(4)), Drift(thresholds={"y": 0.1}))


@pytest.mark.parametrize(
    ("level", "key"),
    [({"alpha": 0.004}, "drift.alpha"), ({"false_alarms_per_year": 0.2, "looks_per_year": 50}, "false_alarms_per")],
)
def test_settings_that_could_never_call_drift_are_refused(level: dict[str, float], key: str) -> None:
    settings = config.parse({"num_resamples": 200, "thresholds": {}} | level, model=Drift)
    with pytest.raises(ConfigError, match=rf"num_resamples = 200 can show no drift: .*{key}.*at least 251 resamples"):
        compared(number(poisson(4)), number(poisson(4)), settings)
