"""A section per node of an audit: what is known about it, what it rests on, and what rests on it.

Nodes outside closed chapters (folding.py) have their sections in cards named after the picture's
bands. Files are under the stage that wrote them. A closed chapter is folded, unless a link in it is
broken. A browser opens a folded part when somebody follows a link into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rft.formatting import counted
from rft.page.folding import BANDS, Chapter, Folded, band_of, owners
from rft.page.lineage import Lineage, broken, full_stop, hashes, named, sign, worst
from rft.page.markup import Child, Html, card, h
from rft.reports.audit import STATES, Link, Node

_LINKS = 8  # shown unfolded per node and direction; broken ones always are


def sections(lineage: Lineage, folded: Folded) -> Iterator[Html]:
    inside = {key for chapter in folded.chapters for key in chapter.members}
    owner = owners(lineage)
    files: dict[str, list[Node]] = defaultdict(list)
    bands: dict[str, list[Node]] = {band: [] for band in BANDS}
    for node in lineage.nodes.values():
        if node.id in inside:
            continue
        if (stage := owner.get(node.id)) is not None and stage not in inside:
            files[stage].append(node)
        else:
            bands[band_of(node)].append(node)
    for band, nodes in bands.items():
        if nodes:
            yield card(band, [_with_files(lineage, node, files.get(node.id, [])) for node in nodes])
    if folded.chapters:
        yield card(folded.past, [_chapter(lineage, chapter) for chapter in folded.chapters])


def _with_files(lineage: Lineage, stage: Node, files: list[Node]) -> Child:
    if not files:
        return section(lineage, stage)
    keys = [node.id for node in files]
    title = f"{counted(len(files), 'file or folder').replace('file or folders', 'files and folders')} of {named(stage)}"
    return section(lineage, stage), _fold(lineage, title, files, keys, "files")


def _chapter(lineage: Lineage, chapter: Chapter) -> Html:
    nodes = [lineage.nodes[key] for key in chapter.members]
    run = "" if chapter.run is None else f", run {chapter.run.name}"
    return _fold(lineage, f"{named(chapter.head)}{run}", nodes, list(chapter.members), "chapter")


def _fold(lineage: Lineage, title: str, nodes: list[Node], keys: list[str], class_: str) -> Html:
    links = [*lineage.around(keys)]
    state = worst(links)
    num_broken = sum(map(broken, links))
    about = f"{counted(len(nodes), 'thing')}, {counted(len(links), 'link')}"
    about += f", {num_broken:,} of them broken" if num_broken else ""
    return h(
        "details",
        h("summary", sign(state), h("b", title), h("span", f" {about}", class_="muted")),
        [section(lineage, node) for node in nodes],
        class_=class_,
        open=bool(num_broken),
    )


def section(lineage: Lineage, node: Node) -> Html:
    anchor = lineage.anchors[node.id]
    kind = None if named(node) == node.name and node.kind not in ("bytes", "person", "alias") else node.kind
    asked = h("span", "asked about", class_="pill") if node.id == lineage.audit.root else None
    facts = [h("div", h("dt", key), h("dd", hashes(value))) for key, value in node.about.items()]
    return h(
        "section",
        h(
            "h3",
            sign(lineage.state(node.id)),
            h("span", kind, class_="muted") if kind else None,
            " " if kind else None,
            h("bdi", hashes(node.name)),
            asked,
        ),
        h("dl", facts, class_="facts") if facts else None,
        _list("rests on", [_out(lineage, link) for link in _ordered(lineage.links_from.get(node.id, []))]),
        _list("named by", [_in(lineage, link) for link in _ordered(lineage.links_to.get(node.id, []))]),
        id=f"node-{anchor}",
        class_="node",
    )


def _ordered(links: list[Link]) -> list[Link]:
    """The worst first, else as the audit has them."""
    return sorted(links, key=lambda link: STATES.index(link.state))


def _list(title: str, items: list[Html]) -> Html | None:
    if not items:
        return None
    rest = items[_LINKS:]
    more = h("details", h("summary", f"and {len(rest):,} more"), h("ul", rest)) if len(rest) > 1 else None
    return h("div", h("h4", title), h("ul", items[:_LINKS] if more else items), more, class_="links")


def _out(lineage: Lineage, link: Link) -> Html:
    why = h("small", hashes(full_stop(link.why))) if link.why else None
    return h("li", sign(link.state), h("span", f"{link.says} ", lineage.ref(link.target), _word(lineage, link), why))


def _in(lineage: Lineage, link: Link) -> Html:
    why = h("small", hashes(full_stop(link.why))) if broken(link) else None
    return h(
        "li", sign(link.state), h("span", lineage.ref(link.source), f" {link.says} this", _word(lineage, link), why)
    )


def _word(lineage: Lineage, link: Link) -> Child:
    """Write the state in words, unless it is verified."""
    if link.state == "verified":
        return None
    place = lineage.places.get(id(link))
    word = h("b", link.state, class_="bad" if broken(link) else "muted")
    return ": ", h("a", word, href=f"#broken-{place}") if place else word
