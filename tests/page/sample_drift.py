"""Drift reports with all that a report can hold: four references, noise, bars, carriers, broken
contracts; and a year of windows. Synthetic and seeded: `full()`, `quiet()`, `comparisons(12)`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rft.page.drift_comparisons import DriftComparison
from rft.reports import Against, Bar, Carrier, Contract, DriftReport, FeatureDrift, FeatureGroup, Statistic

_RANGES = ("up to 12", "12 to 18", "18 to 24", "24 to 31", "31 to 40", "40 to 52", "52 to 70", "above 70")
_WORDS = ("'refund'", "'parcel'", "'login'", "'invoice'", "'pain'", "'chest'", "(the other words)")
_TOOLS = ("search", "describe_code", "find_order", "cancel_order", "escalate_to_a_person_with_a_rather_long_name")
_SHAPES = ('find_order{"number":"VARCHAR"}', 'find_order{"number":"VARCHAR","year":"BIGINT"}', "search{}")

_FEATURES: tuple[tuple[str, FeatureGroup, Statistic, float, float, Sequence[str]], ...] = (
    # name, group, statistic, effect in a quiet week, threshold, labels of its bars
    ("input_words", "input", "wasserstein_sd", 0.06, 0.3, _RANGES),
    ("vocabulary", "input", "total_variation", 0.04, 0.15, _WORDS),
    ("phrasing", "input", "classifier_auc", 0.53, 0.65, ()),
    ("meaning", "input", "mmd", 0.02, 0.1, ()),
    ("own_country", "input", "total_variation", 0.05, 0.15, ("DE", "FR", "BR", "JP", "(other)")),
    ("chapter", "input", "psi", 0.03, 0.2, ("I Circulatory", "E Endocrine", "J Respiratory", "M Musculoskeletal")),
    ("tool_mix", "agent", "total_variation", 0.03, 0.15, _TOOLS),
    ("num_turns", "agent", "wasserstein_sd", 0.05, 0.3, ("1", "2", "3", "4", "5 or more")),
    ("argument_shapes", "agent", "total_variation", 0.02, 0.15, _SHAPES),
    ("latency_s", "agent", "psi", 0.05, 0.2, _RANGES),
    ("refused", "performance", "total_variation", 0.01, 0.15, ("yes", "no")),
    ("corrected", "performance", "total_variation", 0.02, 0.15, ("as answered", "corrected")),
)
_MOVED = {"input_words": 0.71, "vocabulary": 0.41, "own_country": 0.22, "chapter": 0.46, "tool_mix": 0.19}
_SIZES: dict[Against, int] = {"train": 2000, "validation": 192, "test": 288, "window": 1180}


def full() -> DriftReport:
    """Four references, most of the input drifted."""
    features = [
        _feature(row, against, _MOVED.get(row[0], row[3]))
        for against in _SIZES
        for row in _FEATURES
        if row[1] == "input" or against == "window"
    ]
    features.append(
        FeatureDrift(
            feature="tool_schemas",
            against="window",
            group="agent",
            statistic="total_variation",
            effect=None,
            threshold=0.15,
            p_value=None,
            q_value=None,
            n_reference=0,
            n_current=1200,
            drifted=False,
            detail="no reference yet; now 3fa91c02be77 100%",
        )
    )
    return DriftReport(
        verdict="refresh",
        reason="16 of 24 input features drifted; 431 graded conversations can become examples",
        advice="Rebuild the examples from this window: users write longer, and of other things than in training.",
        features=features,
        contracts=[
            Contract(name="values to not be null", column="conversation_id", success=True, observed="0 nulls"),
            Contract(name="values to be between", column="latency_s", success=False, observed="0.11 to 9,212"),
        ],
        num_reference=2000,
        num_current=1200,
        window_sha256="ab" * 32,
        alpha=0.01,
        carriers=[
            Carrier(feature="vocabulary", conversation_id="c-0412", says="user: Where is my parcel? I paid by [card]."),
            Carrier(feature="vocabulary", conversation_id="c-0977", says="user: The refund for my invoice\nis late."),
            Carrier(feature="own_country", conversation_id="c-0100", says="user: Onde está o meu pedido?"),
        ],
    )


def quiet(name: str = "", times: float = 1.0) -> DriftReport:
    """Nothing drifted, unless a feature is named and moved that many times."""
    features = [_feature(row, "train", row[3] * (times if row[0] == name else 1.0)) for row in _FEATURES]
    drifted = sum(feature.drifted for feature in features)
    return DriftReport(
        verdict="stop" if drifted else "continue",
        reason=f"{drifted} of 6 input features drifted, all 1 contracts hold.",
        features=features,
        contracts=[
            Contract(name="values to be unique", column="conversation_id", success=True, observed="0 of 900 bad")
        ],
        num_reference=2000,
        num_current=900,
        window_sha256="cd" * 32,
        alpha=0.01,
    )


def comparisons(count: int) -> list[DriftComparison]:
    """A window a week, of which one was not recorded, and a slow drift of the vocabulary."""
    found: list[DriftComparison] = []
    for week in range(count):
        report = quiet("vocabulary", times=1 + 0.5 * week)
        first, last = (
            f"2026-{1 + week // 4:02}-{1 + 7 * (week % 4):02}",
            f"2026-{1 + week // 4:02}-{7 + 7 * (week % 4):02}",
        )
        gone = week == 3
        found.append(
            DriftComparison(
                name=f"2026{week:02}-brave-otter",
                window=f"data/inbox/2026-W{week + 1:02}.jsonl",
                report=None if gone else report,
                when="" if gone else f"{first} to {last}",
                missing="its bytes are past their retention" if gone else "",
                alike=2 if week == 5 else 0,
            )
        )
    return found


def _feature(
    row: tuple[str, FeatureGroup, Statistic, float, float, Sequence[str]], against: Against, effect: float
) -> FeatureDrift:
    name, group, statistic, _, configured, labels = row
    noise = round(0.5 + 0.06, 6) if statistic == "classifier_auc" else round(0.55 * configured, 6)
    if against == "validation":  # small: chance reaches farther than the configured threshold
        noise = round(configured * 1.1, 6)
    threshold = max(configured, noise)
    shown = effect > noise and not (name == "own_country" and against == "test")
    drifted = shown and effect > threshold
    return FeatureDrift(
        feature=name,
        against=against,
        group=group,
        statistic=statistic,
        effect=effect,
        threshold=threshold,
        p_value=0.0005 if shown else 0.31,
        q_value=0.002 if shown else 0.6,
        n_reference=_SIZES[against],
        n_current=1200,
        drifted=drifted,
        detail=f"{labels[0]} 12.1% -> 31.4%, {labels[1]} 20.0% -> 9.1%" if labels else "AUC 0.83 [0.80, 0.86]",
        reference="recipe icd10" if against != "window" else "data/inbox/2026-W13.jsonl",
        noise=noise,
        groups_reference=256,
        groups_current=241,
        bars=_bars(name, labels, effect),
    )


def _bars(name: str, labels: Sequence[str], effect: float) -> list[Bar]:
    rng = random.Random(name)
    before = [rng.uniform(0.3, 1.0) for _ in labels]
    after = [share * (1 + effect * rng.uniform(-1.5, 3)) for share in before]
    after = [max(share, 0.01) for share in after]
    return [
        Bar(label=label, reference=round(a / sum(before), 6), current=round(b / sum(after), 6))
        for label, a, b in zip(labels, before, after, strict=True)
    ]
