"""Filings, and the search over them: tools, questions and the grader all use these.

    Company    a name, and the filings that it has made
    Filing     a document of a company and a period: pages, by their numbers
    Page       a text, and the cells that it shows
    Cell       a figure as it is printed: item, period, value, unit, number

A figure may be printed on several pages: net income is in the income statement and in the cash flow
statement, and next year's filing repeats it. All these pages are places of the figure.

A corpus is all filings of a run. Only corpora.py knows where they come from: statements.py or your
CSV files (tables.py). Search only knows companies and periods. A company's pages are made when
somebody opens them, because a run touches a few of thousands.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from rft.types import Split

BLOCKS = 3
"""How many blocks the test split has."""
NOTHING = " no such document . nearest :"
"""The beginning of a search's reply if no document has all words."""


@dataclass(frozen=True, slots=True)
class Cell:
    item: str
    period: str
    value: Fraction
    unit: str
    number: str
    """The value as the page prints it."""
    restated: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    number: int
    title: str
    text: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Filing:
    doc: str
    company: str
    period: str
    form: str
    pages: tuple[Page, ...]

    def page(self, number: int) -> Page | None:
        return next((page for page in self.pages if page.number == number), None)

    @property
    def line(self) -> str:
        """Write the line that a search shows."""
        pages = " , ".join(f"{page.title} page {page.number}" for page in self.pages if page.cells)
        amended = " amended" if self.form.endswith("A") else ""
        return f" {self.company} {self.period}{amended} {self.doc} : {pages}"


@dataclass(frozen=True, slots=True)
class Figure:
    """What a question may ask for. `restated`: it is the later version. None: there is only one."""

    item: str
    period: str
    restated: bool | None = None


@dataclass(frozen=True, slots=True)
class Place:
    doc: str
    page: int
    cell: Cell


@dataclass(frozen=True)
class Entry:
    """What search knows of a filing."""

    doc: str
    company: str
    period: str
    form: str


@dataclass(frozen=True)
class Corpus:
    entries: Sequence[Entry]
    make: Callable[[str], tuple[Filing, ...]]
    """Makes the filings of a company."""
    families: dict[str, str]
    """Company -> the name that chooses its split. Near-duplicates have the same one."""
    items: tuple[str, ...]
    sha256: str = ""
    """The hash of the user's files, if the corpus was read from files."""
    _made: dict[str, tuple[Filing, ...]] = field(default_factory=dict, repr=False)
    _places: dict[str, dict[Figure, list[Place]]] = field(default_factory=dict, repr=False)

    def filings(self, company: str) -> tuple[Filing, ...]:
        if company not in self._made:
            self._made[company] = self.make(company)
        return self._made[company]

    def filing(self, doc: str) -> Filing | None:
        entry = self._by_doc.get(doc)
        return next((each for each in self.filings(entry.company) if each.doc == doc), None) if entry else None

    def companies(self, split: Split | None = None) -> list[str]:
        return [name for name in self.families if split is None or self.split_of(name) == split]

    def split_of(self, company: str) -> Split:
        """Return the split, by a stable hash of the name: test companies are never trained on."""
        return self.part_of(company)[0]

    def part_of(self, company: str) -> tuple[Split, int]:
        """Return the split and its block. No two parts have a company in common."""
        return part_of(self.families.get(company, company))

    def search(self, query: str, k: int) -> tuple[list[Filing], bool]:
        """Return at most k filings, and whether they have all words of the query. If some have all,
        the others are left out; else those with most words come first. Ties are broken by the
        fewest other words, then by age, the oldest first."""
        having = [self._index.get(word, frozenset()) for word in set(words(query))]
        if not having:
            return [], False
        if those := frozenset.intersection(*sorted(having, key=len)):  # the rarest word first: it is fast
            shown = heapq.nsmallest(k, those, key=self._ranks.__getitem__)
        else:
            counts = Counter(itertools.chain.from_iterable(having))
            shown = heapq.nsmallest(k, counts, key=lambda n: (-counts[n], self._ranks[n]))
        return [filing for n in shown if (filing := self.filing(self.entries[n].doc))], bool(those)

    def places(self, company: str) -> dict[Figure, list[Place]]:
        """Return every figure of a company with all pages that show it."""
        if company not in self._places:
            self._places[company] = self._find_places(company)
        return self._places[company]

    def _find_places(self, company: str) -> dict[Figure, list[Place]]:
        shown = [
            Place(filing.doc, page.number, cell)
            for filing in self.filings(company)
            for page in filing.pages
            for cell in page.cells
        ]
        again = {(place.cell.item, place.cell.period) for place in shown if place.cell.restated}
        found: dict[Figure, list[Place]] = {}
        for place in shown:
            cell = place.cell
            restated = cell.restated if (cell.item, cell.period) in again else None
            found.setdefault(Figure(cell.item, cell.period, restated), []).append(place)
        return found

    @functools.cached_property
    def periods(self) -> list[str]:
        return sorted({entry.period for entry in self.entries})

    @functools.cached_property
    def _by_doc(self) -> dict[str, Entry]:
        return {entry.doc: entry for entry in self.entries}

    @functools.cached_property
    def _words(self) -> list[set[str]]:
        return [set(words(f"{entry.company} {entry.period} {entry.form} {entry.doc}")) for entry in self.entries]

    @functools.cached_property
    def _ranks(self) -> list[tuple[int, str, int]]:
        """Rank the entries for the order of those with equally many words of a query."""
        return [(len(self._words[n]), entry.period, n) for n, entry in enumerate(self.entries)]

    @functools.cached_property
    def _index(self) -> dict[str, frozenset[int]]:
        index: dict[str, list[int]] = {}
        for n, found in enumerate(self._words):
            for word in found:
                index.setdefault(word, []).append(n)
        return {word: frozenset(those) for word, those in index.items()}


@functools.cache
def part_of(family: str) -> tuple[Split, int]:
    """Choose a split and a block of it by hashes of the name. Only the test split has more blocks
    than block 0."""
    percent = zlib.crc32(f"split {family}".encode()) % 100
    if percent >= 70:
        return "test", zlib.crc32(f"block {family}".encode()) % BLOCKS
    return "train" if percent < 60 else "validation", 0


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def reply(found: list[Filing], has_all: bool) -> str:
    """Write what a search answers: one filing a line."""
    if not found:
        return " no such document"
    return "\n".join([*([] if has_all else [NOTHING]), *(filing.line for filing in found)])
