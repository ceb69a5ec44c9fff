"""Questions: small programs over the cells of a company's filings, whose answers are computed.

    lookup       what was revenue of Amber Harbor Foods in FY2023 ?
    difference   what was gross profit less operating income of Amber Harbor Foods in FY2023 ?
    ratio        what was net income over revenue of Amber Harbor Foods in FY2023 ?
    growth       what was the growth of revenue of Amber Harbor Foods from FY2022 to FY2023 ?

Where a year was restated, the question ends in `as restated` or `as first reported`. A question
without an answer lacks one of three things: the company has filed nothing, or not for this period,
or its filing does not show the item. `Figures.write` makes questions, `parse` reads them back.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from rft.errors import UserError

from .arithmetic import plain
from .filings import Corpus, Figure, Place
from .names import strangers
from .options import Options, Program

ABSTENTION = "not in filings"
OPENINGS = (" what was", " report", " give me")
SCALES = {"units": 1, "thousands": 1_000, "millions": 1_000_000, "billions": 1_000_000_000}
JOINS: dict[Program, str] = {"difference": "less", "ratio": "over"}
PAIRS: dict[Program, tuple[tuple[str, str], ...]] = {
    "difference": (
        ("gross profit", "operating income"), ("operating income", "net income"), ("total assets", "cash"),
        ("debt", "cash"), ("total liabilities", "cash"), ("operating cash flow", "capital expenditure"),
        ("operating cash flow", "dividends"), ("property", "debt"),
    ),
    "ratio": (
        ("net income", "revenue"), ("gross profit", "revenue"), ("debt", "total equity"), ("net income", "total equity"),
        ("operating cash flow", "revenue"), ("capital expenditure", "revenue"), ("cash", "total assets"),
    ),
}  # fmt: skip
"""What is asked of invented filings: no difference that a statement already shows."""
VERSIONS = {None: "", True: " as restated", False: " as first reported"}
Lack = Literal["item", "period", "company"]
LACKS: tuple[Lack, ...] = ("item", "period", "company")
TRIES = 20


@dataclass(frozen=True, slots=True)
class Question:
    program: Program
    company: str
    figures: tuple[Figure, ...]
    """One for a lookup, else two; for growth the earlier first."""

    def text(self, opening: str = OPENINGS[0]) -> str:
        first, last = self.figures[0], self.figures[-1]
        if self.program == "growth":
            return f"{opening} the growth of {first.item} of {self.company} from {first.period} to {last.period} ?"
        what = first.item if self.program == "lookup" else f"{first.item} {JOINS[self.program]} {last.item}"
        return f"{opening} {what} of {self.company} in {first.period}{VERSIONS[first.restated]} ?"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is asked. `lacks`: what the filings lack; None: they have the answer."""

    question: Question
    text: str
    lacks: Lack | None


class Writer:
    """Makes questions about some companies, each text once."""

    def __init__(
        self,
        options: Options,
        corpus: Corpus,
        companies: Sequence[str],
        rng: random.Random,
        openings: Sequence[str] = OPENINGS,
        items: Sequence[str] = (),
    ) -> None:
        """`items`: what is asked for; none: everything."""
        self._options, self._corpus, self._companies, self._rng = options, corpus, list(companies), rng
        self._openings, self._items = openings, frozenset(items)
        known = set(companies)
        splits = {corpus.split_of(name) for name in known}
        if options.folder is None:
            self._strangers = [name for name in strangers(options.companies) if corpus.split_of(name) in splits]
        else:
            self._strangers = [name for name in strangers(0)[:5000] if name not in corpus.families]
        self._seen: set[str] = set()

    def write(self) -> Iterator[Asked]:
        """Yield questions as long as there are new ones."""
        share, due = self._options.unanswerable_share, self._rng.random()
        lacks = itertools.cycle(self._rng.sample(LACKS, len(LACKS)))
        deck: list[str] = []
        fruitless = 0
        while fruitless <= 2 * len(self._companies):
            if not deck:
                deck = self._rng.sample(self._companies, len(self._companies))
            company = deck.pop()
            due += share
            asked = self._unanswerable(company, next(lacks)) if due >= 1 else self._answerable(company)
            due -= due >= 1
            fruitless = 0 if asked else fruitless + 1
            if asked:
                self._seen.add(asked.text)
                yield asked

    def _answerable(self, company: str) -> Asked | None:
        places = self._corpus.places(company)
        chosen = self._rng.random() < self._options.lookup_share
        program: Program = "lookup" if chosen else self._rng.choice(self._options.programs)
        for attempt in range(TRIES):
            if attempt == TRIES // 2:
                program = "lookup"  # the company does not show what the program needs
            figures = self._figures(program, places)
            question = Question(program, company, figures)
            if figures and answers(question, places):
                asked = self._new(question, None)
                if asked:
                    return asked
        return None

    def _unanswerable(self, company: str, lacks: Lack) -> Asked | None:
        places = self._corpus.places(company)
        for attempt in range(TRIES):
            lacking = lacks if attempt < TRIES // 2 else "company"
            shown = self._rng.choice(list(places))
            figure = Figure(shown.item, shown.period)
            if lacking == "company":
                company = self._rng.choice(self._strangers)
            elif lacking == "item":
                there = {known.item for known in places if known.period == figure.period}
                missing = [item for item in self._corpus.items if item not in there]
                if not missing:
                    continue
                figure = Figure(self._rng.choice(missing), shown.period)
            else:
                there = {known.period for known in places}
                missing = [period for period in self._corpus.periods if period not in there]
                if not missing:
                    continue
                figure = Figure(shown.item, self._rng.choice(missing))
            if asked := self._new(Question("lookup", company, (figure,)), lacking):
                return asked
        return None

    def _figures(self, program: Program, places: dict[Figure, list[Place]]) -> tuple[Figure, ...]:
        """Choose figures for a program; none where the company has none."""
        wanted = [figure for figure in places if figure.item in (self._items or self._asked)]
        if not wanted:
            return ()
        first = self._rng.choice(wanted)
        if program == "lookup":
            return (first,)
        if program == "growth":
            others = [each for each in wanted if each.item == first.item and each.period > first.period]
            versions = {first.restated, *(each.restated for each in others)}
            return (first, min(others, key=lambda each: each.period)) if others and versions == {None} else ()
        if self._options.folder is None:
            one, other = self._rng.choice(PAIRS[program])
            first = Figure(one, first.period, first.restated)
            second = Figure(other, first.period, first.restated)
            return (first, second) if first in places and second in places else ()
        alike = [each for each in wanted if each.period == first.period and each.item != first.item]
        return (first, self._rng.choice(alike)) if alike else ()

    @functools.cached_property
    def _asked(self) -> frozenset[str]:
        return frozenset(self._corpus.items)

    def _new(self, question: Question, lacks: Lack | None) -> Asked | None:
        text = question.text(self._rng.choice(self._openings))
        return None if text in self._seen else Asked(question, text, lacks)


def take(written: Iterator[Asked], count: int, what: str) -> list[Asked]:
    """Return so many questions. Raises UserError where there are fewer."""
    found = list(itertools.islice(written, count))
    if len(found) < count:
        raise UserError(
            f"recipes/filings: only {len(found)} of {count} different questions can be asked of {what}. Lower "
            "examples.train, examples.validation or examples.test in params.yaml, or add companies."
        )
    return found


# -- answers ---------------------------------------------------------------------------------------
def answers(question: Question, places: dict[Figure, list[Place]]) -> list[tuple[Fraction, str]]:
    """Compute the answers that are right, one for each unit in which the filings show it; none
    where there is no sensible one."""
    shown = [[place.cell for place in places.get(figure, [])] for figure in question.figures]
    found: dict[tuple[Fraction, str], None] = {}
    for cells in itertools.product(*shown):
        first, last = cells[0], cells[-1]
        if question.program == "lookup":
            found[first.value, first.unit] = None
            continue
        one, other = first.value * scale(first.unit), last.value * scale(last.unit)
        same = first.unit == last.unit
        if not same and (first.unit not in SCALES or last.unit not in SCALES):
            continue
        if question.program == "difference" and same and one != other:
            found[first.value - last.value, first.unit] = None
        elif question.program == "ratio" and one and other:
            found[one / other, "ratio"] = None
        elif question.program == "growth" and one > 0 and one != other:
            found[(other - one) / one * 100, "percent"] = None
    return list(found)


def scale(unit: str) -> int:
    return SCALES.get(unit, 1)


def target(question: Question, corpus: Corpus) -> Any:
    """Return what the grader needs: the right answers, and for each operand the places that show
    it."""
    places = corpus.places(question.company)
    return {
        "answers": [{"value": number(value), "unit": unit} for value, unit in answers(question, places)],
        "operands": [[place_row(corpus, place) for place in places[figure]] for figure in question.figures],
    }


def place_row(corpus: Corpus, place: Place) -> dict[str, Any]:
    return {
        "doc": place.doc,
        "page": place.page,
        "item": place.cell.item,
        "number": place.cell.number,
        "quote": quote(corpus, place),
    }


def quote(corpus: Corpus, place: Place) -> str:
    """Return the line of the page that shows a cell."""
    filing = corpus.filing(place.doc)
    page = filing.page(place.page) if filing else None
    assert page is not None
    cell = place.cell
    return next(line for line in page.text.split("\n") if shows(line, cell.item, cell.number))


def shows(text: str, item: str, number: str) -> bool:
    """Whether a text has both, the item as whole words and the number as a whole number."""
    return bool(_whole_words(item).search(text) and _whole_number(number).search(text))


@functools.lru_cache(maxsize=4096)
def _whole_words(item: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(item)}(?!\w)")


@functools.lru_cache(maxsize=4096)
def _whole_number(number: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.,(-]){re.escape(number)}(?![\w)]|[.,]\d)")


def number(value: Fraction) -> int | float:
    """Return a value as JSON writes it."""
    return value.numerator if value.denominator == 1 else float(plain(value))


# -- reading ---------------------------------------------------------------------------------------
def parse(text: str, corpus: Corpus) -> Question | None:
    """Read a question in one of the forms above; None for any other text."""
    growth, other = _patterns(corpus.items)
    if found := growth.fullmatch(text):
        figures = (Figure(found["a"], found["first"]), Figure(found["a"], found["last"]))
        return Question("growth", found["company"], figures)
    if not (found := other.fullmatch(text)):
        return None
    restated = next(flag for flag, words in VERSIONS.items() if words == (found["version"] or ""))
    figures = tuple(Figure(item, found["period"], restated) for item in (found["a"], found["b"]) if item)
    program = next((name for name, join in JOINS.items() if join == found["join"]), "lookup")
    return Question(program, found["company"], figures)


@functools.lru_cache(maxsize=8)
def _patterns(items: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    item = "|".join(re.escape(each) for each in sorted(items, key=len, reverse=True))
    joins = "|".join(JOINS.values())
    growth = rf".*? the growth of (?P<a>{item}) of (?P<company>.+) from (?P<first>\S+.*?) to (?P<last>\S.*?) \?"
    versions = "|".join(words for words in VERSIONS.values() if words)
    other = (
        rf".*? (?P<a>{item})(?: (?P<join>{joins}) (?P<b>{item}))? of (?P<company>.+) in (?P<period>\S.*?)"
        rf"(?P<version>{versions})? \?"
    )
    return re.compile(growth), re.compile(other)
