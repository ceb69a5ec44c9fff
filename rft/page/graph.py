"""Draws the picture of an audit: bands, lines, boxes with their chips, and a legend of the signs.

Every box and chip links to its node's section below. A line that is not verified links to its
sentence, and shows it as a tooltip. folding.py decides what is shown, and lanes.py where.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from rft.formatting import counted
from rft.page.folding import Box, Chip, Folded
from rft.page.lanes import Lanes, Route, Spot, lay
from rft.page.lineage import SIGNS, Lineage, css, short
from rft.page.markup import Child, Html, h
from rft.reports.audit import STATES, State

_ROUND = 6.0
_CHAR, _SMALL = 7.6, 6.6  # the width of a character of a box's name and of a chip's, in a wide font


def draw(lineage: Lineage, folded: Folded) -> Html:
    lanes = lay(folded, lineage.position)
    routes = sorted(lanes.routes, key=lambda route: -STATES.index(route.line.state))  # the worst on top
    num_broken = len(lineage.listed)
    told = f"{counted(len(folded.boxes), 'box').replace('boxs', 'boxes')}, {counted(len(routes), 'line')}, "
    told += f"{counted(num_broken, 'broken link')}. Each box leads to its section below, in words."
    return h(
        "svg",
        h("title", "What rests on what"),
        h("desc", told),
        [_band(lanes, number) for number in range(len(lanes.bands))],
        [_line(lineage, route) for route in routes],
        [_box(lineage, spot) for spot in lanes.spots],
        [mark for route in routes if (mark := _mark(lineage, route)) is not None],
        viewBox=f"0 0 {lanes.width:g} {lanes.height:g}",
        role="group",
        aria_label=f"What rests on what, from what is served at the top down to the data: {told}",
        class_="lineage",
        style=f"min-width:{0.85 * lanes.width:.0f}px",
    )


def legend(states: set[State]) -> Html:
    """Explain the signs and dashes of the states in this picture."""
    items = [
        h(
            "li",
            h(
                "svg",
                h("path", d="M1 8 H29", class_=f"way {css(state)}"),
                viewBox="0 0 30 16",
                class_="sample",
                aria_hidden="true",
            ),
            h("b", SIGNS[state]),
            f" {state}",
            class_=css(state),
        )
        for state in reversed(STATES)
        if state in states
    ]
    return h("ul", items, class_="legend")


# -- bands and boxes -------------------------------------------------------------------------------
def _band(lanes: Lanes, number: int) -> Child:
    band = lanes.bands[number]
    x = lanes.left - 8
    return (
        h("rect", x=x, y=band.y, width=lanes.width - x, height=band.height, rx=9, class_="lane"),
        h("text", band.name.upper(), x=lanes.width - 12, y=band.y + 16, text_anchor="end", class_="lane-name"),
    )


def _box(lineage: Lineage, spot: Spot) -> Html:
    box = spot.box
    asked = box.key == lineage.audit.root
    kind, name = _labels(box)
    room = spot.main - (42 if box.state else 24)
    classes = ["box", css(box.state) if box.state else "is-root", "asked" if asked else ""]
    state = box.state or "nothing rests on it here"
    flaw = f", {counted(box.num_broken, 'broken link')}" if box.num_broken else ""
    label = " ".join(filter(None, [kind, short(box.name)]))
    outer = (
        h("rect", x=spot.x, y=spot.y, width=spot.width, height=spot.height, rx=8, class_="around")
        if box.chips
        else None
    )
    body: list[Child] = [
        h("title", f"{kind} {box.name}: {state}{flaw}".strip()),
        h("rect", x=spot.x, y=spot.y, width=spot.main, height=spot.height, rx=8),
    ]
    middle = spot.y + spot.height / 2
    if box.state is not None:
        body.append(_sign(box.state, spot.x + 18, middle))
    x = spot.x + (34 if box.state else 14)
    if kind:
        body += [
            h("text", kind, x=x, y=middle - 5, class_="kind"),
            h("text", fit(short(name), room), x=x, y=middle + 12, class_="strong"),
        ]
    else:
        body.append(h("text", fit(short(name), room), x=x, y=middle + 5, class_="strong"))
    if box.num_broken and box.state not in ("altered", "missing", "doubtful"):
        body.append(_flag(box.num_broken, spot.x + spot.main - 4, spot.y + 4))
    link = h("a", body, href=box.href, aria_label=f"{label}: {state}{flaw}", class_=" ".join(filter(None, classes)))
    chips = [_chip(lineage, chip, at, ends=box.kind != "stage") for chip, at in zip(box.chips, spot.chips, strict=True)]
    anchor = f"box-{lineage.anchors[box.key]}" if box.key in lineage.anchors else None
    return h("g", outer, link, chips, id=anchor)


def _labels(box: Box) -> tuple[str, str]:
    """Return the kind, to stand above the name unless the name says it, and the name."""
    if box.kind in ("folded", "other") or (box.kind == "version" and box.chips):
        return "", box.name
    return box.kind, box.name.removeprefix(f"{box.kind} ").removesuffix(f" {box.kind}")


def _chip(lineage: Lineage, chip: Chip, at: tuple[float, float, float, float], ends: bool) -> Html:
    x, y, width, height = at
    state = chip.state or "no claim"
    text = chip.name if ends else chip.name.removeprefix("data/")
    return h(
        "a",
        h("title", f"{chip.name}: {state}"),
        h("rect", x=x, y=y, width=width, height=height, rx=6),
        _sign(chip.state, x + 12, y + height / 2, small=True) if chip.state else None,
        h("text", fit(short(text), width - 24, _SMALL), x=x + 22, y=y + height / 2 + 4),
        href=f"#node-{lineage.anchors[chip.key]}",
        aria_label=f"{short(chip.name)}: {state}",
        class_=f"chip {css(chip.state)}" if chip.state else "chip",
        id=f"box-{lineage.anchors[chip.key]}",
    )


def _sign(state: State, x: float, y: float, small: bool = False) -> Html:
    radius, class_ = (7.0, "dot small") if small else (9.0, "dot")
    return h(
        "g",
        h("circle", cx=x, cy=y, r=radius),
        h("text", SIGNS[state], x=x, y=y + (3.6 if small else 4.4), text_anchor="middle"),
        class_=f"{class_} {css(state)}",
    )


def _flag(number: int, x: float, y: float) -> Html:
    """Draw the number of broken links around a box whose own state is not broken."""
    text = f"{number:,}"
    width = 9 + 7.0 * len(text)
    return h(
        "g",
        h("rect", x=x - width, y=y - 9, width=width + 4, height=17, rx=8.5),
        h("text", text, x=x - width / 2 + 2, y=y + 3.5, text_anchor="middle"),
        class_="flag",
    )


# -- lines -----------------------------------------------------------------------------------------
def _line(lineage: Lineage, route: Route) -> Html:
    line = route.line
    x, y = route.points[-1]
    head = f"M{x:.1f} {y:.1f} l-4.5 -8 h9 z"
    parts = (
        h("title", _told(lineage, route)),
        h("path", d=_path(route.points), class_="reach") if line.state != "verified" else None,
        h("path", d=_path((*route.points[:-1], (x, y - 6))), class_="way"),
        h("path", d=head, class_="head"),
    )
    return h("g", parts, class_=f"line {css(line.state)}")


def _mark(lineage: Lineage, route: Route) -> Html | None:
    """Draw the sign of a line that is not verified; it links to the line's sentence."""
    line = route.line
    if line.state == "verified":
        return None
    x, y = _middle(route.points)
    worst = next(link for link in line.links if link.state == line.state)
    place = lineage.places.get(id(worst))
    source = lineage.anchors.get(worst.source)
    href = f"#broken-{place}" if place else f"#node-{source}"
    told = _told(lineage, route)
    sign = _sign(line.state, x, y, small=True)
    return h("a", h("title", told), sign, href=href, aria_label=told, class_=f"mark-of {css(line.state)}")


def _told(lineage: Lineage, route: Route) -> str:
    links = sorted(route.line.links, key=lambda link: STATES.index(link.state))
    told = [short(lineage.sentence(link)) for link in links[:4]]
    return "\n".join([*told, f"and {len(links) - 4:,} more links"] if len(links) > 4 else told)


def _path(points: tuple[tuple[float, float], ...]) -> str:
    """Write a path with round corners."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        r = min(_ROUND, math.dist(before, corner) / 2, math.dist(corner, after) / 2)
        near, far = _toward(corner, before, r), _toward(corner, after, r)
        parts.append(f"L{near[0]:.1f} {near[1]:.1f} Q{corner[0]:.1f} {corner[1]:.1f} {far[0]:.1f} {far[1]:.1f}")
    return " ".join([*parts, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"])


def _toward(start: tuple[float, float], end: tuple[float, float], by: float) -> tuple[float, float]:
    length = math.dist(start, end) or 1.0
    return start[0] + (end[0] - start[0]) * by / length, start[1] + (end[1] - start[1]) * by / length


def _middle(points: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """Return the middle of the last long stretch, which is its own rather than a shared one."""
    stretches = [(a, b) for a, b in pairwise(points) if math.dist(a, b) >= 24]
    a, b = stretches[-1] if stretches else max(pairwise(points), key=lambda pair: math.dist(*pair))
    return (a[0] + b[0]) / 2, (a[1] + b[1]) / 2


# -- text ------------------------------------------------------------------------------------------
def fit(text: str, room: float, char: float = _CHAR) -> str:
    """Shorten a text in its middle, so that it fits."""
    text = " ".join(text.split())
    widths = [*_widths(text, char)]
    if sum(widths) <= room:
        return text
    head, tail, used = 0, 0, char
    while head + tail < len(text):
        fits_head = head <= tail
        step = widths[head] if fits_head else widths[-1 - tail]
        if used + step > room:
            break
        used += step
        head, tail = (head + 1, tail) if fits_head else (head, tail + 1)
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _widths(text: str, mean: float) -> Iterator[float]:
    for char in text:
        if unicodedata.combining(char):
            yield 0.0
        else:
            yield 1.8 * mean if unicodedata.east_asian_width(char) in "WF" else mean


def shown(lineage: Lineage, folded: Folded, key: str) -> str | None:
    """Return the anchor of a node in the picture, or of the box that stands for it."""
    box = key if key in folded.chips else folded.place.get(key)
    return f"box-{lineage.anchors[box]}" if box in lineage.anchors else None
