"""Players that learn nothing: the shortcuts that a trained policy must beat, and an honest player.

    closed_book      says a word and guesses none
    most_frequent    the same guesses in every game: those whose letters are in most words
    random           any words
    first_hits       one look at `find` with the player's clue, then the words that it showed
    honest           guesses what fits all clues (player.py); it has the dictionary in mind

They play the game itself, in this process, and are graded by its record.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from rft.recipe import Example, Rollout

from . import player, tools
from .game import GUESSES, Game
from .words import Dictionary

Player = Callable[[Game, random.Random], None]


def play(name: str, example: Example) -> dict[str, Any]:
    """Return the grade of the player's game."""
    rollout = Rollout(f"{name} {example.id}", example.row())
    tools.setup(rollout)
    PLAYERS[name](rollout.state, random.Random(rollout.trace_id))
    return tools.grade({}, rollout.item, rollout)


def _guess(game: Game, chosen: list[str]) -> None:
    for n, word in enumerate(chosen):
        game.guess(word, f"call_{n}")


def _closed_book(game: Game, rng: random.Random) -> None:
    del game, rng


def _most_frequent(game: Game, rng: random.Random) -> None:
    del rng
    _guess(game, frequent(game.dictionary))


def _random(game: Game, rng: random.Random) -> None:
    _guess(game, rng.sample(game.dictionary.words, game.num_left))


def _first_hits(game: Game, rng: random.Random) -> None:
    del rng
    _guess(game, game.dictionary.fitting(game.clues)[: game.num_left])


def _honest(game: Game, rng: random.Random) -> None:
    del rng
    player.play_honestly(game)


PLAYERS: dict[str, Player] = {
    "closed_book": _closed_book,
    "most_frequent": _most_frequent,
    "random": _random,
    "first_hits": _first_hits,
    "honest": _honest,
}


@functools.cache
def frequent(dictionary: Dictionary) -> list[str]:
    """Return as many words as a game has guesses, each with the most frequent letters that the
    words before it lack."""
    counts = Counter(letter for word in dictionary.words for letter in set(word))
    chosen: list[str] = []
    for _ in range(GUESSES - 1):
        said = set("".join(chosen))
        chosen.append(max(dictionary.words, key=lambda word: sum(counts[letter] for letter in set(word) - said)))
    return chosen
