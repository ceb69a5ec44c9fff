"""Players that learn nothing: an honest one, and the shortcuts that a trained policy must beat.

    honest           asks `find` with every clue before each guess, and guesses the first word shown
    last_clue        does the same with only the last clue
    first_hit        asks `find` once with the player's clue, then guesses the words that it showed
    most_frequent    makes the same guesses in every game: the words that earn most partial credit
    random           guesses any words
    closed_book      says a word that fits, and guesses none

A game has no documents, so there is no `longest_document`.

Each plays the game that the tool server would play, in this process. The recipe's own `grade`
grades it, before any budget for calls.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable

from rft.recipe import Example, Rollout

from . import player, tools
from .examples import Options, answer
from .words import Dictionary

Way = Callable[[player.Episode, random.Random], None]


def score(name: str, options: Options, example: Example) -> float:
    """Return the grade of one player's game."""
    rollout = Rollout(f"{name} {example.id}", example.row())
    tools.setup(rollout)
    episode = player.Episode(rollout.state, list(example.messages), has_find=options.find)
    WAYS[name](episode, random.Random(rollout.trace_id))
    turns = episode.messages[len(example.messages) :]
    sample = {"output_text": turns[-1]["content"], "trajectory": turns}
    return tools.grade(sample, rollout.item, rollout)["score"]


def _honest(episode: player.Episode, rng: random.Random) -> None:
    del rng
    player.play_with_care(episode)


def _last_clue(episode: player.Episode, rng: random.Random) -> None:
    del rng
    while not episode.is_over:
        episode.guess(episode.find(episode.marked[-1:])[0])
    episode.end()


def _first_hit(episode: player.Episode, rng: random.Random) -> None:
    del rng
    episode.k = tools.MAX_FOUND
    _guess(episode, episode.find(episode.marked))


def _most_frequent(episode: player.Episode, rng: random.Random) -> None:
    del rng
    guessed = [move.word for move in episode.game.moves]
    new = [word for word in _by_partial_credit(episode.game.dictionary) if word not in guessed]
    _guess(episode, reversed(new[: episode.game.num_left]))  # the last marks count: the best word comes last


def _random(episode: player.Episode, rng: random.Random) -> None:
    _guess(episode, rng.sample(episode.game.dictionary.words, episode.game.num_left))


def _closed_book(episode: player.Episode, rng: random.Random) -> None:
    del rng
    fitting = episode.game.dictionary.fitting(episode.game.clues)
    episode.messages.append({"role": "assistant", "content": answer(fitting[0])})


WAYS: dict[str, Way] = {
    "honest": _honest,
    "last_clue": _last_clue,
    "first_hit": _first_hit,
    "most_frequent": _most_frequent,
    "random": _random,
    "closed_book": _closed_book,
}


def _guess(episode: player.Episode, chosen: Iterable[str]) -> None:
    for word in chosen:
        if not episode.is_over:
            episode.guess(word)
    episode.end()


@functools.cache
def _by_partial_credit(dictionary: Dictionary) -> list[str]:
    """Order all words by what they earn if the secret is any word. A letter counts once if it is
    elsewhere, and twice if it is in its place."""
    anywhere = Counter(letter for word in dictionary.words for letter in set(word))
    in_place = Counter(placed for word in dictionary.words for placed in enumerate(word))

    def credit(word: str) -> int:
        return sum(anywhere[letter] for letter in set(word)) + sum(in_place[placed] for placed in enumerate(word))

    return sorted(dictionary.words, key=lambda word: (-credit(word), word))
