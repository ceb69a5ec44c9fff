"""Scripted agents that learn nothing, graded by the real rubric.

    honest             search for all that is named, read the mail, answer; or say "I don't know"
    closed_book        answer at once what is right most often in training
    most_frequent      search for all that is named, and answer the same
    unknown            search for the package, and always say "I don't know"
    first_hit          search for the package, and answer from its latest mail
    longest_document   search for the package, and answer from the longest of its ten latest mails
    random             search for the package, and answer from any of its ten latest mails

`score` plays one of them on an example, against the index itself, without a server. An agent knows
the words of the question and what the tools show, but not what is right. `most_frequent` counts
over all training questions, separately for each kind. It leaves out questions without an answer:
"I don't know" is the most frequent answer of all, and has its own agent.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rft.errors import UserError
from rft.recipe import Example, Message

from . import clerk, index, questions, rubric
from .examples import Options, style
from .index import Index
from .mails import Mail
from .questions import FORMS, IN_MONTH, NAMED, TEMPLATES, Question, Style

MANY = clerk.View(max_results=10)
_WORDS = {
    "upload": r"(?P<package>\S+) (?P<version>\S+)",
    "package": r"(?P<package>\S+)",
    "bug": r"(?P<bug>\S+)",
    "month": r"(?P<month>\S+)",
    "author": "(?P<author>.+)",
}
"""What may be in each place of a question. Only a name may have spaces."""


def honest(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    clerk.work_exactly(asked, episode)


def closed_book(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.answer(_frequent(episode.inbox, style(options))[asked.kind], [])


def most_frequent(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    hits = episode.search(asked.keywords, asked.month) or episode.search(asked.thread)
    episode.answer(_frequent(episode.inbox, style(options))[asked.kind], hits[:1])


def unknown(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.search(asked.thread)
    episode.answer(None, [])


def first_hit(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    _answer_from(episode.search(asked.thread)[:1], asked, episode)


def longest_document(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.view = MANY
    hits = episode.search(asked.thread)
    _answer_from(sorted(hits, key=lambda mail: len(mail.body))[-1:], asked, episode)


def any_hit(asked: Question, episode: clerk.Episode, options: Options, rng: random.Random) -> None:
    episode.view = MANY
    hits = episode.search(asked.thread)
    _answer_from([rng.choice(hits)] if hits else [], asked, episode)


def _answer_from(chosen: Sequence[Mail], asked: Question, episode: clerk.Episode) -> None:
    for mail in chosen:
        episode.read(mail)
    episode.answer(clerk.told(asked.kind, chosen[0]) if chosen else None, chosen)


Way = Callable[[Question, clerk.Episode, Options, random.Random], None]
WAYS: dict[str, Way] = {
    "honest": honest,
    "closed_book": closed_book,
    "most_frequent": most_frequent,
    "unknown": unknown,
    "first_hit": first_hit,
    "longest_document": longest_document,
    "random": any_hit,
}


def score(name: str, options: Options, example: Example) -> float:
    """Return what the rubric gives, before any budget."""
    inbox = index.stored(example.metadata["mailbox"], example.metadata["inbox"])
    episode = clerk.Episode(inbox, clerk.View(), [])
    WAYS[name](understood(example.messages[-1]["content"]), episode, options, random.Random(f"{name} {example.id}"))
    return rubric.grade(sample_of(episode.messages), example.row())["score"]


def understood(text: str) -> Question:
    """Return what a question asks for, by its words alone.

    Raises UserError for words that are not from questions.py.
    """
    for templates in (TEMPLATES, IN_MONTH):
        for kind, forms in templates.items():
            for found in filter(None, (_pattern(form).fullmatch(text) for form in forms)):
                parts = found.groupdict()
                names = ("package",) if "month" in parts else NAMED[kind]
                return Question(
                    text=text,
                    kind=kind,
                    form=FORMS[kind],
                    answer=None,
                    mail=None,
                    thread=parts["package"],
                    keywords=" ".join(parts[name] for name in names),
                    month=parts.get("month", ""),
                )
    raise UserError(f"{text[:60]!r}: the scripts of baseline.py read questions about changelogs only.")


def sample_of(messages: list[Message]) -> dict[str, Any]:
    """Return what the grader would be sent of a dialogue that ends with the terminal call."""
    last = messages[-1]
    text = last["tool_calls"][0]["function"]["arguments"]
    message = {"role": "assistant", "content": text, "tool_calls": last["tool_calls"]}
    return {"choices": [{"message": message}], "output_text": text, "trajectory": messages}


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", lambda place: _WORDS[place[1]], re.escape(template)))


@functools.cache
def _frequent(inbox: Index, asked: Style) -> dict[str, str | None]:
    """Return the most frequent answer of each kind, over all training questions."""
    counts: dict[str, Counter[str | None]] = {kind: Counter() for kind in asked.kinds}
    for question in questions.write(inbox, asked, "train", random.Random(0)):
        counts[question.kind][question.answer] += question.mail is not None
    return {kind: found.most_common(1)[0][0] for kind, found in counts.items()}
