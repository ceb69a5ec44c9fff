"""The page of an audit: everything that is named has its place, what is broken comes first and is
red, and nothing of the data becomes markup."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.page import audit as page
from rft.page.folding import fold
from rft.page.lanes import Spot, lay
from rft.page.lineage import Lineage
from rft.reports.audit import BROKEN as BROKEN_STATES
from rft.reports.audit import STATES, Audit, Link, Node, State
from tests.page import sample_audits
from tests.page.sample_audits import Book

VOID = {"meta", "br", "hr"}
RED = ("is-altered", "is-missing", "is-doubtful")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list["Element | str"])

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, tag: str, class_: str = "") -> list[Element]:
        found: list[Element] = [self] if self.tag == tag and (not class_ or class_ in self.classes) else []
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(tag, class_)
        return found


class Page(HTMLParser):
    """The page as a tree, whose tags must balance."""

    def __init__(self, text: str):
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]
        self.elements: list[Element] = []
        self.feed(text)
        self.close()
        assert self.open == [self.root]
        self.ids = {one.attributes["id"]: one for one in self.elements if "id" in one.attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def card(self, title: str) -> Element | None:
        return next(
            (one for one in self.root.all("section", "card") if one.all("h2") and one.all("h2")[0].text == title), None
        )

    @property
    def picture(self) -> Element:
        return self.root.all("svg", "lineage")[0]


SAMPLES = {
    "verified": sample_audits.verified,
    "each state": sample_audits.each_state,
    "everything": sample_audits.everything,
    "upwards": sample_audits.upwards,
}


@pytest.fixture(scope="module")
def audits() -> dict[str, Audit]:
    return {name: make() for name, make in SAMPLES.items()}


@pytest.fixture(scope="module")
def texts(audits: dict[str, Audit]) -> dict[str, str]:
    return {name: page.render(audit) for name, audit in audits.items()}


@pytest.fixture(scope="module")
def pages(texts: dict[str, str]) -> dict[str, Page]:
    return {name: Page(text) for name, text in texts.items()}


# -- whole and safe --------------------------------------------------------------------------------
def assert_whole(audit: Audit, found: Page) -> None:
    """Each node has one section, each link leads somewhere, no id is there twice."""
    ids = [one.attributes["id"] for one in found.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    sections = found.root.all("section", "node")
    assert len(sections) == len(audit.nodes)
    hrefs = [one.attributes["href"] for one in found.root.all("a")]
    assert all(href.startswith("#") and href[1:] in found.ids for href in hrefs)
    assert not [name for one in found.elements for name in one.attributes if name.startswith("on") or name == "src"]
    assert not {"script", "link", "img", "iframe", "object"} & {one.tag for one in found.elements}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_node_has_one_section_and_every_link_a_target(
    audits: dict[str, Audit], pages: dict[str, Page], texts: dict[str, str], name: str
) -> None:
    assert_whole(audits[name], pages[name])
    assert "url(" not in texts[name]
    policy = next(one for one in pages[name].root.all("meta") if "http-equiv" in one.attributes)
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "prefers-color-scheme: dark" in texts[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_equal_audits_give_equal_bytes(texts: dict[str, str], name: str) -> None:
    assert page.render(SAMPLES[name]()) == texts[name]


def test_a_section_has_all_that_is_known_and_its_links_both_ways(pages: dict[str, Page]) -> None:
    section = pages["verified"].ids["node-entry-42"]
    assert section.all("h3")[0].text == "verified: entry 42, promotion".replace("verified:", "✓verified:")
    assert [one.text for one in section.all("dt")] == ["SHA 256"]
    assert [one.attributes["href"] for one in section.all("a")] == [
        "#node-entry-41",
        "#node-machine-m1",
        "#node-entry-40",
        "#node-version-6",
    ]
    assert "answers entry 40, request" in section.text
    assert "icd10 version 6 was promoted by this" in section.text


def test_hashes_are_shortened_and_whole_in_a_tooltip(pages: dict[str, Page], texts: dict[str, str]) -> None:
    whole = sample_audits.sha("e6")
    shown = [one for one in pages["verified"].root.all("code") if one.attributes.get("title") == whole]
    assert shown
    assert {one.text for one in shown} == {f"{whole[:12]}…"}
    assert not any(whole in one.text for one in pages["verified"].root.all("section"))


# -- the answer in words ---------------------------------------------------------------------------
def test_the_verdict_says_the_worst(audits: dict[str, Audit]) -> None:
    assert page.verdict(audits["verified"]) == (
        "Every link was recomputed and fits, apart from 2 that nobody can verify from here."
    )
    assert page.verdict(audits["upwards"]) == "Every link was recomputed and fits: 14 of 14."
    assert page.verdict(audits["each state"]) == "4 of 134 links are broken: 2 altered, 1 missing, 1 doubtful."
    assert page.verdict(one_link("erased")) == "No link is verified: 1 whose bytes were erased on purpose."
    assert page.verdict(one_link("missing")) == "1 of 1 link is broken: 1 missing."
    assert page.verdict(Audit(question="what x rests on", ledger="no ledger", nodes=[], links=[])) == (
        "There is no link to check."
    )


@pytest.mark.parametrize("state", [state for state in STATES if state != "verified"])
def test_what_is_not_verified_is_never_green(state: State) -> None:
    found = Page(page.render(one_link(state)))
    badge = found.root.all("span", "badge")[0]
    assert "good" not in badge.classes
    assert not found.picture.all("g", "is-verified")
    assert not found.picture.all("a", "is-verified")


def test_the_header_counts_every_state_and_names_the_ledger(audits: dict[str, Audit], pages: dict[str, Page]) -> None:
    states = pages["each state"].root.all("ul", "states")[0]
    assert [one.text for one in states.all("li")] == [
        "✗2 altered",
        "!1 missing",
        "?1 doubtful",
        "∅1 erased",
        "–2 not verifiable",
        "✓127 verified",
    ]
    header = pages["each state"].root.all("header")[0]
    assert "entry 42, SHA-256" in header.text
    assert header.all("h1")[0].text == "What icd10's champion 6 rests on"
    up = pages["upwards"].root.all("ul", "answer")[0]
    assert [one.text for one in up.all("li")] == audits["upwards"].answer


def test_broken_links_come_first_each_as_a_sentence(audits: dict[str, Audit], pages: dict[str, Page]) -> None:
    found = pages["each state"]
    card = found.card("Broken links")
    assert card is not None
    headings = [one.text for one in found.root.all("h2")]
    assert headings[:3] == ["Broken links", "Not broken, and not verified", "What rests on what"]
    items = card.all("li")
    assert [one.all("b")[0].text for one in items] == ["altered", "altered", "missing", "doubtful"]
    assert (
        "icd10@champion names icd10 version 6: altered. The alias was moved by hand: it names version 4, and the "
        "ledger version 6. Put it right: rft reconcile." in items[0].text
    )
    assert "data/train/adapter: altered. data/train/adapter/adapter_model" in items[1].text
    places = [item.all("a", "there")[0].attributes["href"] for item in items]
    assert places[:2] == ["#box-version-6", "#box-bytes-data-train-adapter-6"]
    picture = {one.attributes["id"] for tag in ("g", "a") for one in found.picture.all(tag) if "id" in one.attributes}
    assert {place[1:] for place in places} <= picture
    assert pages["verified"].card("Broken links") is None


def test_what_many_claim_alike_and_nobody_can_verify_is_said_once(pages: dict[str, Page]) -> None:
    card = pages["everything"].card("Not broken, and not verified")
    assert card is not None
    assert [one.text.split(":")[1].split("http")[0].strip() for one in card.all("li")] == [
        "stage baseline (and 49 more) called",
        "stage policy (and 49 more) began with base model Qwen/Qwen3-4B",
    ]


# -- the picture -----------------------------------------------------------------------------------
def test_a_broken_link_is_red_in_the_picture_with_its_why(pages: dict[str, Page]) -> None:
    picture = pages["each state"].picture
    lines = [one for one in picture.all("g", "line") if set(RED) & set(one.classes)]
    assert sorted(one.classes[1] for one in lines) == ["is-altered", "is-doubtful", "is-missing"]
    told = {one.classes[1]: one.all("title")[0].text for one in lines}
    assert "The alias was moved by hand" in told["is-altered"]
    marks = [one for one in picture.all("a", "mark-of") if set(RED) & set(one.classes)]
    assert sorted(one.attributes["href"] for one in marks) == ["#broken-1", "#broken-3", "#broken-4"]
    chip = pages["each state"].ids["box-bytes-data-train-adapter-6"]
    assert "is-altered" in chip.classes  # inside the box of its stage there is no line
    assert "✗" in chip.text
    assert not [one for one in pages["verified"].picture.all("g", "line") if set(RED) & set(one.classes)]


def test_each_state_has_a_sign_of_its_own(pages: dict[str, Page]) -> None:
    picture = pages["each state"].picture
    signs = {one.classes[-1]: one.text for one in picture.all("g", "dot")}
    assert len(signs) == 6
    assert len(set(signs.values())) == 6


def test_the_picture_is_named_and_each_box_can_be_reached(pages: dict[str, Page]) -> None:
    picture = pages["verified"].picture
    assert picture.attributes["aria-label"].startswith("What rests on what, from what is served at the top")
    assert all(one.attributes["aria-label"] and one.attributes["href"] for one in picture.all("a"))
    bands = [one.text for one in picture.all("text", "lane-name")]
    assert bands == ["SERVED", "SIGNED", "RUN", "STAGES", "MADE WITH", "DATA", "BEFORE IT"]


def test_older_champions_share_a_box(pages: dict[str, Page]) -> None:
    texts = [one.text for one in pages["verified"].picture.all("text", "strong")]
    assert texts[-4:] == ["icd10 version 5", "icd10 version 4", "icd10 version 3", "2 older ones"]


def test_of_many_versions_only_versions_and_runs_are_seen(audits: dict[str, Audit], pages: dict[str, Page]) -> None:
    found = pages["everything"]
    boxes = found.picture.all("a", "box")
    assert len(boxes) == 1 + 50 + 1
    assert len(found.picture.all("a", "chip")) == 50
    red = [one for one in boxes if set(RED) & set(one.classes)]
    assert [one.attributes["href"] for one in red] == ["#node-version-31"]
    card = found.card("Broken links")
    assert card is not None
    assert "In icd10 version 31: stage examples wrote data/examples/test.jsonl: altered." in card.text
    assert card.all("a", "there")[0].attributes["href"] == "#box-version-31"
    opened = [one for one in found.root.all("details", "chapter") if "open" in one.attributes]
    assert len(opened) == 1


def test_an_audit_upwards_leads_from_the_versions_to_what_was_asked_about(pages: dict[str, Page]) -> None:
    boxes = pages["upwards"].picture.all("a", "box")
    assert boxes[0].attributes["href"] == "#node-version-6"
    assert boxes[-1].attributes["href"] == "#node-conversation-c-1"
    assert "asked" in boxes[-1].classes
    into_root = [
        one for one in pages["upwards"].picture.all("title") if "holds conversation 8f3a-77: verified" in one.text
    ]
    assert len(into_root) == 2


def test_a_line_leads_from_each_of_many_versions_to_what_was_asked_about() -> None:
    audit = sample_audits.upwards(range(20, 0, -1))
    folded = fold(Lineage(audit))
    assert len(folded.chapters) == 20
    assert sum(line.target == audit.root for line in folded.lines) == 20
    assert_whole(audit, Page(page.render(audit)))
    assert_followable(audit)


def test_a_champion_on_which_another_rests_directly_and_through_others_has_its_line() -> None:
    """A line into what was asked about is never left out as implied."""
    book = Book()
    new, old, talk = book.node("version", "2"), book.node("version", "1"), book.node("conversation", "c")
    for source, target in ((new, old), (new, talk), (old, talk)):
        book.link(source, "rests on", target)
    folded = fold(Lineage(book.audit("what depends on conversation c", talk)))
    assert len(folded.lines) == 3


def test_an_old_champion_with_a_broken_link_keeps_its_box() -> None:
    audit = sample_audits.verified()
    book = Book(list(audit.nodes), list(audit.links))
    book.changed(book.find("version:1", "entry:7"), "altered", "it was edited")
    found = Page(page.render(book.audit(audit.question, audit.root)))
    names = [one.text for one in found.picture.all("text", "strong")]
    assert names[-2:] == ["icd10 version 3", "icd10 version 1"] or "icd10 version 1" in names
    red = [one.attributes["href"] for one in found.picture.all("a", "box") if set(RED) & set(one.classes)]
    assert red == ["#node-version-1"]


def assert_followable(audit: Audit) -> None:
    """No line runs over a box, no box over another, and what is broken is seen."""
    lineage = Lineage(audit)
    folded = fold(lineage)
    lanes = lay(folded, lineage.position)
    for route in lanes.routes:
        for (x0, y0), (x1, y1) in pairwise(route.points):
            for spot in lanes.spots:
                assert apart(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1), spot), (route.line, spot.box.key)
    for number, one in enumerate(lanes.spots):
        assert lanes.left <= one.x < one.x + one.width <= lanes.width
        assert 0 <= one.y < one.y + one.height <= lanes.height
        assert all(apart(one.x, one.y, one.x + one.width, one.y + one.height, spot) for spot in lanes.spots[:number])
    for one, other in combinations(lanes.routes, 2):
        if one.line.source != other.line.source and one.line.target != other.line.target:
            assert not any(on_top(a, b) for a in pairwise(one.points) for b in pairwise(other.points)), (one, other)
    boxes = {box.key: box for box in folded.boxes}
    assert folded.place.keys() == lineage.nodes.keys()
    drawn = {id(link): line for line in folded.lines for link in line.links}
    for link in audit.broken():
        if link.source in lineage.nodes and link.target in lineage.nodes:
            source, target = folded.place[link.source], folded.place[link.target]
            assert boxes[source].num_broken
            assert boxes[target].num_broken
            assert source == target or drawn[id(link)].state in BROKEN_STATES


Stretch = tuple[tuple[float, float], tuple[float, float]]


def on_top(one: Stretch, other: Stretch) -> bool:
    """Whether two stretches, each level or upright, run over one another for a while."""
    for along, across in ((0, 1), (1, 0)):
        if one[0][across] == one[1][across] == other[0][across] == other[1][across]:
            ends = [sorted((a[along], b[along])) for a, b in (one, other)]
            return min(ends[0][1], ends[1][1]) - max(ends[0][0], ends[1][0]) > 0.01
    return False


def apart(x0: float, y0: float, x1: float, y1: float, spot: Spot) -> bool:
    return x1 <= spot.x or x0 >= spot.x + spot.width or y1 <= spot.y or y0 >= spot.y + spot.height


@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_runs_over_a_box_and_what_is_broken_is_seen(audits: dict[str, Audit], name: str) -> None:
    assert_followable(audits[name])


# -- hard input ------------------------------------------------------------------------------------
def one_link(state: State, why: str = "because") -> Audit:
    book = Book()
    book.link(book.node("version", "1"), "rests on", book.node("run", "r"), why, state)
    return book.audit("what version 1 rests on", "version:1")


def test_text_of_the_data_is_escaped() -> None:
    nasty = '<script>alert("&")</script> \'ü漢 <a href="https://x">'
    book = Book()
    top = book.node("version", nasty, nasty, **{nasty: nasty})
    book.link(top, nasty, book.node("run", nasty + "2", nasty), nasty, "altered")
    audit = book.audit(nasty, top, nasty)
    text = page.render(audit.model_copy(update={"ledger": nasty}))
    assert_whole(audit, Page(text))
    assert "<script" not in text
    card = Page(text).card("Broken links")
    assert card is not None
    assert card.text.count(nasty) == 4


def test_ids_that_look_alike_keep_apart() -> None:
    book = Book()
    names = ["a/b", "a b", "a-b", "ä", "ö", ""]
    for one, other in pairwise(names):
        book.link(book.node("bytes", one), "is beside", book.node("bytes", other))
    assert_whole(audit := book.audit("what is alike", None), Page(page.render(audit)))


def test_an_audit_of_nothing_is_a_page() -> None:
    audit = Audit(question="what depends on package x", answer=["Nothing."], ledger="no ledger", nodes=[], links=[])
    found = Page(page.render(audit))
    assert_whole(audit, found)
    assert "Nothing to check" in found.root.text


def test_many_broken_links_are_all_named() -> None:
    book = Book()
    top = book.node("version", "1")
    for number in range(300):
        book.link(top, "rests on", book.node("package", f"p{number}"), "gone", "missing")
    audit = book.audit("what version 1 rests on", top)
    found = Page(page.render(audit))
    assert_whole(audit, found)
    assert {f"broken-{number}" for number in range(1, 301)} <= found.ids.keys()
    assert len(found.picture.all("a", "box")) < 60
    folded = next(one for one in found.picture.all("a", "box") if "more" in one.text)
    assert "is-missing" in folded.classes


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph_is_drawn_whole(data: st.DataObject) -> None:
    kinds = ("alias", "version", "entry", "run", "revision", "stage", "bytes", "code", "window", "conversation")
    count = data.draw(st.integers(1, 14))
    nodes = [
        Node(id=str(number), kind=data.draw(st.sampled_from(kinds)), name=data.draw(st.text(max_size=5)))
        for number in range(count)
    ]
    ends = st.integers(0, count).map(str)  # the last is not a node
    links = [
        Link(source=source, target=target, says="x", state=state, why="")
        for source, target, state in data.draw(st.lists(st.tuples(ends, ends, st.sampled_from(STATES)), max_size=40))
    ]
    root = data.draw(st.one_of(st.none(), ends))
    audit = Audit(question="x", ledger="none", root=root, nodes=nodes, links=links)
    assert_followable(audit)
    found = Page(page.render(audit))
    assert_whole(audit, found)
    for number in range(1, len(audit.broken()) + 1):
        assert f"broken-{number}" in found.ids
