"""Scripted players: the source of demonstrations and of simulated traffic.

The teacher is mediocre on purpose, so that a policy that is warm-started on it is like an
unpolished agent in production. Most games follow *old habits*. They guess from memory instead of a
word that fits, ask `find` with only the first or the last clue, or repeat a question. They repeat a
guess, or give up. A minority plays *with care*: it asks with every clue, and guesses the first word
that it is shown. Reinforcement learning can choose between the two. The careful player is also the
honest agent of baseline.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from rft.chat import dialogue
from rft.recipe import Message

from . import tools
from .examples import Board, answer
from .game import Game, Move, clue


@dataclass(frozen=True)
class Habits:
    """Chances of a lapse, each time that it could happen."""

    give_up: float = 0.08
    from_memory: float = 0.30  # guesses without asking `find`
    first_clue: float = 0.60  # asks with the first clue only
    last_clue: float = 0.30  # asks with the last clue only
    ask_again: float = 0.40
    ask_again_at_once: float = 0.2  # then asks twice in one turn
    other_word: float = 0.20  # guesses another word than those it was shown
    old_word: float = 0.08  # guesses a word again


MAX_TURNS = 11
"""The most turns. With the last word it is twelve, within a small policy's context."""


@dataclass
class Episode:
    """The messages of one dialogue while it is played against a game in process."""

    game: Game
    messages: list[Message]
    k: int = 4
    has_find: bool = True
    """Without `find` the player keeps the dictionary in mind."""
    turn: int = 0
    calls: int = 0

    def find(self, clues: list[Move], times: int = 1) -> list[str]:
        listed = self.game.dictionary.fitting([(move.word, move.marks) for move in clues])[: self.k]
        if self.has_find:
            asked = " ;".join(clue(move) for move in clues)
            self._add_turn([("find", {"clues": asked})] * times, [tools.listing(listed)] * times)
        return listed

    def guess(self, word: str) -> None:
        reply = self.game.guess(f" {word}", f"call_{self.turn}_0")
        self._add_turn([("guess", {"word": f" {word}"})], [reply])

    def fail(self) -> None:
        """Add a call that the tool server did not answer."""
        asked = " ;".join(clue(move) for move in self.marked)
        self._add_turn([("find", {"clues": asked})], ["Error: find is not available"])

    def end(self) -> None:
        last = self.game.own[-1].word if self.game.own else "pass"
        self.messages.append({"role": "assistant", "content": answer(last)})

    @property
    def marked(self) -> list[Move]:
        return [move for move in self.game.moves if move.marks]

    @property
    def is_over(self) -> bool:
        return self.game.is_solved or not self.game.num_left or self.turn >= MAX_TURNS

    def _add_turn(self, calls: list[tuple[str, dict[str, Any]]], replies: list[str]) -> None:
        self.messages += dialogue.scripted_turn(self.turn, calls, replies)
        self.turn += 1
        self.calls += len(calls)


def begin(board: Board, system: str, k: int = 4) -> Episode:
    opening: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": board.text}]
    return Episode(board.game(), opening, k, board.options.find)


def play_with_care(episode: Episode) -> None:
    """Ask with every clue before each guess, and guess the first word shown."""
    while not episode.is_over:
        episode.guess(episode.find(episode.marked)[0])
    episode.end()


def follow_old_habits(episode: Episode, habits: Habits, rng: random.Random) -> None:
    game = episode.game
    while not episode.is_over:
        if game.own and rng.random() < habits.give_up:
            break
        listed: list[str] = []
        if rng.random() >= habits.from_memory:
            asked = _asked(episode.marked, habits, rng)
            at_once = rng.random() < habits.ask_again_at_once
            listed = episode.find(asked, 2 if at_once else 1)
            if episode.has_find and not at_once and not episode.is_over and rng.random() < habits.ask_again:
                episode.find(asked)
        if episode.is_over:
            break
        if rng.random() < habits.old_word:
            episode.guess(rng.choice(game.moves).word)
        elif not listed or rng.random() < habits.other_word:
            episode.guess(rng.choice(game.dictionary.words))
        else:
            episode.guess(rng.choice(listed))
    episode.end()


def _asked(marked: list[Move], habits: Habits, rng: random.Random) -> list[Move]:
    chance = rng.random()
    if chance < habits.first_clue:
        return marked[:1]
    return marked[-1:] if chance < habits.first_clue + habits.last_clue else marked
