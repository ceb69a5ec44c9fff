"""What the picture of an audit shows: boxes and lines, few enough to be followed.

An audit has a node per file and a link per claim, and every champion rests on the one before it.
Four rules keep the picture small enough to follow. The sections below it leave nothing out.

    bytes       are chips in the box of the stage that wrote them, and so is the stage's own code
    chapters    a version is a chapter, with everything that only it rests on. So is a run that was
                never promoted. The chapter that was asked about is open. Each other one is a box,
                with its run as a chip. If many were asked about, none is open, and things that
                several rest on share a box
    many        if there are more than a dozen of one kind, the others share a box
    lines       a verified link is not drawn if longer paths of links imply it

A broken link is never left out: both its ends keep a box or chip, and it keeps its line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rft.formatting import counted
from rft.page.lineage import Lineage, broken, named, worst
from rft.reports.audit import Kind, Link, Node, State

OLDER, VERSIONS, OTHER = "Before it", "Versions and runs", "Other things"
BANDS: dict[str, tuple[Kind, ...]] = {
    "Served": ("alias", "version", "weights"),
    VERSIONS: (),
    "Signed": ("ledger", "entry", "person", "machine"),
    "Run": ("run", "revision"),
    "Stages": ("stage",),
    "Made with": (
        "code",
        "parameters",
        "environment",
        "package",
        "recipe",
        "tools",
        "base model",
        "prompt",
        "bytes",
    ),
    "Data": ("examples", "example", "window", "conversations", "conversation"),
    OLDER: (),
    OTHER: (),
}
"""Band -> kinds of nodes in it, from what is served down to the conversations."""
_BAND = {kind: band for band, kinds in BANDS.items() for kind in kinds}
_OPEN = 48  # boxes: with more, and if not a single version was asked about, chapters are closed
_ALIKE = 12  # boxes of one kind in an open band
_ANCESTORS = 3
_HISTORY = 60  # closed chapters, where many were asked about
_FILES = 12  # chips of one stage


@dataclass(frozen=True)
class Chip:
    key: str
    name: str
    state: State | None


@dataclass(frozen=True)
class Box:
    key: str
    """The node that it is named after, or `fold: ...` for a shared box."""
    band: str
    name: str
    kind: str
    state: State | None
    href: str
    num_broken: int = 0
    """How many links of the nodes in this box are broken."""
    chips: tuple[Chip, ...] = ()


@dataclass(frozen=True)
class Line:
    source: str
    target: str
    links: tuple[Link, ...]
    state: State


@dataclass(frozen=True)
class Chapter:
    """A version, or a run without one, and the nodes that belong to it."""

    head: Node
    run: Node | None
    members: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    boxes: list[Box]
    lines: list[Line]
    place: dict[str, str]
    """Node -> the key of its box."""
    chapters: list[Chapter]
    """The closed chapters, in reading order."""
    past: str
    """The band of the closed chapters."""
    num_implied: int
    """How many lines are not drawn, because others imply them."""

    @cached_property
    def chapter(self) -> dict[str, str]:
        """Node -> the head of its chapter, if that is closed."""
        return {key: chapter.head.id for chapter in self.chapters for key in chapter.members}

    @cached_property
    def chips(self) -> frozenset[str]:
        return frozenset(chip.key for box in self.boxes for chip in box.chips)


def fold(lineage: Lineage) -> Folded:
    heads = _heads(lineage)
    focus = _focus(lineage, heads)
    closed = _closed(lineage, heads, focus)
    past = OLDER if focus else VERSIONS
    boxes, place = _history(lineage, closed, past, _ANCESTORS if focus else _HISTORY)
    owner = owners(lineage)
    files: dict[str, list[str]] = defaultdict(list)
    alike: dict[Kind, list[Node]] = defaultdict(list)
    others: list[Node] = []
    for node in lineage.nodes.values():
        if node.id in place:
            continue
        if closed and focus is None and node.kind != "alias" and not _stands_out(lineage, node):
            others.append(node)
            continue
        stage = owner.get(node.id)
        if stage is not None and stage not in place and node.id != lineage.audit.root:
            files[stage].append(node.id)
        else:
            alike[node.kind].append(node)
    for kind, found in alike.items():
        shown, rest = _split(lineage, found, _ALIKE)
        for node in shown:
            boxes.append(_box(lineage, node, files.get(node.id, [])))
            place |= dict.fromkeys([node.id, *files.get(node.id, [])], node.id)
        if rest:
            box = _shared(lineage, rest, _BAND[kind], f"{len(rest):,} more", kind)
            boxes.append(box)
            place |= {key: box.key for node in rest for key in (node.id, *files.get(node.id, []))}
    if others:
        boxes.append(_shared(lineage, others, OTHER, counted(len(others), "thing"), "other"))
        place |= dict.fromkeys([node.id for node in others], boxes[-1].key)
    lines, num_implied = _lines(lineage, boxes, place, {chapter.head.id for chapter in closed})
    return Folded(boxes, lines, place, closed, past, num_implied)


# -- chapters --------------------------------------------------------------------------------------
def _heads(lineage: Lineage) -> list[str]:
    """Return versions, and runs that no version rests on."""
    found = [key for key, node in lineage.nodes.items() if node.kind == "version"]
    seen = set(found) | _reach(lineage, found, down=True)
    for key, node in lineage.nodes.items():
        if node.kind == "run" and key not in seen:
            found.append(key)
            seen |= _reach(lineage, [key], down=True)
    return sorted(found, key=lineage.position.__getitem__)


def _chapters(lineage: Lineage, heads: list[str], focus: str | None) -> list[Chapter]:
    """Assign nodes to the chapters of the heads.

    A node under several heads belongs to the chapter that was asked about, if that is one of them.
    Otherwise it belongs to the first of them, or to none if no chapter was asked about.
    """
    home: dict[str, str | None] = {head: head for head in heads}
    tops = frozenset(heads)
    for head in sorted(heads, key=lambda head: head != focus):
        todo = [head]
        seen = {head}
        while todo:
            for link in lineage.links_from.get(todo.pop(), []):
                key = link.target
                if key in tops or key in seen or key not in lineage.nodes:
                    continue
                seen.add(key)
                if key not in home:
                    home[key] = head
                elif focus is None and home[key] is not None:
                    home[key] = None
                else:
                    continue  # what it rests on was visited before, too
                todo.append(key)
    for key, node in lineage.nodes.items():  # an alias of one thing belongs to it; that of a version stays visible
        ends = {home.get(link.target) for link in lineage.links_from.get(key, [])}
        if node.kind == "alias" and key not in home and len(ends) == 1:
            head = ends.pop()
            home[key] = head if head is not None and lineage.nodes[head].kind == "run" else None
    members: dict[str, list[str]] = {head: [] for head in heads}
    for key in lineage.nodes:
        if (head := home.get(key)) is not None:
            members[head].append(key)
    return [_chapter(lineage, head, found) for head, found in members.items()]


def _chapter(lineage: Lineage, head: str, members: list[str]) -> Chapter:
    runs = (lineage.nodes[key] for key in members if lineage.nodes[key].kind == "run" and key != head)
    return Chapter(lineage.nodes[head], next(runs, None), tuple(members))


def _focus(lineage: Lineage, heads: list[str]) -> str | None:
    """Return the head of the chapter that was asked about, if the question was what it rests on."""
    root = lineage.audit.root
    if root is None or root not in lineage.nodes or root in heads:
        return root if root in heads else None
    below, above = _reach(lineage, [root], down=True), _reach(lineage, [root], down=False)
    if len(below) < len(above):
        return None  # the audit asks what depends on it, or it rests on little
    near = [head for head in heads if head in above]
    return next(iter(near or [head for head in heads if head in below]), None)  # an alias: the version that it names


def _reach(lineage: Lineage, starts: list[str], down: bool) -> set[str]:
    found: set[str] = set()
    todo = [*starts]
    while todo:
        key = todo.pop()
        ends = (
            [link.target for link in lineage.links_from.get(key, [])]
            if down
            else [link.source for link in lineage.links_to.get(key, [])]
        )
        new = {end for end in ends if end not in found}
        found |= new
        todo += new
    return found


def _closed(lineage: Lineage, heads: list[str], focus: str | None) -> list[Chapter]:
    if focus is None and sum(node.kind != "bytes" for node in lineage.nodes.values()) <= _OPEN:
        return []
    return [chapter for chapter in _chapters(lineage, heads, focus) if chapter.head.id != focus]


def _history(lineage: Lineage, closed: list[Chapter], band: str, most: int) -> tuple[list[Box], dict[str, str]]:
    """Make a box per closed chapter. The node that was asked about keeps its own box."""
    boxes: list[Box] = []
    place: dict[str, str] = {}
    rest: list[Chapter] = []
    root = lineage.audit.root
    for number, chapter in enumerate(closed):
        links = [*lineage.around(chapter.members)]
        num_broken = sum(map(broken, links))
        if number >= most and not num_broken and len(closed) > most + 1:
            rest.append(chapter)
            continue
        run = (
            []
            if chapter.run is None or chapter.run.id == root
            else [Chip(chapter.run.id, chapter.run.name, lineage.state(chapter.run.id))]
        )
        head = chapter.head
        href = f"#node-{lineage.anchors[head.id]}"
        boxes.append(Box(head.id, band, named(head), head.kind, worst(links), href, num_broken, tuple(run)))
        place |= dict.fromkeys(chapter.members, head.id)
    if rest:
        members = [key for chapter in rest for key in chapter.members]
        href = f"#node-{lineage.anchors[rest[0].head.id]}"
        name = counted(len(rest), "older one") if band == OLDER else f"{len(rest):,} more"
        key = f"fold: {band}"
        boxes.append(Box(key, band, name, "folded", worst(lineage.around(members)), href))
        place |= dict.fromkeys(members, key)
    if root is not None and root not in {chapter.head.id for chapter in closed}:
        place.pop(root, None)
    return boxes, place


def band_of(node: Node) -> str:
    return _BAND[node.kind]


# -- boxes -----------------------------------------------------------------------------------------
def owners(lineage: Lineage) -> dict[str, str]:
    """Map bytes to the stage that wrote them, or the only one that names them, and code that only
    one stage uses to that stage. Bytes from elsewhere have their own box."""
    found: dict[str, str] = {}
    for key, node in lineage.nodes.items():
        named_by = [link for link in lineage.links_to.get(key, []) if _is_stage(lineage, link.source)]
        if node.kind == "code" and len(named_by) == len(lineage.links_to.get(key, [])) == 1:
            found[key] = named_by[0].source
        if node.kind != "bytes":
            continue
        wrote = [link.source for link in named_by if link.says == "wrote"]
        wrote += [link.target for link in lineage.links_from.get(key, []) if _is_stage(lineage, link.target)]
        if not wrote and len({link.source for link in named_by}) == 1:
            wrote = [named_by[0].source]
        if wrote:
            found[key] = wrote[0]
    return found


def _is_stage(lineage: Lineage, key: str) -> bool:
    return key in lineage.nodes and lineage.nodes[key].kind == "stage"


def _split(lineage: Lineage, found: list[Node], most: int) -> tuple[list[Node], list[Node]]:
    """Return the nodes that keep a box, and those that share one."""
    if len(found) <= most:
        return found, []
    first = {node.id for node in found[: most - 1]}
    kept = [node for node in found if node.id in first or _stands_out(lineage, node)][: 4 * most]
    names = {node.id for node in kept}
    return kept, [node for node in found if node.id not in names]


def _stands_out(lineage: Lineage, node: Node) -> bool:
    """Whether it keeps its own box: it was asked about, or a broken link leads to it."""
    return node.id == lineage.audit.root or any(map(broken, lineage.links_to.get(node.id, [])))


def _box(lineage: Lineage, node: Node, files: list[str]) -> Box:
    shown, rest = _split(lineage, [lineage.nodes[key] for key in files], _FILES)
    chips = [Chip(file.id, file.name, lineage.state(file.id)) for file in shown]
    if rest:
        state = worst(link for file in rest for link in lineage.links_to.get(file.id, []))
        chips.append(Chip(rest[0].id, f"and {len(rest):,} more", state))
    num_broken = sum(map(broken, lineage.around([node.id, *files])))
    href = f"#node-{lineage.anchors[node.id]}"
    return Box(node.id, _BAND[node.kind], node.name, node.kind, lineage.state(node.id), href, num_broken, tuple(chips))


def _shared(lineage: Lineage, rest: list[Node], band: str, name: str, kind: str) -> Box:
    links = [*lineage.around([node.id for node in rest])]
    href = f"#node-{lineage.anchors[rest[0].id]}"
    return Box(f"fold: {kind}", band, name, kind, worst(links), href, sum(map(broken, links)))


# -- lines -----------------------------------------------------------------------------------------
def _lines(lineage: Lineage, boxes: list[Box], place: dict[str, str], closed: set[str]) -> tuple[list[Line], int]:
    joined: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in lineage.audit.links:
        ends = place.get(link.source), place.get(link.target)
        if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
            joined[ends[0], ends[1]].append(link)
    after: dict[str, set[str]] = defaultdict(set)
    order = [*BANDS]
    band = {box.key: order.index(box.band) for box in boxes}
    for source, target in joined:
        if band[source] <= band[target]:  # weights rest on their run: a path upwards implies nothing
            after[source].add(target)
    lines: list[Line] = []
    root = lineage.audit.root
    for (source, target), links in joined.items():
        state = worst(links) or "verified"
        quiet = state == "verified" or (source in closed and not any(map(broken, links)))
        if quiet and target != root and _implied(after, source, target):
            after[source].discard(target)
        else:
            lines.append(Line(source, target, tuple(links), state))
    return lines, len(joined) - len(lines)


def _implied(after: dict[str, set[str]], source: str, target: str) -> bool:
    """Whether a path of two or more lines leads from source to target."""
    todo = [key for key in after[source] if key != target]
    seen = {source, *todo}
    while todo:
        nexts: Iterable[str] = after.get(todo.pop(), ())
        if target in nexts:
            return True
        new = [key for key in nexts if key not in seen]
        seen.update(new)
        todo += new
    return False
