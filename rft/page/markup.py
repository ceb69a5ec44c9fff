"""Builds HTML that is safe from injection: text is escaped unless it was built here.

`h("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`. A child is text (escaped),
`Html` (already built), a number, None (nothing) or an iterable of these. In attribute names a
trailing underscore is dropped, and other underscores become hyphens. None and False leave an
attribute out. The same function writes SVG.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias

_VOID = frozenset({"meta", "br", "hr", "link", "img"})


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"


def h(tag: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    start = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{start}>")
    return Html(f"<{tag}{start}>{flat(children)}</{tag}>")


def page(title: str, style: str, body: Child, class_: str | None = None) -> str:
    """Make a whole page. It runs no script and loads nothing: its own policy forbids both."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", title),
        h("style", Html(style)),
    )
    return "<!doctype html>\n" + h("html", head, h("body", h("main", body), class_=class_), lang="en") + "\n"


def card(title: str, *children: Child) -> Html:
    """Make a section of the page."""
    return h("section", h("h2", title), *children, class_="card")


def table(head: Sequence[str], *rows: Child, wide: bool = False) -> Html:
    """Make a table that scrolls by itself if it is wider than the page."""
    heads = h("thead", h("tr", [h("th", text, scope="col") for text in head]))
    return h("div", h("table", heads, h("tbody", rows)), class_="scroll wide" if wide else "scroll")


def flat(child: Child) -> Html:
    """Join any nesting of children into one piece of markup."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return Html(html.escape(child))
    if isinstance(child, Iterable):
        return Html("".join(flat(one) for one in child))
    return Html(html.escape(_text(child)))


def _text(value: str | float | bool) -> str:
    if value is True:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
