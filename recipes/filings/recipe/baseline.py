"""Scripted agents that learn nothing, graded by the real grader.

    honest             search company and period, open the statement, quote its line, calculate; or
                       say "not in filings"
    closed_book        answer at once what is right most often for this item in training
    most_frequent      always say "not in filings", the most frequent answer
    first_hit          search the company, and answer from the first filing
    longest_document   search the company, and answer from the filing with the longest pages
    random             search the company, and answer from any of its filings

`score` plays one of them on an example, against the filings themselves, without a server. An agent
knows the words of the question and what the tools show, but not what is right. The last three quote
and calculate as the honest one does, and say "not in filings" if their filing does not show the
item. They only do not care which filing it is.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence

from rft.errors import UserError
from rft.recipe import Example

from . import tools
from .analyst import Episode, Listed, conclude, look_up, work_with_care
from .corpora import corpus
from .examples import examples, written
from .options import Options
from .questions import ABSTENTION, Question, parse

MANY = tools.ROOM
TRAINING = 1000
"""From so many training questions `closed_book` knows what is frequent."""


def honest(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    return work_with_care(asked, episode)


def closed_book(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    return episode.answer(_frequent(options.model_dump_json()).get(_asks_for(asked), ABSTENTION))


def most_frequent(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    return episode.answer(ABSTENTION)


def first_hit(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    return _answer_from(episode.nearest(f" {asked.company}")[:1], asked, episode)


def longest_document(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    episode.k = MANY
    hits = episode.nearest(f" {asked.company}")
    return _answer_from(sorted(hits, key=lambda filing: _length(filing, episode))[-1:], asked, episode)


def any_hit(asked: Question, episode: Episode, options: Options, rng: random.Random) -> str:
    episode.k = MANY
    hits = episode.nearest(f" {asked.company}")
    return _answer_from([rng.choice(hits)] if hits else [], asked, episode)


Way = Callable[[Question, Episode, Options, random.Random], str]
WAYS: dict[str, Way] = {
    "honest": honest,
    "closed_book": closed_book,
    "most_frequent": most_frequent,
    "first_hit": first_hit,
    "longest_document": longest_document,
    "random": any_hit,
}


def score(name: str, options: Options, example: Example) -> float:
    """Return the published reward, before any budget. grader.json declares what "not in filings"
    pays."""
    text = str(example.messages[-1]["content"])
    asked = parse(text, corpus(options))
    if asked is None:
        raise UserError(f"{text[:60]!r}: the scripts of baseline.py read the questions of questions.py only.")
    episode = Episode([], example.row())
    answered = WAYS[name](asked, episode, options, random.Random(f"{name} {example.id}"))
    if answered == ABSTENTION:
        return 1.0 if example.metadata["unanswerable"] else 0.0
    return tools.grade({"output_text": answered, "trajectory": episode.messages}, example.row())["score"]


def _answer_from(chosen: Sequence[Listed], asked: Question, episode: Episode) -> str:
    found = [look_up(figure, filing, episode) for filing in chosen for figure in asked.figures]
    lines = [line for line in found if line]
    if not lines or len(lines) < len(found):
        return episode.answer(ABSTENTION)
    return conclude(asked, lines, episode)


def _length(filing: Listed, episode: Episode) -> int:
    return sum(len(line.text) for _, page in filing.pages for line in episode.recall(filing, page))


def _asks_for(asked: Question) -> tuple[str, ...]:
    return (asked.program, *(figure.item for figure in asked.figures))


@functools.lru_cache(maxsize=4)
def _frequent(settings: str) -> dict[tuple[str, ...], str]:
    """Return the most frequent answer to each kind of training question, without a citation."""
    options = Options.model_validate_json(settings)
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for example in examples(options, "train", TRAINING, 0):
        asked = parse(str(example.messages[-1]["content"]), corpus(options))
        if asked and example.target != ABSTENTION:
            answer = example.target["answers"][0]
            text = written(answer["value"], answer["unit"], [])
            counts.setdefault(_asks_for(asked), Counter())[text] += 1
    return {kind: found.most_common(1)[0][0] for kind, found in counts.items()}
