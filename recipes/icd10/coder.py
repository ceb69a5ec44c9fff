"""A scripted coder with habits: the source of demonstrations and of simulated traffic.

It is mediocre on purpose, so that a policy that is warm-started on it is like an unpolished agent
in production. Most episodes follow *old habits*: they search one thing at a time, with poor
queries, repeat a search, take the first hit, or forget a diagnosis. Some never stop searching. A
minority works *in parallel*: it searches every diagnosis in one turn, and takes the hit with the
most words in common. Reinforcement learning can choose between the two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from rft.chat import dialogue
from rft.recipe import Message

from . import codes, index
from .examples import Note, answer


@dataclass(frozen=True)
class View:
    """How search shows its hits; a policy can be served with either setting."""

    k: int = 3
    form: codes.LineFormat = codes.DEFAULT_FORMAT


@dataclass(frozen=True)
class Habits:
    """Chances of a lapse. With a quarter of the episodes in parallel, F1 is 0.57 with 4.8 calls per
    note (P95: 11)."""

    poor_query: float = 0.70  # one word of the phrase
    wrong_word: float = 0.20
    search_again: float = 0.77
    search_again_if_chatty: float = 0.6  # two or three of the same at once
    second_look: float = 0.10  # after a poor query, the whole phrase
    forget: float = 0.21
    wrong_hit: float = 0.35
    chase_distractor: float = 0.5
    chatty: float = 0.25
    look_up: float = 0.04
    open_category: float = 0.01


@dataclass
class Episode:
    """The messages of one dialogue while it is played against the tools in process."""

    view: View
    messages: list[Message]
    turn: int = 0
    calls: int = 0

    def search(self, *queries: str) -> list[tuple[index.Hit, ...]]:
        hits = [index.search(query, self.view.k) for query in queries]
        self._add_turn(
            [("search", {"query": f" {query}"}) for query in queries],
            [index.reply(found, self.view.form) for found in hits],
        )
        return hits

    def look_up(self, code: str) -> None:
        self._add_turn([("lookup", {"code": code})], [codes.line(codes.catalogue().text(code), code)])

    def open_category(self, code: str) -> None:
        self._add_turn([("children", {"code": code})], [codes.children_reply(code)])

    def fail(self, query: str) -> None:
        """Add a search that the tool server did not answer."""
        self._add_turn([("search", {"query": f" {query}"})], ["Error: search is not available"])

    def answer(self, found: list[str]) -> None:
        # In the order of the searches, because the policy copies hit after hit. A set has no order.
        self.messages.append({"role": "assistant", "content": answer(list(dict.fromkeys(found)))})

    def _add_turn(self, calls: list[tuple[str, dict[str, Any]]], replies: list[str]) -> None:
        self.messages += dialogue.scripted_turn(self.turn, calls, replies)
        self.turn += 1
        self.calls += len(calls)


MAX_TURNS, MAX_CALLS = 7, 16
"""Limits on searching. With the answer it is eight turns, within a small policy's context."""


def work_in_parallel(note: Note, episode: Episode) -> list[str]:
    found: list[str] = []
    for phrase, hits in zip(note.phrases, episode.search(*note.phrases), strict=True):
        if hits:
            found.append(best_overlap(phrase, hits).code)
    episode.answer(found)
    return found


def follow_old_habits(note: Note, episode: Episode, habits: Habits, rng: random.Random) -> list[str]:
    chatty = rng.random() < habits.chatty
    subjects = [phrase for phrase in note.phrases if rng.random() >= habits.forget] or [note.phrases[0]]
    subjects += [phrase for phrase in note.distractors if rng.random() < habits.chase_distractor]
    found: list[str] = []
    for n, phrase in enumerate(subjects):
        later = len(subjects) - n - 1
        room = MAX_TURNS - episode.turn - later
        hits = _search_one(phrase, note, episode, habits, rng, room, chatty)
        if hits:
            wrong = len(hits) > 1 and rng.random() < habits.wrong_hit
            found.append(hits[rng.randrange(1, len(hits)) if wrong else 0].code)
            has_room = episode.turn + later < MAX_TURNS
            if has_room and rng.random() < habits.look_up:
                episode.look_up(found[-1])
            elif has_room and rng.random() < habits.open_category:
                episode.open_category(found[-1][:3])
    episode.answer(found)
    return found


def best_overlap(phrase: str, hits: tuple[index.Hit, ...]) -> index.Hit:
    """Return the hit with most words in common and fewest others. The earlier one wins a tie."""
    wanted = set(phrase.split())

    def likeness(hit: index.Hit) -> float:
        have = set(hit.text.split())
        return len(wanted & have) / len(wanted | have)

    return max(hits, key=likeness)


def _search_one(
    phrase: str, note: Note, episode: Episode, habits: Habits, rng: random.Random, room: int, chatty: bool
) -> tuple[index.Hit, ...]:
    """Search until the habit is satisfied or the turns are spent. Returns the last hits."""
    query = _query(phrase, note, habits, rng)
    hits: tuple[index.Hit, ...] = ()
    for attempt in range(room):
        left = MAX_CALLS - episode.calls
        if left <= 0:
            break
        width = min(left, rng.choice((1, 2, 3))) if chatty else 1
        hits = episode.search(*[query] * width)[-1]
        if query != phrase and rng.random() < habits.second_look:
            query = phrase
        elif attempt + 1 < room and rng.random() >= (habits.search_again_if_chatty if chatty else habits.search_again):
            break
    return hits


def _query(phrase: str, note: Note, habits: Habits, rng: random.Random) -> str:
    parts = phrase.split()
    if rng.random() < habits.wrong_word:
        parts[rng.randrange(len(parts))] = rng.choice(codes.words(note.text).split())
    elif rng.random() < habits.poor_query:
        parts = [rng.choice(parts)]
    return " ".join(parts)
