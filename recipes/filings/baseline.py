"""What needs no learning: an honest scripted agent, and the shortcuts that a policy must beat.

scripted        the careful analyst: reads the question in its fixed form, then uses the tools
closed_book     an answer without any tool
most_frequent   always "not in filings", the most frequent answer
first_hit       the first line of the first page of the first filing, quoted as it should be
random          a figure of a page of the company's filings, taken at random
"""

from __future__ import annotations

import random
from collections.abc import Callable

from rft.recipe import Example

from .analyst import Episode, Line, work_with_care
from .examples import written
from .filings import corpus
from .options import Options
from .questions import ABSTENTION, number, parse


def scripted_answer(options: Options, example: Example) -> tuple[str, int]:
    """Return the answer, and the number of tool calls made."""
    question = parse(_text(example), corpus(options))
    assert question is not None
    episode = Episode([], example.row())
    return work_with_care(question, episode), episode.calls


def closed_book(options: Options, example: Example) -> str:
    del options
    rng = random.Random(f"closed book {example.id}")
    return written(rng.randint(1000, 300_000), rng.choice(("thousands", "millions")), [])


def most_frequent(options: Options, example: Example) -> str:
    del options, example
    return ABSTENTION


def first_hit(options: Options, example: Example) -> str:
    found = Episode([], example.row()).nearest(_subject(options, example))
    shown = Episode([], example.row()).read(found[0], found[0].pages[0][1]) if found else []
    return _taken(shown[0]) if shown else ABSTENTION


def at_random(options: Options, example: Example) -> str:
    rng = random.Random(f"random {example.id}")
    found = Episode([], example.row(), k=12).nearest(_subject(options, example))
    if not found:
        return ABSTENTION
    filing = rng.choice(found)
    shown = Episode([], example.row()).read(filing, rng.choice(filing.pages)[1])
    return _taken(rng.choice(shown)) if shown else ABSTENTION


SHORTCUTS: dict[str, Callable[[Options, Example], str]] = {
    "closed_book": closed_book,
    "most_frequent": most_frequent,
    "first_hit": first_hit,
    "random": at_random,
}


def _taken(line: Line) -> str:
    return written(number(line.value), line.unit, [{"doc": line.doc, "page": line.page, "quote": line.text}])


def _subject(options: Options, example: Example) -> str:
    question = parse(_text(example), corpus(options))
    return f" {question.company}" if question else _text(example)


def _text(example: Example) -> str:
    return str(example.messages[-1]["content"])
