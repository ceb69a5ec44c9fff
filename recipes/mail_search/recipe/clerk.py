"""A scripted clerk with habits: the source of demonstrations and of simulated traffic.

It is mediocre on purpose, so that a policy that is warm-started on it is like an unpolished agent
in production. Most episodes follow *old habits*. They search for the package alone, which finds its
latest mails, repeat a search, and shorten one that finds nothing. They read mails in passing,
answer from the wrong one, and cite every hit. A minority works *exactly*: it searches for all that
is named, reads the mail, and says that it does not know if there is none. Reinforcement learning
can choose between the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rft.chat import dialogue
from rft.recipe import Message

from . import questions, view
from .index import Index
from .mails import Mail, fold
from .questions import Question


@dataclass(frozen=True)
class View:
    """How search shows its hits; a policy can be served with either setting."""

    max_results: int = 3
    show: view.Shown = "subject"


@dataclass(frozen=True)
class Habits:
    """Chances of a lapse. With a quarter of the episodes exact, about half of the answers are
    right."""

    package_alone: float = 0.72
    whole_question: float = 0.08
    search_again: float = 0.35
    second_look: float = 0.25  # after a poor query, all that is named
    other_hit: float = 0.25
    read_another: float = 0.35
    shorten: float = 0.7  # where nothing is found
    give_up: float = 0.06
    cite_all: float = 0.35
    cite_none: float = 0.2


@dataclass
class Episode:
    """The messages of one dialogue while it is played against the index in process."""

    inbox: Index
    view: View
    messages: list[Message]
    turn: int = 0

    def search(self, keywords: str, month: str = "") -> tuple[Mail, ...]:
        after, before = questions.months(month) if month else ("", "")
        found = self.inbox.search(keywords, self.view.max_results, after=after, before=before)
        lines = [view.hit(mail, self.view.show, whole=False) for mail in found]
        limits = {"sent_after": after, "sent_before": before} if month else {}
        self._add_turn("search_emails", {"keywords": f" {keywords}", **limits}, "\n".join(lines) or " no mails")
        return found

    def read(self, mail: Mail) -> None:
        self._add_turn("read_email", {"message_id": mail.id}, view.text(mail, whole=False))

    def fail(self, keywords: str) -> None:
        """Add a search that the tool server did not answer."""
        self._add_turn("search_emails", {"keywords": f" {keywords}"}, "Error: search_emails is not available")

    def answer(self, text: str | None, sources: Sequence[Mail]) -> None:
        """Add the terminal call, which gets no reply."""
        ids = list(dict.fromkeys(mail.id for mail in sources))
        self._add_turn("return_final_answer", {"answer": text, "sources": ids}, None)

    def _add_turn(self, name: str, arguments: dict[str, Any], reply: str | None) -> None:
        replies = [] if reply is None else [reply]
        self.messages += dialogue.scripted_turn(self.turn, [(name, arguments)], replies)
        self.turn += 1


MAX_LOOKS = 6
"""The most searches and readings. With the answer it is seven turns, within a small policy's
context."""


def work_exactly(asked: Question, episode: Episode) -> None:
    hits = episode.search(asked.keywords, asked.month)
    if not hits:
        episode.answer(None, [])
        return
    mail = next((hit for hit in hits if hit.thread == asked.thread), hits[0])
    episode.read(mail)
    episode.answer(told(asked.kind, mail), [mail])


def follow_old_habits(asked: Question, episode: Episode, habits: Habits, rng: random.Random) -> None:
    if rng.random() < habits.give_up:
        episode.answer(None, [])
        return
    query = _query(asked, habits, rng)
    hits = episode.search(query)
    while episode.turn < MAX_LOOKS - 2 and rng.random() < habits.search_again:
        if query != asked.keywords and rng.random() < habits.second_look:
            query = asked.keywords
        hits = episode.search(query)
    if not hits and rng.random() < habits.shorten:
        hits = episode.search(asked.thread)
    if not hits:
        episode.answer(None, [])
        return
    mail = rng.choice(hits) if rng.random() < habits.other_hit else hits[0]
    episode.read(mail)
    if len(hits) > 1 and episode.turn < MAX_LOOKS and rng.random() < habits.read_another:
        mail = rng.choice([hit for hit in hits if hit != mail])
        episode.read(mail)
    drawn = rng.random()
    sources = list(hits) if drawn < habits.cite_all else [] if drawn < habits.cite_all + habits.cite_none else [mail]
    text = told(asked.kind, mail)
    episode.answer(text, sources if text is not None else [])


def told(kind: str, mail: Mail) -> str | None:
    """Return what a mail answers to such a question, even if another mail was asked for. A word
    begins with a space, as in the mail."""
    match kind:
        case "bug":
            return mail.bugs[0] if mail.bugs else None
        case "who":
            return f" {fold(mail.sender)}"
        case "when":
            return mail.day
        case _:
            return f" {fold(mail.version)}"


def _query(asked: Question, habits: Habits, rng: random.Random) -> str:
    drawn = rng.random()
    if drawn < habits.package_alone:
        return asked.thread
    if drawn < habits.package_alone + habits.whole_question:
        return fold(asked.text)
    return asked.keywords
