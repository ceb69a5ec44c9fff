"""Drift over time: a small picture per feature over the compared windows, and a table.

One comparison is one window with its report. A feature has one picture. If it was compared with
several references, the picture shows the one that it is farthest from. Comparisons without a report
stay in the table, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rft import reports
from rft.formatting import counted
from rft.page.drift_pictures import Dot, course, height
from rft.page.markup import Html, card, h, table
from rft.reports import FeatureDrift, drift_wording


@dataclass(frozen=True)
class DriftComparison:
    """One window that was compared."""

    name: str
    """The run, or the file."""
    window: str
    report: reports.DriftReport | None
    when: str = ""
    """The window's start and end, as far as they are known."""
    missing: str = ""
    """Why there is no report."""
    alike: int = 0
    """How many later runs have the same report."""


def over_time(comparisons: Sequence[DriftComparison], title: str) -> Html | None:
    """Make a card with the pictures; None for fewer than two reports."""
    known = [comparison for comparison in comparisons if comparison.report is not None]
    if len(known) < 2:
        return None
    note = (
        f"{counted(len(known), 'window')}, the latest on the right: {_named(known[0])} to {_named(known[-1])}. The "
        "line at 1 is the smallest effect that counts, and ✗ is a drift. With several references, the farthest counts."
    )
    parts: list[Html] = []
    for group, (name, _) in drift_wording.GROUPS.items():
        panels = _panels(known, group)
        if not panels:
            continue
        inside = h("div", panels, class_="panels")
        if group == "input":
            parts.append(inside)
        else:
            drifted = any(feature.drifted for comparison in known[-1:] for feature in _of(comparison, group))
            parts.append(h("details", h("summary", f"{name}: {len(panels)}"), inside, class_="rest", open=drifted))
    return card(title, h("p", note, class_="note"), parts)


def summary(comparisons: Sequence[DriftComparison]) -> Html:
    """Make a table with a row per comparison, the latest first."""
    rows = [_row(comparison) for comparison in reversed(comparisons)]
    shown = table(("window", "verdict", "drifted", "farthest of the input", "what to do"), rows, wide=True)
    return card("The windows", shown)


def worst(report: reports.DriftReport) -> str:
    """Name the input feature that is farthest from its reference."""
    feature = drift_wording.worst(report)
    if feature is None:
        return "nothing compared"
    return f"{feature.feature} {drift_wording.ratio(feature):.2f} ({drift_wording.state(feature)})"


def drifted(report: reports.DriftReport) -> str:
    """Count the features that drifted, by group."""
    found: list[str] = []
    for group in drift_wording.GROUPS:
        tested = [feature for feature in report.features if feature.group == group and feature.q_value is not None]
        if tested:
            found.append(f"{group} {sum(feature.drifted for feature in tested)} of {len(tested)}")
    return ", ".join(found) or "nothing compared"


def _row(comparison: DriftComparison) -> Html:
    alike = (
        h("small", f"and {counted(comparison.alike, 'later run')} with the same report") if comparison.alike else None
    )
    name = h(
        "th",
        comparison.name,
        h("small", f"{comparison.window}{', ' if comparison.when else ''}{comparison.when}"),
        alike,
        scope="row",
    )
    if comparison.report is None:
        return h("tr", name, h("td", "–"), h("td", comparison.missing, colspan=3, class_="muted"))
    tone, sign = drift_wording.VERDICTS[comparison.report.verdict]
    return h(
        "tr",
        name,
        h("td", f"{sign} {comparison.report.verdict}", class_=f"verdict {tone}"),
        h("td", drifted(comparison.report)),
        h("td", worst(comparison.report)),
        h("td", drift_wording.headline(comparison.report)),
    )


def _panels(comparisons: Sequence[DriftComparison], group: str) -> list[Html]:
    """Make a picture for each feature that was ever compared, all on one scale. The feature with
    the largest drift in the last window comes first."""
    names = dict.fromkeys(feature.feature for comparison in comparisons for feature in _of(comparison, group))
    courses = {name: [_dot(comparison, name, group) for comparison in comparisons] for name in names}
    known = {name: dots for name, dots in courses.items() if any(dot.ratio is not None for dot in dots)}
    top = height([dot for dots in known.values() for dot in dots])
    found: list[Html] = []
    for name, dots in sorted(known.items(), key=lambda item: (-_last(item[1]), item[0])):
        title = drift_wording.named(name)
        caption = h("figcaption", title[:1].upper() + title[1:], " ", h("small", name))
        found.append(h("figure", caption, course(f"{title} over time", dots, top)))
    return found


def _last(dots: Sequence[Dot]) -> float:
    ratio = dots[-1].ratio
    return -1.0 if ratio is None else ratio


def _dot(comparison: DriftComparison, name: str, group: str) -> Dot:
    rows = [feature for feature in _of(comparison, group) if feature.feature == name and feature.effect is not None]
    if not rows:
        return Dot(_named(comparison), None, drifted=False, description="")
    farthest = max(rows, key=lambda feature: (feature.drifted, drift_wording.ratio(feature)))
    against = drift_wording.AGAINST[farthest.against]
    description = f"{drift_wording.measured(farthest)}, {drift_wording.state(farthest)}, against {against}"
    return Dot(_named(comparison), drift_wording.ratio(farthest), farthest.drifted, description)


def _of(comparison: DriftComparison, group: str) -> list[FeatureDrift]:
    return (
        []
        if comparison.report is None
        else [feature for feature in comparison.report.features if feature.group == group]
    )


def _named(comparison: DriftComparison) -> str:
    return comparison.when or comparison.name
