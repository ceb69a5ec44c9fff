"""Chooses what is asked about some companies: every text once, some of them without an answer.

The filings do not answer a fixed share of the questions. For these there are three reasons in turn:
the company has filed nothing, or not for this period, or its filing does not show the item. Other
companies show such periods and items, so the question alone does not tell that it has no answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rft.errors import UserError

from .filings import Corpus, Figure, Place
from .names import strangers
from .options import Options, Program
from .questions import OPENINGS, Question, answers

PAIRS: dict[Program, tuple[tuple[str, str], ...]] = {
    "difference": (
        ("gross profit", "operating income"), ("operating income", "net income"), ("total assets", "cash"),
        ("debt", "cash"), ("total liabilities", "cash"), ("operating cash flow", "capital expenditure"),
        ("operating cash flow", "dividends"), ("property", "debt"),
    ),
    "ratio": (
        ("net income", "revenue"), ("gross profit", "revenue"), ("debt", "total equity"),
        ("net income", "total equity"), ("operating cash flow", "revenue"), ("capital expenditure", "revenue"),
        ("cash", "total assets"),
    ),
}  # fmt: skip
"""What is asked about invented filings. A difference that a statement already shows is left out."""
Lack = Literal["item", "period", "company"]
LACKS: tuple[Lack, ...] = ("item", "period", "company")
TRIES = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is asked. `lacks` is what the filings lack. None: they have the answer."""

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
        """`items` are asked for. Empty: all items are."""
        self._options, self._corpus, self._companies, self._rng = options, corpus, list(companies), rng
        self._openings, self._items = openings, frozenset(items or corpus.items)
        parts = {corpus.part_of(name) for name in companies}
        names = strangers(options.companies if options.folder is None else 0)
        self._strangers = [name for name in names if corpus.part_of(name) in parts and name not in corpus.families]
        self._seen: set[str] = set()

    def write(self) -> Iterator[Asked]:
        """Yield questions as long as there are new ones."""
        share, due = self._options.unanswerable_share, self._rng.random()
        lacks = itertools.cycle(self._rng.sample(LACKS, len(LACKS)))
        deck: list[str] = []
        while self._companies:
            due += share
            lack = next(lacks) if due >= 1 else None
            due -= due >= 1
            asked = None
            for _ in range(2 * len(self._companies)):
                if not deck:
                    deck = self._rng.sample(self._companies, len(self._companies))
                company = deck.pop()
                asked = self._unanswerable(company, lack) if lack else self._answerable(company)
                if asked:
                    break
            if asked is None and lack:  # perhaps every company shows every item, or has filed for every period
                asked = self._unanswerable(self._companies[0], "company")
            if asked is None:
                return
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
        wanted = self._wanted(places) or list(places)
        for _ in range(TRIES):
            shown = self._rng.choice(wanted)
            figure = Figure(shown.item, shown.period)
            if lacks == "company":
                company = self._rng.choice(self._strangers)
            elif lacks == "item":
                there = {known.item for known in places if known.period == figure.period}
                missing = [item for item in self._corpus.items if item not in there]
                if not missing:
                    return None
                figure = Figure(self._rng.choice(missing), shown.period)
            else:
                there = {known.period for known in places}
                missing = [period for period in self._corpus.periods if period not in there]
                if not missing:
                    return None
                figure = Figure(shown.item, self._rng.choice(missing))
            if asked := self._new(Question("lookup", company, (figure,)), lacks):
                return asked
        return None

    def _figures(self, program: Program, places: dict[Figure, list[Place]]) -> tuple[Figure, ...]:
        """Choose figures for a program. Empty: the company has none that fit."""
        wanted = self._wanted(places)
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

    def _wanted(self, places: dict[Figure, list[Place]]) -> list[Figure]:
        """Return the figures that are asked for. Sums of undisclosed items are left out."""
        return [figure for figure in places if figure.item in self._items]

    def _new(self, question: Question, lacks: Lack | None) -> Asked | None:
        text = question.text(self._rng.choice(self._openings))
        return None if text in self._seen else Asked(question, text, lacks)


def check_programs(options: Options, corpus: Corpus) -> None:
    """Raise UserError for a program that no company of your own files has the figures for."""
    for program in options.programs if options.folder and options.lookup_share < 1 else ():
        if not any(_can_be_asked(program, name, corpus) for name in corpus.families):
            needs = "one item in two periods" if program == "growth" else "two items of one unit in the same period"
            raise UserError(
                f"recipe.options.programs has {program!r}, and no company of {options.folder} has {needs}. Add such "
                f"figures, take {program!r} out, or set recipe.options.lookup_share to 1."
            )


def _can_be_asked(program: Program, company: str, corpus: Corpus) -> bool:
    places = corpus.places(company)
    same = "item" if program == "growth" else "period"
    pairs = (pair for pair in itertools.permutations(places, 2) if getattr(pair[0], same) == getattr(pair[1], same))
    return any(answers(Question(program, company, pair), places) for pair in pairs)


def take(written: Iterator[Asked], count: int, what: str) -> list[Asked]:
    """Return `count` questions. Raises UserError if there are fewer."""
    found = list(itertools.islice(written, count))
    if len(found) < count:
        raise UserError(
            f"filings: only {len(found)} of {count} different questions can be asked of {what}. Lower "
            "examples.train, examples.validation or examples.test in params.yaml, or add companies."
        )
    return found
