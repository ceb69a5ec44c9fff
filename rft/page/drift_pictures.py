"""Pictures of drift: an effect on its scale, both sides as pairs of bars, effects over time.

scale    one effect. The threshold is in the middle of every scale, so that scales can be
         compared; what chance alone reaches is shaded
pairs    the share of each value, in the reference and in the window. Labels and shares are
         text beside the bars, so that they wrap on a phone and can be read aloud
course   one feature over several windows, its effects in thresholds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rft.page.charts import Frame, image
from rft.page.markup import Child, Html, h
from rft.reports import Bar

_WIDTH, _CENTER = 320.0, 160.0
_PANEL = 260.0
_HIGHEST = 4.0
"""How many thresholds a course shows. Higher effects are drawn at the top, with a mark."""


def scale(title: str, description: str, effect: float, noise: float | None, tone: str) -> Html:
    """Draw an effect and the noise, both in thresholds. An effect above two is cut, with a mark."""
    end = max(min(effect, 2.0) * _CENTER, 3.0)
    over = h("path", d=f"M{_WIDTH - 14} 4 l6 6 l-6 6 M{_WIDTH - 7} 4 l6 6 l-6 6", class_="cut") if effect > 2 else None
    shade = None
    if noise is not None:
        shade = h("rect", x=0, y=1, width=max(min(noise, 1.0) * _CENTER, 1.0), height=18, rx=3, class_="chance")
    return image(
        title,
        description,
        _WIDTH,
        20,
        h("rect", x=0, y=1, width=_WIDTH, height=18, rx=3, class_="track"),
        shade,
        h("g", h("rect", x=0, y=6, width=end, height=8, rx=2, stroke="none"), class_=f"s-{tone}"),
        over,
        h("path", d=f"M{_CENTER} 0 V20", class_="threshold"),
    )


def legend(with_noise: bool, with_pairs: bool) -> Html:
    """Explain the marks that are used."""

    def mark(*children: Child) -> Html:
        return h("svg", children, viewBox="0 0 22 14", class_="mark wide-mark", aria_hidden="true")

    track = h("rect", x=0, y=1, width=22, height=12, rx=2, class_="track")
    bar = h("g", h("rect", x=0, y=5, width=16, height=4, stroke="none"), class_="s-off")
    shade = h("rect", x=0, y=1, width=9, height=12, class_="chance")
    return h(
        "p",
        h("span", mark(track, bar), "effect"),
        h("span", mark(track, h("path", d="M11 0 V14", class_="threshold")), "smallest that counts"),
        h("span", mark(track, shade), "what chance reaches") if with_noise else None,
        [h("span", _mark(side), side) for side in ("reference", "window")] if with_pairs else None,
        class_="note legend",
    )


def _mark(side: str) -> Html:
    bar = h("rect", x=1, y=2, width=20, height=10, class_=f"side {side}")
    return h("svg", bar, viewBox="0 0 22 14", class_="mark wide-mark", aria_hidden="true")


# -- reference against window ----------------------------------------------------------------------
def pairs(bars: Sequence[Bar], title: str) -> Html:
    """Draw each value's share on both sides, on one scale."""
    longest = max((max(bar.reference, bar.current) for bar in bars), default=0.0) or 1.0
    rows = [
        h(
            "tr",
            h("th", h("bdi", bar.label), scope="row"),
            h("td", _pair(bar, longest), class_="picture"),
            h("td", _share(bar.reference), class_="num"),
            h("td", _share(bar.current), class_="num"),
        )
        for bar in bars
    ]
    head = h("tr", [h("th", text, scope="col", class_=kind) for text, kind in _HEAD])
    return h("table", h("thead", head), h("tbody", rows), class_="pairs", aria_label=title)


_HEAD = (("value", None), ("", "picture"), ("reference", "num"), ("window", "num"))


def _pair(bar: Bar, longest: float) -> Html:
    sides = (("reference", 1.0, bar.reference), ("window", 10.0, bar.current))
    return h(
        "svg",
        [
            h("rect", x=0.5, y=y, width=max(99.0 * share / longest, 0.3), height=7, class_=f"side {side}")
            for side, y, share in sides
        ],
        viewBox="0 0 100 18",
        preserveAspectRatio="none",
        class_="pair",
        aria_hidden="true",
    )


def _share(share: float) -> str:
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %"


# -- over time -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Dot:
    """One window. `ratio`: its effect in thresholds; None: not compared."""

    name: str
    ratio: float | None
    drifted: bool
    description: str


def height(dots: Sequence[Dot]) -> float:
    """Return the top of a scale, in thresholds, that holds all dots up to the highest allowed."""
    seen = [dot.ratio for dot in dots if dot.ratio is not None]
    return min(max([1.5, *(1.1 * ratio for ratio in seen)]), _HIGHEST)


def course(title: str, dots: Sequence[Dot], top: float) -> Html:
    """Draw effects over the windows, in their order, with a gap where nothing was compared. Effects
    above `top` are drawn at the top, with a mark."""
    last = max(len(dots) - 1, 1)
    frame = Frame(0, last, 0, top, left=26, right=_PANEL - 10, top=10, bottom=84)
    drifted = sum(dot.drifted for dot in dots)
    latest = "not compared" if not dots or dots[-1].ratio is None else f"{dots[-1].ratio:.2f} thresholds"
    description = f"Over {len(dots)} windows, {drifted} of them drifted; the last: {latest}."
    marks: list[Child] = []
    for n, dot in enumerate(dots):
        if dot.ratio is None:
            continue
        x, y = frame.x(n), frame.y(min(dot.ratio, top))
        tip = h("title", f"{dot.name}: {dot.description}")
        if dot.drifted:
            path = f"M{x - 4:.1f} {y - 4:.1f} l8 8 m0 -8 l-8 8"
            marks.append(h("g", tip, h("path", d=path, class_="cross"), class_="s-bad"))
        else:
            marks.append(h("g", tip, h("circle", cx=round(x, 1), cy=round(y, 1), r=3), class_="s-off"))
        if dot.ratio > top:
            arrow = h("path", d=f"M{x - 4:.1f} {y - 5:.1f} l4 -4 l4 4", class_="beyond")
            marks.append(h("g", arrow, class_="s-bad" if dot.drifted else "s-off"))
    zone = h("rect", x=frame.left, y=frame.top, width=frame.right - frame.left, height=frame.y(1) - frame.top)
    return image(
        title,
        description,
        _PANEL,
        90,
        h("g", zone, class_="above"),
        h("path", d=f"M{frame.left} {frame.bottom} H{frame.right}", class_="axis"),
        h("path", d=f"M{frame.left} {frame.y(1):.1f} H{frame.right}", class_="threshold"),
        h("text", "1", x=frame.left - 6, y=round(frame.y(1) + 4, 1), text_anchor="end"),
        h("text", "0", x=frame.left - 6, y=frame.bottom + 4, text_anchor="end"),
        h("path", d=_segments(frame, dots, top), class_="course"),
        marks,
    )


def _segments(frame: Frame, dots: Sequence[Dot], top: float) -> str:
    parts: list[str] = []
    pen = False
    for n, dot in enumerate(dots):
        if dot.ratio is not None:
            parts.append(f"{'L' if pen else 'M'}{frame.x(n):.1f} {frame.y(min(dot.ratio, top)):.1f}")
        pen = dot.ratio is not None
    return " ".join(parts)
