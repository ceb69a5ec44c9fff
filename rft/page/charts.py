"""Pictures as inline SVG: a line chart, a paired histogram, an interval against its margin.

Pictures of drift are in drift_pictures.py.

Every picture has a title and a description, for people who cannot see it. Widths are in units of
the view box: 440 fills half a row on a desktop and a whole row on a phone, where its text is still
readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rft.formatting import decimal
from rft.page.markup import Child, Html, h

WIDTH = 440.0


@dataclass(frozen=True)
class Series:
    """One line. `kind` is the CSS class that sets colour and dash: champion, champion_new_prompt,
    challenger."""

    label: str
    kind: str
    points: Sequence[tuple[float, float]]
    faint: Sequence[tuple[float, float]] = ()
    """The raw values behind a smoothed line."""


@dataclass(frozen=True)
class Frame:
    """Converts from data to picture coordinates."""

    x0: float
    x1: float
    y0: float
    y1: float
    left: float = 40.0
    right: float = WIDTH - 12.0
    top: float = 14.0
    bottom: float = 206.0

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0 or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y0) / (self.y1 - self.y0 or 1.0) * (self.bottom - self.top)


def image(title: str, description: str, width: float, height: float, *children: Child) -> Html:
    label = f"{title}. {description}"
    return h(
        "svg",
        h("title", title),
        h("desc", description),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
    )


def marker(kind: str, x: float, y: float, size: float = 4.0) -> Html:
    """Draw a circle, square or diamond, so that arms differ even without colour."""
    if kind == "champion":
        return h("circle", cx=x, cy=y, r=size, class_="hollow")
    if kind == "champion_new_prompt":
        return h("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_="hollow")
    r = 1.3 * size
    return h("path", d=f"M{x:.2f} {y - r:.2f} l{r:.2f} {r:.2f} l{-r:.2f} {r:.2f} l{-r:.2f} {-r:.2f} z", class_="fill")


def legend_mark(kind: str) -> Html:
    """Draw the same marker for use in text."""
    return h(
        "svg", h("g", marker(kind, 6, 6, 4.2), class_=kind), viewBox="0 0 12 12", class_="mark", aria_hidden="true"
    )


def lines(
    title: str, description: str, series: Sequence[Series], x_label: str, y_label: str, dots: bool = False
) -> Html:
    """Draw values over steps or over k."""
    points = [point for one in series for point in (*one.points, *one.faint)]
    low, high = _span([y for _, y in points])
    frame = Frame(min(x for x, _ in points), max(x for x, _ in points), low, high, right=WIDTH - 16, top=28)
    whole = sorted({x for x, _ in points})
    ticks = whole if len(whole) <= 8 else _ticks(frame.x0, frame.x1, 5)
    body: list[Child] = [_grid(frame, ticks, x_label, y_label)]
    for one in series:
        marks = [marker(one.kind, frame.x(x), frame.y(y), 3.4) for x, y in (one.points if dots else one.points[-1:])]
        faint = h("path", d=_path(frame, one.faint), class_="faint") if one.faint else None
        body.append(h("g", faint, h("path", d=_path(frame, one.points), class_="stroke"), marks, class_=one.kind))
    return image(title, description, WIDTH, 240, body)


def histogram(
    title: str, description: str, bars: Sequence[tuple[str, str, dict[int, float], float]], x_label: str
) -> Html:
    """Draw shares side by side. Each of `bars` is (label, kind, share by value, P95)."""
    last = max((value for _, _, shares, _ in bars for value in shares), default=1)
    top = max((share for _, _, shares, _ in bars for share in shares.values()), default=1.0)
    frame = Frame(-0.6, last + 0.6, 0.0, _span([0.0, top])[1], top=34)
    step = frame.x(1) - frame.x(0)
    width = min(16.0, 0.8 * step / len(bars))
    every = max(1, math.ceil((last + 1) / 12))
    body: list[Child] = [_grid(frame, list(range(0, last + 1, every)), x_label, "share", percent=True)]
    for i, (_, kind, shares, p95) in enumerate(bars):
        left = (i - len(bars) / 2) * width
        fill = "hollow" if kind == "champion" else "fill"
        side, anchor = (5, "start") if frame.x(p95) < WIDTH - 70 else (-5, "end")
        body.append(
            h(
                "g",
                [
                    h(
                        "rect",
                        x=frame.x(value) + left + 0.5,
                        y=frame.y(share),
                        width=width - 1,
                        height=frame.bottom - frame.y(share),
                        class_=fill,
                    )
                    for value, share in sorted(shares.items())
                    if share > 0
                ],
                h(
                    "path",
                    d=f"M{frame.x(p95):.1f} {frame.bottom:.1f} V{24 - 12 * i:.1f}",
                    class_="faint",
                    style="opacity:1;stroke-dasharray:3 3",
                ),
                h("text", f"P95 {p95:g}", x=frame.x(p95) + side, y=28 - 12 * i, class_="own", text_anchor=anchor),
                class_=kind,
            )
        )
    return image(title, description, WIDTH, 240, body)


def forest(title: str, description: str, rows: Sequence[tuple[str, str, float, float, float]]) -> Html:
    """Draw values with intervals, one below the other: (label, kind, value, low, high)."""
    low, high = _span([x for row in rows for x in row[3:]], pad=0.06)
    height = 34.0 * len(rows) + 30
    frame = Frame(low, high, 0, 1, left=16, right=WIDTH - 16, top=6, bottom=height - 26)
    body: list[Child] = [
        (
            h("path", d=f"M{frame.x(x):.1f} {frame.top} V{frame.bottom}", class_="axis"),
            h("text", _short(x, high - low), x=frame.x(x), y=height - 9, text_anchor="middle"),
        )
        for x in _ticks(low, high, 5)
    ]
    for i, (label, kind, value, left, right) in enumerate(rows):
        y = frame.top + 34 * i + 23
        body.append(
            h(
                "g",
                h(
                    "path",
                    d=f"M{frame.x(left):.1f} {y} H{frame.x(right):.1f}",
                    class_="stroke",
                    style="stroke-dasharray:none",
                ),
                marker(kind, frame.x(value), y, 4.6),
                h(
                    "text",
                    f"{label} {decimal(value)}",
                    x=min(max(frame.x(value), 60.0), WIDTH - 70.0),
                    y=y - 10,
                    text_anchor="middle",
                    class_="own",
                ),
                class_=kind,
            )
        )
    return image(title, description, WIDTH, height, body)


def interval(
    title: str,
    description: str,
    value: float,
    low: float | None,
    high: float | None,
    margin: float,
    good_above: bool,
    tone: str,
) -> Html:
    """Draw one check on its own scale. The side of the margin that passes is shaded; the interval
    should lie in it."""
    seen = [value, margin, 0.0, *(x for x in (low, high) if x is not None)]
    left, right = min(seen), max(seen)
    pad = 0.1 * (right - left or 1.0)
    frame = Frame(left - pad, right + pad, 0, 1, left=0, right=260, top=0, bottom=26)
    edge = frame.x(margin)
    zone = h(
        "rect", x=edge if good_above else 0, y=3, width=260 - edge if good_above else edge, height=20, class_="zone"
    )
    bar = None
    if low is not None and high is not None:
        bar = h("path", d=f"M{frame.x(low):.1f} 13 H{frame.x(high):.1f}", stroke_width=3, stroke_linecap="round")
    return image(
        title,
        description,
        260,
        26,
        h("rect", x=0, y=3, width=260, height=20, rx=3, class_="track"),
        zone,
        h("path", d=f"M{frame.x(0.0):.1f} 3 V23", class_="axis"),
        h("path", d=f"M{edge:.1f} 0 V26", class_="rule"),
        h("g", bar, h("circle", cx=frame.x(value), cy=13, r=5), class_=f"s-{tone}"),
    )


# -- axes ------------------------------------------------------------------------------------------
def _grid(frame: Frame, xs: Iterable[float], x_label: str, y_label: str, percent: bool = False) -> list[Child]:
    span = frame.y1 - frame.y0
    return [
        [
            (
                h("path", d=f"M{frame.left} {frame.y(y):.1f} H{frame.right}", class_="axis"),
                h(
                    "text",
                    f"{100 * y:.0f} %" if percent else _short(y, span),
                    x=frame.left - 6,
                    y=frame.y(y) + 4,
                    text_anchor="end",
                ),
            )
            for y in _ticks(frame.y0, frame.y1, 4)
        ],
        [h("text", f"{x:g}", x=frame.x(x), y=frame.bottom + 16, text_anchor="middle") for x in xs],
        h("text", x_label, x=(frame.left + frame.right) / 2, y=frame.bottom + 32, text_anchor="middle"),
        h("text", y_label, x=0, y=10),
    ]


def _path(frame: Frame, points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)


def _span(values: Sequence[float], pad: float = 0.0) -> tuple[float, float]:
    """Return round ends that enclose all values, never an empty span."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 0.05, high + 0.05
    room = pad * (high - low)
    step = _step((high - low) / 4)
    return math.floor((low - room) / step + 1e-9) * step, math.ceil((high + room) / step - 1e-9) * step


def _ticks(low: float, high: float, about: int) -> list[float]:
    step = _step((high - low) / about)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _step(raw: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(raw, 1e-12)))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))


def _short(x: float, span: float) -> str:
    """Write as many digits as are needed to tell neighboring ticks apart."""
    digits = max(0, 1 - math.floor(math.log10(max(span, 1e-12))))
    return decimal(x, digits)
