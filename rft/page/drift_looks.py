"""Drift over time: a small picture per feature over the windows that were looked at, and a table.

One look is one window with its report. A feature has one picture: where it was compared with
several references, it shows the one that it is farthest from. Looks without a report stay in the
table, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rft import reports
from rft.page.drift_pictures import Dot, course, height
from rft.page.markup import Html, card, h, table
from rft.reports import FeatureDrift, drift_words
from rft.words import counted


@dataclass(frozen=True)
class Look:
    """One window that was compared."""

    name: str
    """The run, or the file."""
    window: str
    report: reports.DriftReport | None
    when: str = ""
    """From when to when the window is, as far as it is known."""
    missing: str = ""
    """Why there is no report."""
    alike: int = 0
    """Later runs with the very same report."""


def over_time(looks: Sequence[Look], title: str) -> Html | None:
    """A card with the pictures; None for fewer than two reports."""
    known = [look for look in looks if look.report is not None]
    if len(known) < 2:
        return None
    note = (
        f"{counted(len(known), 'window')}, the latest on the right: {_named(known[0])} to {_named(known[-1])}. The "
        "line at 1 is the smallest effect that counts, and ✗ is a drift. Of several references, the farthest counts."
    )
    parts: list[Html] = []
    for group, (name, _) in drift_words.GROUPS.items():
        panels = _panels(known, group)
        if not panels:
            continue
        inside = h("div", panels, class_="panels")
        if group == "input":
            parts.append(inside)
        else:
            drifted = any(feature.drifted for look in known[-1:] for feature in _of(look, group))
            parts.append(h("details", h("summary", f"{name}: {len(panels)}"), inside, class_="rest", open=drifted))
    return card(title, h("p", note, class_="note"), parts)


def summary(looks: Sequence[Look]) -> Html:
    """A table with a row per look, the latest first."""
    rows = [_row(look) for look in reversed(looks)]
    shown = table(("window", "verdict", "drifted", "farthest of the input", "what to do"), rows, wide=True)
    return card("The windows", shown)


def worst(report: reports.DriftReport) -> str:
    """Name the input feature that is farthest from its reference."""
    feature = drift_words.worst(report)
    if feature is None:
        return "nothing compared"
    return f"{feature.feature} {drift_words.ratio(feature):.2f} ({drift_words.state(feature)})"


def drifted(report: reports.DriftReport) -> str:
    """Count the features that drifted, by group."""
    found: list[str] = []
    for group in drift_words.GROUPS:
        tested = [feature for feature in report.features if feature.group == group and feature.q_value is not None]
        if tested:
            found.append(f"{group} {sum(feature.drifted for feature in tested)} of {len(tested)}")
    return ", ".join(found) or "nothing compared"


def _row(look: Look) -> Html:
    alike = h("small", f"and {counted(look.alike, 'later run')} with the same report") if look.alike else None
    name = h("th", look.name, h("small", f"{look.window}{', ' if look.when else ''}{look.when}"), alike, scope="row")
    if look.report is None:
        return h("tr", name, h("td", "–"), h("td", look.missing, colspan=3, class_="muted"))
    tone, sign = drift_words.VERDICTS[look.report.verdict]
    return h(
        "tr",
        name,
        h("td", f"{sign} {look.report.verdict}", class_=f"verdict {tone}"),
        h("td", drifted(look.report)),
        h("td", worst(look.report)),
        h("td", drift_words.headline(look.report)),
    )


def _panels(looks: Sequence[Look], group: str) -> list[Html]:
    """Make a picture per feature that was ever compared, the farthest of the last window first. All
    have one scale."""
    names = dict.fromkeys(feature.feature for look in looks for feature in _of(look, group))
    courses = {name: [_dot(look, name, group) for look in looks] for name in names}
    known = {name: dots for name, dots in courses.items() if any(dot.ratio is not None for dot in dots)}
    top = height([dot for dots in known.values() for dot in dots])
    found: list[Html] = []
    for name, dots in sorted(known.items(), key=lambda item: (-_last(item[1]), item[0])):
        words = drift_words.named(name)
        caption = h("figcaption", words[:1].upper() + words[1:], " ", h("small", name))
        found.append(h("figure", caption, course(f"{words} over time", dots, top)))
    return found


def _last(dots: Sequence[Dot]) -> float:
    ratio = dots[-1].ratio
    return -1.0 if ratio is None else ratio


def _dot(look: Look, name: str, group: str) -> Dot:
    rows = [feature for feature in _of(look, group) if feature.feature == name and feature.effect is not None]
    if not rows:
        return Dot(_named(look), None, drifted=False, words="")
    farthest = max(rows, key=lambda feature: (feature.drifted, drift_words.ratio(feature)))
    against = drift_words.AGAINST[farthest.against]
    words = f"{drift_words.measured(farthest)}, {drift_words.state(farthest)}, against {against}"
    return Dot(_named(look), drift_words.ratio(farthest), farthest.drifted, words)


def _of(look: Look, group: str) -> list[FeatureDrift]:
    return [] if look.report is None else [feature for feature in look.report.features if feature.group == group]


def _named(look: Look) -> str:
    return look.when or look.name
