"""A scripted researcher with habits: the source of demonstrations and of simulated traffic.

It is mediocre on purpose, so that a policy that is warm-started on it is like an unpolished agent
in production. Most episodes follow *old habits*. They search one thing at a time with a part of
what was asked, and repeat a search. They take a hit of another symbol, forget a subject, or read
the same lines twice. Some never stop: their calls pass the limit of fifteen. A minority works *at
once*: it searches every subject in one turn, in the words of the question, and takes the hit that
fits. Reinforcement learning can choose between the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rft.chat import dialogue
from rft.recipe import Message

from . import facts, tools
from .index import words
from .questions import Question, Subject
from .workspace import Row

MAX_TURNS, MAX_CALLS = 11, 19
"""Limits on searching. With the answer it is twelve turns, within a small policy's context."""
SHORT = 24
"""The most characters of a value that the researcher uses in an answer."""


@dataclass(frozen=True)
class View:
    """How many hits search shows; a policy can be served with another number."""

    k: int = 2


@dataclass(frozen=True)
class Habits:
    """Chances of a lapse."""

    poor_query: float = 0.70  # one name of the symbol, or all of them without the kind
    search_again: float = 0.40
    second_look: float = 0.15  # after a poor query, the whole subject
    forget: float = 0.25
    wrong_hit: float = 0.30
    read: float = 0.25  # the line of a hit
    list_file: float = 0.02
    restless: float = 0.22  # an episode that goes on and on
    go_on: float = 0.88


@dataclass
class Episode:
    """The messages of one dialogue while it is played against the tools in process."""

    question: Question
    view: View
    messages: list[Message]
    shows_values: bool = True
    turn: int = 0
    calls: int = 0

    def search(self, *queries: str) -> list[list[Row]]:
        known = self.question.workspace
        found = [[known.rows[n] for n in known.index.search(query, self.view.k)] for query in queries]
        replies = ["\n".join(row.shown(self.shows_values) for row in rows) or "no hits" for rows in found]
        self._add_turn([("search", {"query": f" {query}"}) for query in queries], replies)
        return found

    def read(self, *rows: Row) -> None:
        calls = [{"path": row.path, "lines": str(row.line)} for row in rows]
        self._add_turn(
            [("retrieve", call) for call in calls], [tools.retrieve(**call, item=self._item) for call in calls]
        )

    def list_file(self, path: str) -> None:
        self._add_turn([("symbols", {"path": path})], [tools.symbols(path, item=self._item)])

    def fail(self, query: str) -> None:
        """Add a search that the tool server did not answer."""
        self._add_turn([("search", {"query": f" {query}"})], ["Error: search is not available"])

    def answer(self, taken: Sequence[Row]) -> None:
        self.messages.append({"role": "assistant", "content": facts.write(map(_claim, dict.fromkeys(taken)))})

    @property
    def turns_left(self) -> int:
        return MAX_TURNS - self.turn if self.calls < MAX_CALLS else 0

    @property
    def _item(self) -> dict[str, Any]:
        known = self.question.workspace
        where = {"package": known.package, "world": known.world, "workspace": known.key}
        return {"metadata": {**where, "snippets": self.shows_values}}

    def _add_turn(self, calls: list[tuple[str, dict[str, Any]]], replies: list[str]) -> None:
        self.messages += dialogue.scripted_turn(self.turn, calls, replies)
        self.turn += 1
        self.calls += len(calls)


def work_at_once(episode: Episode) -> list[Row]:
    subjects = episode.question.subjects
    found = episode.search(*(subject.phrase for subject in subjects))
    taken = [best(subject.phrase, rows) for subject, rows in zip(subjects, found, strict=True) if rows]
    if taken and not episode.shows_values:
        episode.read(*taken)
    episode.answer(taken)
    return taken


def follow_old_habits(episode: Episode, habits: Habits, rng: random.Random) -> list[Row]:
    subjects = [subject for subject in episode.question.subjects if rng.random() >= habits.forget]
    subjects = subjects or [episode.question.subjects[0]]
    is_restless = rng.random() < habits.restless
    taken: list[Row] = []
    for n, subject in enumerate(subjects):
        rows = _search_one(subject, episode, habits, rng, later=len(subjects) - n - 1)
        usable = [row for row in rows if _is_short(row)]
        if usable:
            is_wrong = len(usable) > 1 and rng.random() < habits.wrong_hit
            taken.append(usable[rng.randrange(1, len(usable)) if is_wrong else 0])
            _look_around(taken[-1], episode, habits, rng, later=len(subjects) - n - 1)
    if not taken:  # at least one subject is searched for with care
        taken.append(best(subjects[0].phrase, episode.search(subjects[0].phrase)[0]))
    while is_restless and episode.turns_left > 0 and rng.random() < habits.go_on:
        _go_over_it_again(taken, subjects, episode, rng)
    episode.answer(taken)
    return taken


def best(phrase: str, rows: Sequence[Row]) -> Row:
    """Return the hit whose kind and symbol are those of the phrase; else the first."""
    wanted = words(phrase)
    return next((row for row in rows if [row.kind, *words(row.symbol)] == wanted), rows[0])


def _search_one(subject: Subject, episode: Episode, habits: Habits, rng: random.Random, later: int) -> list[Row]:
    """Search until the habit is satisfied or the turns are spent. Returns the last hits."""
    query = _query(subject.phrase, habits, rng)
    rows = episode.search(query)[0]
    while episode.turns_left > later:
        if query != subject.phrase and rng.random() < habits.second_look:
            query = subject.phrase
        elif rng.random() >= habits.search_again:
            break
        rows = episode.search(query)[0]
    return rows


def _look_around(row: Row, episode: Episode, habits: Habits, rng: random.Random, later: int) -> None:
    must_read = not episode.shows_values
    if episode.turns_left > later and (must_read or rng.random() < habits.read):
        episode.read(row)
    elif episode.turns_left > later and rng.random() < habits.list_file:
        episode.list_file(row.path)


def _go_over_it_again(taken: Sequence[Row], subjects: Sequence[Subject], episode: Episode, rng: random.Random) -> None:
    width = min(rng.choice((1, 2, 2, 3)), MAX_CALLS - episode.calls)
    if rng.random() < 0.7:
        episode.read(*rng.choices(taken, k=width))
    else:
        episode.search(*(subject.phrase for subject in rng.choices(subjects, k=min(2, width))))


def _query(phrase: str, habits: Habits, rng: random.Random) -> str:
    if rng.random() >= habits.poor_query:
        return phrase
    kind, _, symbol = phrase.partition(" ")
    names = symbol.split(".")
    return rng.choice((names[-1], symbol, f"{kind} {rng.choice(names)}"))


def _is_short(row: Row) -> bool:
    return row.kind in ("default", "constant", "base", "raises") and len(row.value) <= SHORT


def _claim(row: Row) -> dict[str, str]:
    return {"symbol": row.symbol, "path": row.path, "value": row.value}
