"""Questions: small programs over the cells of a company's filings, whose answers are computed.

    lookup       what was the revenue of Amber Harbor Foods in FY2023 ?
    difference   what was the gross profit less operating income of Amber Harbor Foods in FY2023 ?
    ratio        what was the net income over revenue of Amber Harbor Foods in FY2023 ?
    growth       what was the growth of revenue of Amber Harbor Foods from FY2022 to FY2023 ?

If a year was restated, the question ends in `as restated` or `as first reported`. `answers`
computes the right answer from the cells, in each unit that the filings show. asking.py chooses
what is asked.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .arithmetic import plain
from .filings import Corpus, Figure, Place
from .options import Program

ABSTENTION = "not in filings"
OPENINGS = (" what was the", " report the", " give me the")
SCALES = {"units": 1, "thousands": 1_000, "millions": 1_000_000, "billions": 1_000_000_000}
JOINS: dict[Program, str] = {"difference": "less", "ratio": "over"}
VERSIONS = {None: "", True: " as restated", False: " as first reported"}


@dataclass(frozen=True, slots=True)
class Question:
    program: Program
    company: str
    figures: tuple[Figure, ...]
    """One figure for a lookup, else two. For growth the earlier comes first."""

    def text(self, opening: str = OPENINGS[0]) -> str:
        first, last = self.figures[0], self.figures[-1]
        if self.program == "growth":
            return f"{opening} growth of {first.item} of {self.company} from {first.period} to {last.period} ?"
        what = first.item if self.program == "lookup" else f"{first.item} {JOINS[self.program]} {last.item}"
        return f"{opening} {what} of {self.company} in {first.period}{VERSIONS[first.restated]} ?"


# -- answers ---------------------------------------------------------------------------------------
def answers(question: Question, places: dict[Figure, list[Place]]) -> list[tuple[Fraction, str]]:
    """Compute the right answers, one for each unit in which the filings show it. Empty: no answer
    makes sense."""
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
    """Return what the grader needs: the right answers, and the places that show each operand."""
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
    """Whether a text has both the item, as whole words, and the number, as a whole number."""
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
    """Read a question in one of the forms above. None for any other text."""
    growth, other = _patterns(corpus.items)
    if found := growth.fullmatch(text):
        figures = (Figure(found["a"], found["first"]), Figure(found["a"], found["last"]))
        return Question("growth", found["company"], figures)
    if not (found := other.fullmatch(text)):
        return None
    restated = next(flag for flag, phrase in VERSIONS.items() if phrase == (found["version"] or ""))
    figures = tuple(Figure(item, found["period"], restated) for item in (found["a"], found["b"]) if item)
    program: Program = "lookup"
    if found["join"]:
        program = "difference" if found["join"] == JOINS["difference"] else "ratio"
    return Question(program, found["company"], figures)


@functools.lru_cache(maxsize=8)
def _patterns(items: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    item = "|".join(re.escape(each) for each in sorted(items, key=len, reverse=True))
    joins = "|".join(JOINS.values())
    growth = rf".*? growth of (?P<a>{item}) of (?P<company>.+) from (?P<first>\S+.*?) to (?P<last>\S.*?) \?"
    versions = "|".join(phrase for phrase in VERSIONS.values() if phrase)
    other = (
        rf".*? (?P<a>{item})(?: (?P<join>{joins}) (?P<b>{item}))? of (?P<company>.+) in (?P<period>\S.*?)"
        rf"(?P<version>{versions})? \?"
    )
    return re.compile(growth), re.compile(other)
