"""Write a drift report in words: what a feature is, what its effect means, and how it ended.

The page of a run, the page of `rft traffic drift`, its table in a terminal and MLflow show the same
report. All of them take order and names from this module, so that they agree.

    sections    the features in reading order: the input, the agent, its performance; within each
                group by what it was compared with; within that, drifted features first
    state       drifted, or which condition of drift is not met
    farthest    the few features that drifted farthest
    ratio       how far an effect goes, where 1 is the threshold, so that features can be compared

Nothing here is in a report, so a better sentence does not repeat a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rft.formatting import counted
from rft.reports.drift import Against, DriftReport, FeatureDrift
from rft.reports.traffic import FeatureGroup

State = Literal["drifted", "could be chance", "too small to count", "as before", "not compared"]
"""`could be chance`: the effect is large enough, but not shown to be real. `too small to count`: it
is real, but smaller than the threshold."""

SIGNS: dict[State, str] = {
    "drifted": "✗",
    "could be chance": "?",
    "too small to count": "✓",
    "as before": "✓",
    "not compared": "–",
}
TONES: dict[State, str] = {
    "drifted": "bad",
    "could be chance": "open",
    "too small to count": "off",
    "as before": "off",
    "not compared": "off",
}
VERDICTS = {"continue": ("good", "✓"), "refresh": ("open", "!"), "stop": ("bad", "✗")}
"""Verdict -> tone and sign."""

GROUPS: dict[FeatureGroup, tuple[str, str]] = {
    "input": ("Input", "What the agent was given. Only drift of the input asks for other examples."),
    "agent": ("Agent", "What the agent did. Other examples do not fix it."),
    "performance": ("Performance", "How well it did: outcome drift, apart from input drift."),
}
"""Group -> its title, and what drift of it means."""

AGAINST: dict[Against, str] = {
    "train": "the training examples",
    "validation": "the validation examples",
    "test": "the test examples",
    "window": "the earlier window",
}

_NAMES = {
    "input_words": "length of the input, in words",
    "vocabulary": "words that users write",
    "phrasing": "how users put things",
    "meaning": "what users mean",
    "tool_mix": "which tools are called",
    "num_tool_calls": "tool calls per conversation",
    "num_turns": "turns per conversation",
    "tool_errors": "failed tool calls per conversation",
    "latency_s": "seconds to the answer",
    "argument_shapes": "shapes of tool arguments",
    "argument_errors": "arguments that break the tool's schema",
    "reply_shapes": "shapes of tool replies",
    "system_prompt": "system prompt",
    "tool_schemas": "schemas of the tools on offer",
    "refused": "refusals",
    "graded": "graded conversations",
    "corrected": "corrected answers",
}
_NO_EFFECT = {"classifier_auc": 0.5}
"""The value of a statistic for equal windows, where that is not 0."""


@dataclass(frozen=True)
class Compared:
    """Features of one group against one reference, drifted features first."""

    against: Against
    features: list[FeatureDrift]

    @property
    def title(self) -> str:
        """Say what it was compared with, and how many conversations or examples that has."""
        most = max(feature.n_reference for feature in self.features)
        if not most and all(feature.effect is None for feature in self.features):
            return "without a reference yet"
        sources = {feature.reference for feature in self.features if feature.reference}
        source = sources.pop() if len(sources) == 1 else ""
        text = AGAINST[self.against]
        if source:
            text = source if source.startswith(text) else f"{text}, {source}"
        return f"against {text}{f' ({most:,})' if most else ''}"


@dataclass(frozen=True)
class Part:
    """A group of features."""

    group: FeatureGroup
    compared: list[Compared]

    @property
    def title(self) -> str:
        return GROUPS[self.group][0]

    @property
    def about(self) -> str:
        return GROUPS[self.group][1]


def sections(report: DriftReport) -> list[Part]:
    """Order the features for reading. Groups and references without features are left out."""
    found: list[Part] = []
    for group in GROUPS:
        compared: list[Compared] = []
        for against in AGAINST:
            features = [each for each in report.features if (each.group, each.against) == (group, against)]
            if features:
                compared.append(Compared(against, sorted(features, key=_rank)))
        if compared:
            found.append(Part(group, compared))
    return found


def _rank(feature: FeatureDrift) -> tuple[int, float, str]:
    order = get_args(State)
    return order.index(state(feature)), -ratio(feature), feature.feature


def state(feature: FeatureDrift) -> State:
    if feature.drifted:
        return "drifted"
    if feature.effect is None or feature.q_value is None:
        return "not compared"
    if feature.effect > feature.threshold:
        return "could be chance"
    # p and the noise come from the same draws, so an effect beyond the noise is shown
    shown = feature.noise is not None and feature.effect > feature.noise
    return "too small to count" if shown else "as before"


def summary(features: Sequence[FeatureDrift]) -> str:
    """Name features by state: `2 as before: phrasing, meaning`."""
    parts: list[str] = []
    for each in get_args(State):
        names = [feature.feature for feature in features if state(feature) == each]
        if names:
            parts.append(f"{len(names):,} {each}: {', '.join(names)}")
    return "; ".join(parts)


def uncompared(features: Sequence[FeatureDrift]) -> str:
    """Say why none of several features was compared, if the reason is the same; else empty."""
    reasons = {feature.detail for feature in features}
    alike = len(features) > 1 and len(reasons) == 1 and all(state(each) == "not compared" for each in features)
    return reasons.pop() if alike else ""


def no_effect(feature: FeatureDrift) -> float:
    """Return the effect that two equal windows have."""
    return _NO_EFFECT.get(feature.statistic, 0.0)


def ratio(feature: FeatureDrift) -> float:
    """Return how far the effect goes: 0 for equal windows, 1 at the threshold, -1 if not compared.
    If the threshold allows no effect at all, any effect counts as 2."""
    if feature.effect is None:
        return -1.0
    return place(feature, feature.effect)


def place(feature: FeatureDrift, effect: float) -> float:
    """Place an effect, such as the noise, on the scale of `ratio`."""
    start = no_effect(feature)
    room = feature.threshold - start
    if room <= 0:
        return 2.0 if effect > start else 0.0
    return max(0.0, (effect - start) / room)


def worst(report: DriftReport, group: FeatureGroup | None = "input") -> FeatureDrift | None:
    """Find the feature that drifted farthest or, if none drifted, came nearest to its threshold.
    None if nothing was compared."""
    compared = [
        feature
        for feature in report.features
        if feature.effect is not None and (group is None or feature.group == group)
    ]
    return max(compared, key=lambda feature: (feature.drifted, ratio(feature)), default=None)


def farthest(report: DriftReport, most: int) -> list[FeatureDrift]:
    """List the features that drifted farthest, the input first, then those nearest to their
    threshold. Each is there once, with the reference that it is farthest from."""

    def order(feature: FeatureDrift) -> tuple[int, tuple[int, float, str]]:
        return [*GROUPS].index(feature.group) if feature.drifted else len(GROUPS), _rank(feature)

    found: dict[str, FeatureDrift] = {}
    for feature in sorted(report.features, key=order):
        if feature.effect is not None:
            found.setdefault(feature.feature, feature)
    return list(found.values())[:most]


def named(name: str) -> str:
    """Name a feature in plain words. The recipe names its own features."""
    if name.startswith("own_"):
        return f"{name.removeprefix('own_').replace('_', ' ')} (a column of yours)"
    return _NAMES.get(name, name.replace("_", " "))


def effect(feature: FeatureDrift) -> str:
    """Say what the effect means, as a sentence without a full stop."""
    found = feature.effect or 0.0
    match feature.statistic:
        case "wasserstein_sd":
            return f"values moved by {found:.2f} standard deviations of the reference"
        case "total_variation":
            return f"{100 * found:.1f} % of one side would have to change to match the other"
        case "psi":
            return f"population stability index {found:.2f}"
        case "classifier_auc":
            return f"a classifier tells the two sides apart with AUC {found:.2f}, where 0.50 is not at all"
        case "mmd":
            return f"maximum mean discrepancy {found:.2f}, where 0 is none and 1 is nothing in common"


def measured(feature: FeatureDrift) -> str:
    """Put the effect beside its threshold: `0.71 of 0.30`."""
    return "" if feature.effect is None else f"{feature.effect:.2f} of {_short(feature.threshold)}"


def numbers(feature: FeatureDrift) -> str:
    """List the numbers that decided."""
    parts: list[str] = []
    if feature.effect is not None:
        parts.append(f"counts from {_short(feature.threshold)}")
        if feature.noise is not None:
            parts.append(f"chance alone stays below {_short(feature.noise)}")
    if feature.q_value is not None:
        parts.append(f"q = {feature.q_value:.2g}")
    parts.append(f"n = {feature.n_reference:,} and {feature.n_current:,}")
    if feature.groups_reference and feature.groups_current:
        parts.append(f"groups of units: {feature.groups_reference:,} and {feature.groups_current:,}")
    return "; ".join(parts)


def headline(report: DriftReport) -> str:
    """Say what to do, in a sentence. For a report of an earlier version, say why."""
    return _sentence(report.advice or report.reason)


def because(report: DriftReport) -> str:
    """Give the reason, where the headline does not."""
    return _sentence(report.reason) if report.advice else ""


def size(report: DriftReport) -> str:
    return f"{counted(report.num_current, 'conversation')} against {report.num_reference:,}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", "!", "?")) else ".")


def _short(number: float) -> str:
    return f"{number:.2f}" if number >= 0.0095 else f"{number:.4f}"
