"""What no learning would reach: scripted ways through a question, graded by the real rubric.

    honest           search for all that is named, read the mail, answer; or say that there is none
    first hit        search for the package, and answer from its latest mail
    most frequent    search, and answer what is right most often in training
    unknown          search, and say "I don't know" always
    random           search, and answer with what some other mail says
    closed book      answer at once what is right most often

`score` plays one of them on an example: against the index itself, without a server.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from rft.recipe import Example, Message

from . import clerk, index, questions, rubric
from .examples import Options, inbox_of, style
from .questions import Question

Way = Callable[[Question, clerk.Episode, Options, random.Random], None]


def honest(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    clerk.work_exactly(asked, episode)


def first_hit(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    hits = episode.search(asked.thread)
    if not hits:
        episode.answer(None, [])
        return
    episode.read(hits[0])
    episode.answer(clerk.told(asked.kind, hits[0]), hits[:1])


def most_frequent(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    hits = episode.search(asked.keywords, asked.month) or episode.search(asked.thread)
    episode.answer(_frequent(options)[asked.kind], list(hits[:1]))


def unknown(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.search(asked.thread)
    episode.answer(None, [])


def at_random(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    hits = episode.search(asked.keywords, asked.month) or episode.search(asked.thread)
    episode.answer(clerk.told(asked.kind, rng.choice(episode.inbox.all)), list(hits[:1]))


def closed_book(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.answer(_frequent(options)[asked.kind], [])


WAYS: dict[str, Way] = {
    "honest": honest,
    "first hit": first_hit,
    "most frequent": most_frequent,
    "unknown": unknown,
    "random": at_random,
    "closed book": closed_book,
}


def score(name: str, options: Options, example: Example) -> float:
    """Return what the rubric gives, before any budget."""
    settings = example.metadata
    asked = Question(
        text=example.messages[-1]["content"],
        kind=settings["kind"],
        form=example.target["form"],
        answer=None,
        mail=None,
        thread=settings["named"],
        keywords=example.target["search"],
        month=settings.get("month", ""),
    )
    inbox = index.stored(settings["mailbox"], settings["inbox"])
    episode = clerk.Episode(inbox, clerk.View(), [])
    WAYS[name](asked, episode, options, random.Random(f"{name} {example.id}"))
    return rubric.grade(sample_of(episode.messages), example.row())["score"]


def sample_of(messages: list[Message]) -> dict[str, Any]:
    """Return what the grader would be sent of a dialogue that ends with the terminal call."""
    last = messages[-1]
    text = last["tool_calls"][0]["function"]["arguments"]
    message = {"role": "assistant", "content": text, "tool_calls": last["tool_calls"]}
    return {"choices": [{"message": message}], "output_text": text, "trajectory": messages}


@functools.cache
def _frequent(options: Options) -> dict[str, str | None]:
    """Return the most frequent answer of each kind, over all training questions."""
    counts: dict[str, Counter[str | None]] = {kind: Counter() for kind in options.kinds}
    for asked in questions.write(inbox_of(options), style(options), "train", random.Random(0)):
        counts[asked.kind][asked.answer] += asked.mail is not None
    return {kind: found.most_common(1)[0][0] for kind, found in counts.items()}
