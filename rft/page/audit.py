"""An audit on one page: is every link whole, and if not, which one is broken and why.

`render(audit)` is pure and returns one HTML file. Like the page of a run, it has no script and
loads nothing (its own policy forbids both). It is light or dark by the reader's setting.

First comes the answer in words, with the broken links as sentences. Then comes the picture, in
which each of them can be followed. Then comes a section per node, with everything known about it.
Every name links to its section, and a section names its neighbors. So the page also works without
the picture, by keyboard and with a screen reader.

    lineage    the audit's links by node; anchors, signs, shortened hashes
    folding    what the picture shows as boxes and lines
    lanes      where they lie
    graph      the picture, drawn
    sections   a section per node
"""

from __future__ import annotations

from collections import Counter, defaultdict

from rft.formatting import counted
from rft.page import graph
from rft.page.folding import Folded, fold
from rft.page.lineage import SIGNS, TONES, Lineage, full_stop, hashes, sign
from rft.page.markup import Child, Html, card, h, page
from rft.page.sections import sections
from rft.page.style import AUDIT, STYLE
from rft.reports.audit import STATES, Audit, Link, State

_LISTED = 20  # links that are listed unfolded


def render(audit: Audit) -> str:
    lineage = Lineage(audit)
    folded = fold(lineage)
    body = [
        _header(lineage),
        _broken(lineage, folded),
        _unknown(lineage, folded),
        _picture(lineage, folded),
        *sections(lineage, folded),
    ]
    return page(f"{_badge(audit)[0]}: {audit.question}", STYLE + AUDIT, body, "audit")


# -- the answer ------------------------------------------------------------------------------------
def verdict(audit: Audit) -> str:
    """Say in a sentence how many links are broken, or what else is not verified."""
    if not audit.links:
        return "There is no link to check."
    count = Counter(link.state for link in audit.links)
    num_broken = len(audit.broken())
    if num_broken:
        kinds = ", ".join(f"{count[state]:,} {state}" for state in STATES if count[state] and state in _BAD)
        of = counted(len(audit.links), "link")
        return f"{num_broken:,} of {of} {'is' if num_broken == 1 else 'are'} broken: {kinds}."
    apart: list[str] = []
    if unknown := count["not verifiable"]:
        apart.append(f"{unknown:,} that nobody can verify from here")
    if erased := count["erased"]:
        apart.append(f"{erased:,} whose bytes were erased on purpose")
    if not apart:
        return f"Every link was recomputed and fits: {len(audit.links):,} of {len(audit.links):,}."
    if not count["verified"]:
        return f"No link is verified: {' and '.join(apart)}."
    return f"Every link was recomputed and fits, apart from {' and '.join(apart)}."


_BAD: frozenset[State] = frozenset(state for state, tone in TONES.items() if tone == "bad")


def _badge(audit: Audit) -> tuple[str, str, str]:
    """Return words, tone and sign."""
    if not audit.links:
        return "Nothing to check", "off", "–"
    if num_broken := len(audit.broken()):
        return counted(num_broken, "broken link"), "bad", SIGNS[audit.worst()]
    if not any(link.state == "verified" for link in audit.links):
        return "Not verified", "open", SIGNS["not verifiable"]
    return "No broken link", "good", SIGNS["verified"]


def _header(lineage: Lineage) -> Html:
    audit = lineage.audit
    word, tone, mark = _badge(audit)
    count = Counter(link.state for link in audit.links)
    states = [
        h(
            "li",
            h("span", SIGNS[state], class_=f"sign {TONES[state]}", aria_hidden="true"),
            h("b", f"{count[state]:,}"),
            f" {state}",
            class_=None if count[state] else "none",
        )
        for state in STATES
    ]
    title = audit.question[:1].upper() + audit.question[1:]
    size = f"{counted(len(audit.nodes), 'thing')}, {counted(len(audit.links), 'link')}"
    facts = [("ledger", audit.ledger), ("audited", size)]
    return h(
        "header",
        h(
            "div",
            h("div", h("div", "agent-rft lineage audit", class_="kicker"), h("h1", hashes(title))),
            h("span", h("span", mark, aria_hidden="true"), word, class_=f"badge {tone}"),
            class_="top",
        ),
        h("p", verdict(audit), class_="reason"),
        h("ul", [h("li", hashes(line)) for line in audit.answer], class_="answer") if audit.answer else None,
        h("ul", states, class_="states", aria_label="Links by state"),
        h("dl", [h("div", h("dt", key), h("dd", hashes(value))) for key, value in facts], class_="facts"),
        class_="card",
    )


def _broken(lineage: Lineage, folded: Folded) -> Html | None:
    if not lineage.listed:
        return None
    items = [_item(lineage, folded, link, id_=f"broken-{number}") for number, link in enumerate(lineage.listed, 1)]
    return h("section", h("h2", "Broken links", class_="bad"), _folded_list(items), class_="card broken-card")


def _unknown(lineage: Lineage, folded: Folded) -> Html | None:
    """List what is neither broken nor verified, with the reason."""
    alike: dict[tuple[str, str, str, str], list[Link]] = defaultdict(list)
    for state in ("not verifiable", "erased"):
        for link in lineage.audit.links:
            if link.state == state:
                alike[state, link.says, link.target, link.why].append(link)
    if not alike:
        return None
    items = [_item(lineage, folded, links[0], num_alike=len(links) - 1) for links in alike.values()]
    return card("Not broken, and not verified", _folded_list(items, 6))


def _folded_list(items: list[Html], most: int = _LISTED) -> Child:
    rest = items[most:]
    if len(rest) < 2:
        return h("ul", items, class_="found")
    more = h("details", h("summary", f"and {len(rest):,} more"), h("ul", rest, class_="found"))
    return h("ul", items[:most], class_="found"), more


def _item(lineage: Lineage, folded: Folded, link: Link, id_: str | None = None, num_alike: int = 0) -> Html:
    """Write a link as a full sentence, with a way to its place in the picture."""
    chapter = folded.chapter.get(link.source)
    spot = next((at for key in (link.target, link.source) if (at := graph.shown(lineage, folded, key))), None)
    return h(
        "li",
        sign(link.state),
        h(
            "span",
            ("In ", lineage.ref(chapter), ": ") if chapter not in (None, link.source) and not num_alike else None,
            lineage.ref(link.source),
            f" (and {num_alike:,} more)" if num_alike else None,
            f" {link.says} ",
            lineage.ref(link.target),
            ": ",
            h("b", link.state),
            ". ",
            hashes(full_stop(link.why)),
            (" ", h("a", "In the picture", href=f"#{spot}", class_="there")) if spot else None,
        ),
        id=id_,
    )


# -- the picture -----------------------------------------------------------------------------------
def _picture(lineage: Lineage, folded: Folded) -> Html | None:
    if not folded.boxes:
        return None
    note = (
        "A line means that what is above rests on what the arrow points to. Each box leads to its section below; a "
        "sign shows how the check of the claims about it ended."
    )
    if folded.num_implied:
        note += " Lines that others imply are left out here, but never a broken one; the sections name every link."
    return h(
        "section",
        h("h2", "What rests on what"),
        h("p", note, class_="note"),
        graph.legend({link.state for link in lineage.audit.links}),
        h("div", graph.draw(lineage, folded), class_="scroll", tabindex="0", role="region", aria_label="Picture"),
        class_="card",
        id="picture",
    )
