"""An audit as its page reads it: links by node, anchors, states of nodes, signs of states.

A state has a color, a sign and a dash, so that no meaning depends on color alone. A node itself has
no state. It shows the worst state of the links that lead to it, or none if no link does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from rft.page.markup import Child, Html, h
from rft.reports.audit import BROKEN, STATES, Audit, Link, Node, State

SIGNS: dict[State, str] = {
    "altered": "✗",
    "missing": "!",
    "doubtful": "?",
    "erased": "∅",
    "not verifiable": "–",
    "verified": "✓",
}
TONES: dict[State, str] = {
    "altered": "bad",
    "missing": "bad",
    "doubtful": "bad",
    "erased": "off",
    "not verifiable": "open",
    "verified": "good",
}
SHORT = 12
"""How many characters of a hash are shown; a tooltip has the whole hash."""
_HASH = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-f]{32,64}(?:\.dir)?|SHA256:[0-9A-Za-z+/]{43})(?![0-9A-Za-z])")
_NO_ANCHOR = re.compile(r"[^0-9A-Za-z._-]+")


def css(state: State) -> str:
    return f"is-{state.replace(' ', '-')}"


def worst(links: Iterable[Link]) -> State | None:
    found = {link.state for link in links}
    return next((state for state in STATES if state in found), None)


def short(text: str) -> str:
    """Shorten every hash in a text, for places without markup."""
    return _HASH.sub(lambda found: _cut(found[0]), text)


def hashes(text: str) -> list[Child]:
    """Shorten every hash in a text; a tooltip has the whole hash."""
    parts: list[Child] = []
    end = 0
    for found in _HASH.finditer(text):
        parts += [text[end : found.start()], h("code", _cut(found[0]), title=found[0])]
        end = found.end()
    return [*parts, text[end:]]


def _cut(digest: str) -> str:
    start = len("SHA256:") if digest.startswith("SHA256:") else 0
    return f"{digest[: start + SHORT]}…"


@cache
def sign(state: State | None) -> Html | None:
    """Return the sign of a state for use in text; it is read aloud as a word."""
    if state is None:
        return None
    mark = h("span", SIGNS[state], class_=f"sign {TONES[state]}", aria_hidden="true", title=state)
    return h("span", mark, h("span", f"{state}: ", class_="aloud"))


@dataclass(frozen=True)
class Lineage:
    audit: Audit

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.id: node for node in self.audit.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Node -> its place in reading order."""
        return {key: place for place, key in enumerate(self.nodes)}

    @cached_property
    def links_from(self) -> dict[str, list[Link]]:
        found: dict[str, list[Link]] = defaultdict(list)
        for link in self.audit.links:
            found[link.source].append(link)
        return found

    @cached_property
    def links_to(self) -> dict[str, list[Link]]:
        found: dict[str, list[Link]] = defaultdict(list)
        for link in self.audit.links:
            found[link.target].append(link)
        return found

    @cached_property
    def anchors(self) -> dict[str, str]:
        """Node -> its id in the page, without `node-`. Ids that differ stay different."""
        found: dict[str, str] = {}
        taken: set[str] = set()
        for key in self.nodes:
            plain = anchor = _NO_ANCHOR.sub("-", key).strip("-") or "x"
            number = 1
            while anchor in taken:
                number += 1
                anchor = f"{plain}-{number}"
            taken.add(anchor)
            found[key] = anchor
        return found

    @cached_property
    def listed(self) -> list[Link]:
        """The broken links as the page lists them: the worst state first, each in reading order."""
        far = len(self.position)

        def order(link: Link) -> tuple[int, int, int]:
            ends = self.position.get(link.source, far), self.position.get(link.target, far)
            return STATES.index(link.state), *ends

        return sorted(self.audit.broken(), key=order)

    @cached_property
    def places(self) -> dict[int, int]:
        """A broken link's identity -> its number in that list, from 1."""
        return {id(link): number for number, link in enumerate(self.listed, 1)}

    def state(self, key: str) -> State | None:
        return worst(self.links_to.get(key, []))

    def around(self, keys: Collection[str]) -> Iterator[Link]:
        """Yield the links that begin or end at any of these nodes."""
        inside = frozenset(keys)
        for key in keys:
            yield from self.links_from.get(key, [])
            yield from (link for link in self.links_to.get(key, []) if link.source not in inside)

    def name(self, key: str) -> str:
        """Return what people call a node, with its kind unless the name says it."""
        node = self.nodes.get(key)
        return key if node is None else named(node)

    def ref(self, key: str) -> Child:
        """Return a link to a node's section; plain text for a node that the audit does not hold."""
        if key not in self.nodes:
            return short(key)
        return h("a", short(self.name(key)), href=f"#node-{self.anchors[key]}", title=self.name(key))

    def sentence(self, link: Link) -> str:
        return f"{self.name(link.source)} {link.says} {self.name(link.target)}: {link.state}. {full_stop(link.why)}"


def named(node: Node) -> str:
    if node.kind.lower() in node.name.lower() or node.kind in ("bytes", "person", "alias"):
        return node.name
    return f"{node.kind} {node.name}"


def full_stop(text: str) -> str:
    """Write a reason as a sentence; a path or a name at its start stays as it is."""
    text = text.strip()
    word = text.split(" ", 1)[0]
    start = text[:1].upper() if word.isalpha() else text[:1]
    return start + text[1:] + ("" if not text or text.endswith((".", "!", "?")) else ".")


def broken(link: Link) -> bool:
    return link.state in BROKEN
